"""Twenty CPU spikes of 3 s at random times, unknown to the agent, in workerd and in Node.js at default settings: each is found
afterwards by asking for its 10 s bucket.
"""
import os
import random
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ef_runtimes as ef  # noqa: E402

COUNT = 20
SPIKE_SECONDS = 3
QUIET = {"serveQuietly": 30, "renderQuietly": 20}


class Spikes(unittest.TestCase):
    def spikes(self, url, seed, times):
        """Random gaps of 6 to 16 s: every spike has a bucket of its own neighbourhood, at any phase."""
        chance = random.Random(seed)
        for _ in range(COUNT):
            time.sleep(chance.uniform(6, 16))
            times.append(ef.burn(url, SPIKE_SECONDS))

    def found(self, daemon, worker, begun, ended):
        """The bucket that holds most of the spike, asked for as a user would; the spike's function must lead it."""
        bucket = int((begun + ended) / 2) // 10 * 10
        top = daemon.top(worker, "v1", bucket, bucket + 10)
        rows = {f["name"]: f["total"] for f in top["functions"]}
        quiet = max([rows[n]["samples"] for n in QUIET if n in rows], default=0)
        spike = rows.get("burnCpu", {"samples": 0})["samples"]
        # At least half of 3 s lies in the bucket; at 50 ms ticks that is 30 samples.
        return spike >= 10 and spike > quiet, (bucket, spike, quiet, top["samples"])

    def test_each_of_twenty_spikes_is_found_in_its_bucket(self):
        seed = int(os.environ.get("EF_TEST_SEED", str(int(time.time()))))
        print(f"EF_TEST_SEED={seed}")
        with tempfile.TemporaryDirectory() as folder:
            daemon = ef.Everflamed(folder)
            workerd = ef.Workerd(os.path.join(folder, "w"), {"acct:shop:v1": ef.workerd_source(QUIET)})
            node = ef.Node(os.path.join(folder, "n"), ef.node_source(QUIET))
            agent = None
            try:
                agent = ef.Agent(folder, daemon, [workerd.target("acct:shop:v1", "acct", "shop", "v1"),
                                                  node.target("acct", "api", "v1")],
                                 budget={"cpu_ratio": 0.01, "pause_ms_max": 100})
                daemon.wait_sampling(2)
                loads = [ef.Load(url, 5, 900) for url in (workerd.url("acct:shop:v1"), node.url())]
                times = {"shop": [], "api": []}
                threads = [threading.Thread(target=self.spikes, args=(url, seed + i, times[worker]), daemon=True)
                           for i, (worker, url) in enumerate((("shop", workerd.url("acct:shop:v1", "/spike")),
                                                              ("api", node.url("/spike"))))]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join(COUNT * 25 + 60)
                for load in loads:
                    load.stop()
                self.assertEqual(agent.stop(60), 0, agent.log_text()[-2000:])
                for worker, spikes in times.items():
                    self.assertEqual(len(spikes), COUNT)
                    results = [self.found(daemon, worker, *spike) for spike in spikes]
                    missed = [detail for ok, detail in results if not ok]
                    print(f"{worker}: {COUNT - len(missed)} of {COUNT} spikes found; samples of the spike's function "
                          f"{[detail[1] for _, detail in results]}")
                    self.assertEqual(missed, [], f"{worker}: (bucket, spike samples, quiet samples, all)\n"
                                                 + agent.log_text()[-3000:])
            finally:
                for child in [c for c in (agent, workerd, node, daemon) if c is not None]:
                    child.stop()


if __name__ == "__main__":
    ef.main_with_count(unittest)
