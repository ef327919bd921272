"""Sampling never harms the target: agents killed in mid profile, SIGTERM of workerd under steady sampling, DevTools, reload.
"""
import json
import os
import signal
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ef_runtimes as ef  # noqa: E402

WORK = {"serveRequest": 30, "renderPage": 20}
SIGTERM_ROUNDS, SIGTERM_EACH = 10, 10


class Attach(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.children = []

    def tearDown(self):
        for child in reversed(self.children):
            child.stop()
        self.folder.cleanup()

    def keep(self, child):
        self.children.append(child)
        return child

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def test_agent_killed_in_mid_profile_ten_times_and_the_profile_is_recovered(self):
        daemon = self.keep(ef.Everflamed(self.folder.name))
        workerd = self.keep(ef.Workerd(self.path("w"), {"acct:shop:v1": ef.workerd_source(WORK)}))
        load = ef.Load(workerd.url("acct:shop:v1"), 15, 300)
        target = workerd.target("acct:shop:v1", "acct", "shop", "v1")
        begun = time.time()
        windows = []
        for _ in range(10):
            agent = self.keep(ef.Agent(self.folder.name, daemon, [target]))
            daemon.wait_sampling(1)
            start = time.time()
            time.sleep(3)
            agent.kill()
            windows.append((start, time.time()))
            self.assertTrue(workerd.alive(), workerd.log_text()[-800:])
            ef.wait_for(lambda: not daemon.status()["targets"] or daemon.status()["targets"][0]["state"] != "sampling"
                        or time.time() - windows[-1][1] > 1, 10, "pause")
        agent = self.keep(ef.Agent(self.folder.name, daemon, [target]))
        daemon.wait_sampling(1)
        time.sleep(2)
        self.assertEqual(agent.stop(), 0)
        load.stop()
        self.assertTrue(workerd.alive())
        self.assertEqual(load.failed, 0, "requests failed while agents were killed")
        top = daemon.top("shop", "v1", begun - 10, time.time() + 10)
        # The profile that ran when an agent was killed is collected by the next one: the whole time is covered.
        covered = sum(p["coverage"] > 0 for p in daemon.get(
            f"/api/v1/timeline?worker=shop&type=cpu&from={begun:.0f}&to={time.time():.0f}&step=10s")["points"])
        points = int(time.time() - begun) // 10
        print(f"{top['samples']} samples over {time.time() - begun:.0f} s, {covered} of {points} buckets covered")
        self.assertGreaterEqual(covered, points - 1)
        self.assertGreater(top["samples"], 60)

    def statuses(self, daemon, sampled):
        """Exit statuses of a round of workerds terminated together."""
        workerds = [self.keep(ef.Workerd(self.path(f"w{i}"), {"acct:shop:v1": ef.workerd_source(WORK)}, name=f"workerd{i}"))
                    for i in range(SIGTERM_EACH)]
        agent = None
        loads = [ef.Load(w.url("acct:shop:v1"), 2, 60) for w in workerds]
        if sampled:
            agent = self.keep(ef.Agent(self.folder.name, daemon,
                                       [w.target("acct:shop:v1", "acct", f"shop{i}", "v1")
                                        for i, w in enumerate(workerds)]))
            daemon.wait_sampling(SIGTERM_EACH, 60)
        time.sleep(0.5)
        for load in loads:
            load.stop()
        for workerd in workerds:
            workerd.signal(signal.SIGTERM)
        result = [workerd.wait(30) for workerd in workerds]
        if agent:
            agent.stop()
        ef.wait_for(lambda: not [t for t in daemon.status()["targets"] if t["state"] == "sampling"], 90, "targets gone")
        return result

    def test_workerd_exits_as_without_sampling_on_sigterm_a_hundred_times(self):
        daemon = self.keep(ef.Everflamed(self.folder.name))
        plain = set(self.statuses(daemon, sampled=False))
        self.assertEqual(len(plain), 1, f"workerd itself is not steady: {plain}")
        sampled = []
        for _ in range(SIGTERM_ROUNDS):
            sampled += self.statuses(daemon, sampled=True)
        print(f"without sampling {plain}, with steady sampling {len(sampled)} × {set(sampled)}")
        self.assertEqual(set(sampled), plain)

    def test_workerd_without_the_exit_guard_is_sampled_slowly_and_says_so(self):
        daemon = self.keep(ef.Everflamed(self.folder.name))
        bare = self.keep(ef.Workerd(self.path("bare"), {"acct:shop:v1": ef.workerd_source(WORK)}, name="bare", guard=False))
        guarded = self.keep(ef.Workerd(self.path("guarded"), {"acct:shop:v2": ef.workerd_source(WORK)}, name="guarded"))
        agent = self.keep(ef.Agent(self.folder.name, daemon, [bare.target("acct:shop:v1", "acct", "shop", "v1"),
                                                              guarded.target("acct:shop:v2", "acct", "shop", "v2")]))
        messages = {t["version"]: t["message"] for t in daemon.wait_sampling(2)}
        self.assertIn("preload libeverflame-guard.so", messages["v1"])
        self.assertEqual(messages["v2"], "")
        agent.stop()
        self.assertEqual(agent.log_text().count("TARGET_UNGUARDED"), 1, agent.log_text())

    def test_node_exits_in_time_while_it_is_sampled(self):
        daemon = self.keep(ef.Everflamed(self.folder.name))
        for round_number in range(5):
            node = self.keep(ef.Node(self.path(f"n{round_number}"), ef.node_source(WORK), name=f"node{round_number}"))
            agent = self.keep(ef.Agent(self.folder.name, daemon, [node.target("acct", f"api{round_number}", "v1")]))
            daemon.wait_sampling(1)
            load = ef.Load(node.url(), 10, 30)
            time.sleep(2)
            load.stop()
            node.signal(signal.SIGTERM)
            begun = time.monotonic()
            self.assertEqual(node.wait(20), 0)
            print(f"node left {time.monotonic() - begun:.2f} s after SIGTERM")
            self.assertLess(time.monotonic() - begun, 6)  # its keep-alive connections have 5 s
            agent.stop()
            top = daemon.top(f"api{round_number}", "v1", time.time() - 60, time.time() + 10)
            self.assertGreater(top["samples"], 0, "the last profile of a process that exits is collected")

    def test_reload_of_a_worker_is_noticed(self):
        daemon = self.keep(ef.Everflamed(self.folder.name))
        workerd = self.keep(ef.Workerd(self.path("w"), {"acct:shop:v1": ef.workerd_source({"oldCode": 40})}, watch=True))
        agent = self.keep(ef.Agent(self.folder.name, daemon, [
            workerd.target("acct:shop:v1", "acct", "shop", "v1", rotation="5s")]))
        daemon.wait_sampling(1)
        begun = time.time()

        def names(version):
            done = daemon.cli("top", "--worker-id", "shop", "--version", version, "--from", f"{begun - 20:.0f}",
                              "--to", f"{time.time() + 10:.0f}", "--json", check=False)
            return {f["name"] for f in json.loads(done.stdout)["functions"]} if done.returncode == 0 else set()

        load = ef.Load(workerd.url("acct:shop:v1"), 20, 60)
        ef.wait_for(lambda: "oldCode" in names("v1"), 40, "the old code is seen")
        load.stop()
        with open(workerd.files["acct:shop:v1"], "w", encoding="utf-8") as file:
            file.write(ef.workerd_source({"newCode": 40}))
        time.sleep(3)
        load = ef.Load(workerd.url("acct:shop:v1"), 20, 60)

        def seen():
            daemon.post("/api/v1/collect?worker=shop")
            versions = daemon.get("/api/v1/versions?worker=shop")
            return [v["version"] for v in versions if v["version"].startswith("v1+")]

        versions = ef.wait_for(seen, 60, "the new code is kept apart from version v1")
        load.stop()
        agent.stop()
        print(f"v1 {sorted(names('v1'))}, {versions} {sorted(names(versions[0]))}")
        self.assertIn("newCode", names(versions[0]))
        self.assertNotIn("oldCode", names(versions[0]))
        self.assertIn("oldCode", names("v1"))
        self.assertNotIn("newCode", names("v1"))
        self.assertTrue(workerd.alive())


if __name__ == "__main__":
    ef.main_with_count(unittest)
