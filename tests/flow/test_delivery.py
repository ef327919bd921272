"""Nothing acknowledged is lost, nothing counts twice: kills, stops, a full disk and a cut network under load.

Truth: the publishers' journals (tests/flow/ef_load.c). After each story: done ≤ stored + lost ≤ begun, and the stored sum is the same
from the delivery counters and from the stored stacks themselves.
"""
import json
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ef_runtimes as ef  # noqa: E402

PUBLISHERS = 8


class Load(ef.Child):
    """A life of the synthetic publishers. The spool folder outlives it; each life has journals of its own."""

    lives = 0

    def __init__(self, folder, daemon, seconds, spool=True, prefix=(), **options):
        Load.lives += 1
        self.journal = os.path.join(folder, f"journal-{Load.lives}")
        plan = {"ingest": daemon.ingest, "sync": daemon.sync, "journal": self.journal, "seconds": seconds,
                "publishers": PUBLISHERS, "rate": 400, "seed": Load.lives * 1000, **options}
        if spool:
            plan["spool"] = os.path.join(folder, "spool")
        args = [*prefix, os.path.join(ef.BIN, "ef-load")]
        for key, value in plan.items():
            args += [f"--{key.replace('_', '-')}", str(value)]
        super().__init__(f"load{Load.lives}", args, folder, stdout=subprocess.PIPE)

    def finish(self, seconds=120):
        out, _ = self.process.communicate(timeout=seconds)
        return [json.loads(line) for line in out.decode().splitlines()]

    def journals(self):
        """Sums over publishers: fragments begun, samples begun, fragments done, samples done."""
        sums = [0, 0, 0, 0]
        for index in range(PUBLISHERS):
            path = f"{self.journal}.{index}"
            if os.path.exists(path) and os.path.getsize(path) == 32:
                with open(path, "rb") as file:
                    sums = [a + b for a, b in zip(sums, struct.unpack("<4Q", file.read()))]
        return sums


class Delivery(unittest.TestCase):
    def setUp(self):
        self.seed = int(os.environ.get("EF_TEST_SEED", str(int(time.time() * 1000) % 1000000)))
        print(f"EF_TEST_SEED={self.seed}")
        self.random = random.Random(self.seed)
        self.temp = tempfile.TemporaryDirectory()
        self.folder = self.temp.name
        self.children = []
        self.cleanups = []
        self.begun = time.time()

    def tearDown(self):
        for child in reversed(self.children):
            child.kill()
        for cleanup in reversed(self.cleanups):
            cleanup()
        self.temp.cleanup()

    def keep(self, child):
        self.children.append(child)
        return child

    def start_daemon(self, **options):
        return self.keep(ef.Everflamed(self.folder, **options))

    def check(self, daemon, loads, lost_allowed=False):
        """The books agree, exactly: journals against delivery counters against the stacks in the store."""
        begun_fragments, begun, done_fragments, done = [sum(x) for x in zip(*(load.journals() for load in loads))]

        def settled():
            samples = daemon.status()["samples"]
            return samples if samples["stored"] + samples["lost"] >= done else None

        try:
            samples = ef.wait_for(settled, 60, "everything done is stored or reported lost")
        except AssertionError as error:
            raise AssertionError(f"{error}: done {done}, {daemon.status()['samples']}") from None
        top = daemon.top("load", None, self.begun - 3600, time.time() + 10)
        print(f"begun {begun}, done {done}, stored {samples['stored']}, lost {samples['lost']}, duplicates "
              f"dropped {samples['duplicate']}, in the stacks {top['samples']}")
        self.assertEqual(top["samples"], samples["stored"], "stacks and delivery counters disagree")
        self.assertGreaterEqual(samples["stored"] + samples["lost"], done)
        self.assertLessEqual(samples["stored"] + samples["lost"], begun)
        if not lost_allowed:
            self.assertEqual(samples["lost"], 0)
        if begun == done:
            self.assertEqual(samples["stored"] + samples["lost"], done)
        self.assertGreater(done, 0)
        return samples

    def test_everything_arrives_when_nothing_happens(self):
        daemon = self.start_daemon()
        load = self.keep(Load(self.folder, daemon, 5))
        self.assertTrue(all(r["drained"] for r in load.finish()))
        self.check(daemon, [load])

    def test_collector_killed_twenty_times_under_load(self):
        daemon = self.start_daemon()
        load = self.keep(Load(self.folder, daemon, 40, drain_ms=60000))
        for _ in range(20):
            time.sleep(self.random.uniform(0.3, 2.5))
            daemon.kill()
            daemon = self.keep(daemon.restart())
        results = load.finish(180)
        self.assertTrue(all(r["drained"] for r in results), results)
        self.check(daemon, [load])

    def test_publisher_killed_ten_times_and_its_spool_is_sent_by_the_next_life(self):
        daemon = self.start_daemon()
        loads = []
        for _ in range(10):
            loads.append(self.keep(Load(self.folder, daemon, 60)))
            time.sleep(self.random.uniform(0.5, 2.0))
            loads[-1].kill()
        loads.append(self.keep(Load(self.folder, daemon, 1, drain_ms=60000)))
        self.assertTrue(all(r["drained"] for r in loads[-1].finish()))
        self.check(daemon, loads)

    def test_both_killed_ten_times(self):
        daemon = self.start_daemon()
        loads = []
        for _ in range(10):
            loads.append(self.keep(Load(self.folder, daemon, 60)))
            time.sleep(self.random.uniform(0.5, 2.0))
            first, second = (loads[-1], daemon) if self.random.random() < 0.5 else (daemon, loads[-1])
            first.kill()
            second.kill()
            daemon = self.keep(daemon.restart())
        loads.append(self.keep(Load(self.folder, daemon, 1, drain_ms=60000)))
        self.assertTrue(all(r["drained"] for r in loads[-1].finish()))
        self.check(daemon, loads)

    def test_stopped_collector_goes_on_where_it_was(self):
        daemon = self.start_daemon()
        load = self.keep(Load(self.folder, daemon, 14, drain_ms=60000))
        for _ in range(2):
            time.sleep(2)
            daemon.signal(signal.SIGSTOP)
            time.sleep(3)
            daemon.signal(signal.SIGCONT)
        self.assertTrue(all(r["drained"] for r in load.finish(120)))
        self.check(daemon, [load])

    def test_spool_bound_forces_the_oldest_out_and_says_so(self):
        daemon = self.start_daemon()
        load = self.keep(Load(self.folder, daemon, 12, drain_ms=60000, spool_max=400000))
        time.sleep(2)
        daemon.kill()
        time.sleep(7)  # About 8 × 400 fragments/s × 200 B a second: far above the bound.
        daemon = self.keep(daemon.restart())
        results = load.finish(120)
        self.assertTrue(all(r["drained"] for r in results), results)
        samples = self.check(daemon, [load], lost_allowed=True)
        self.assertGreater(samples["lost"], 0)
        # What was forced out although it had arrived (its ack had not) is not lost: the collector knows.
        self.assertLessEqual(samples["lost"], sum(r["samples_lost"] for r in results))
        self.assertIn("lost", daemon.cli("status").stdout)

    def test_full_disk_loses_nothing_and_recovers_by_itself(self):
        mount = os.path.join(self.folder, "small")
        os.mkdir(mount)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", mount], capture_output=True, text=True)
        if done.returncode != 0:
            self.skipTest(f"no right to mount a tmpfs: {done.stderr.strip()}")
        self.cleanups.append(lambda: subprocess.run(["umount", "-l", mount], check=False))
        daemon = self.start_daemon(data=os.path.join(mount, "data"))
        filler = os.path.join(mount, "filler")

        def full():
            """Fills what is free; the store goes on for some megabytes in files it has already allocated."""
            with open(filler, "ab", buffering=0) as file:
                try:
                    while True:
                        file.write(b"x" * 65536)
                except OSError:
                    pass
            return "STORE_WRITE_FAILED" in daemon.log_text()

        full()
        # Many versions with many stacks: the definitions alone are more than those megabytes.
        load = self.keep(Load(self.folder, daemon, 30, drain_ms=150000, spool_max=1 << 30, rate=1000, stacks=20000,
                              versions=13))
        ef.wait_for(full, 120, "the disk is full")
        for _ in range(20):  # Whatever the store gives back when it tries again is filled too.
            full()
            time.sleep(0.5)
            self.assertTrue(daemon.alive(), daemon.log_text()[-1500:])
        daemon.status()
        os.unlink(filler)
        results = load.finish(300)
        self.assertTrue(all(r["drained"] for r in results), (results, daemon.log_text()[-1500:]))
        self.assertIn("STORE_WRITE_RECOVERED", daemon.log_text())
        self.check(daemon, [load])

    def test_cut_network_loses_nothing(self):
        space = f"ef{os.getpid() % 100000}"
        host, peer = f"v{space}a"[:15], f"v{space}b"[:15]

        def run(*args, check=True):
            return subprocess.run(["ip", *args], capture_output=True, text=True, check=check)

        if run("netns", "add", space, check=False).returncode != 0:
            self.skipTest("no right to make a network namespace")
        self.cleanups.append(lambda: run("netns", "del", space, check=False))
        run("link", "add", host, "type", "veth", "peer", "name", peer, "netns", space)
        self.cleanups.append(lambda: run("link", "del", host, check=False))
        run("addr", "add", "10.213.77.1/24", "dev", host)
        run("link", "set", host, "up")
        run("-n", space, "addr", "add", "10.213.77.2/24", "dev", peer)
        run("-n", space, "link", "set", peer, "up")
        run("-n", space, "link", "set", "lo", "up")
        daemon = self.start_daemon(host="10.213.77.1", insecure="true")
        load = self.keep(Load(self.folder, daemon, 25, prefix=("ip", "netns", "exec", space), drain_ms=90000))
        for _ in range(3):
            time.sleep(3)
            run("link", "set", host, "down")
            time.sleep(3)
            run("link", "set", host, "up")
        results = load.finish(180)
        self.assertTrue(all(r["drained"] for r in results), results)
        self.check(daemon, [load])

    def test_restarted_collector_answers_the_same(self):
        """A query after kill -9 and reopening gives the same bytes."""
        daemon = self.start_daemon()
        load = self.keep(Load(self.folder, daemon, 3))
        load.finish()
        # A range that ends in the past: of a bucket that is still open only the elapsed part counts.
        end = int(time.time()) // 10 * 10 + 10
        ef.wait_for(lambda: time.time() > end, 15, "the bucket is closed")
        path = f"/api/v1/top?worker=load&from={self.begun - 60:.0f}&to={end}"
        before = daemon.get(path, raw=True)
        daemon.kill()
        daemon = self.keep(daemon.restart())
        self.assertEqual(daemon.get(path, raw=True), before)

    def test_late_data_are_normal(self):
        daemon = self.start_daemon()
        load = self.keep(Load(self.folder, daemon, 2, back_ms=50 * 60 * 1000))
        load.finish()
        samples = self.check(daemon, [load])
        self.assertEqual(samples["late"], 0)
        later = self.keep(Load(self.folder, daemon, 2, back_ms=2 * 3600 * 1000))
        later.finish()
        self.begun -= 2 * 3600
        samples = self.check(daemon, [load, later])
        self.assertEqual(samples["late"], later.journals()[3])


if __name__ == "__main__":
    ef.main_with_count(unittest)
