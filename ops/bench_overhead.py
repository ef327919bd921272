"""What sampling costs its targets, on real runtimes, at default settings.

Two processes of each runtime run under the same load for the whole time. In each period one of the two is sampled by the real
everflame-agent, in the next the other: the difference within a period cancels the machine's drift, the swap cancels
the difference between the processes. CPU is the process's exact CPU clock. Every period pays a whole attach and a
whole collection, so this is the dear case. Prints one JSON line per figure, as ef-bench does. Standard library only.
"""
import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import run as demo  # noqa: E402  (the demo's processes are the targets)

RATE = 25  # requests per second and process: about 0.25 of a core each with the demo's handlers


def cpu_ns(pid):
    """Exact CPU of a whole process: the kernel's clock id for it is (~pid << 3) | 2 (CPUCLOCK_SCHED)."""
    return time.clock_gettime_ns((~pid << 3) | 2)


def mean_and_ci(values):
    n = len(values)
    mean = sum(values) / n
    if n < 2:
        return mean, float("inf")
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1))
    t = {1: 12.7, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}.get(n - 1, 2.1)
    return mean, t * deviation / math.sqrt(n)


class Targets:
    def __init__(self, ef):
        self.ef = ef
        self.pairs = {"workerd": [], "node": []}

    def start(self):
        for index in range(2):
            one = demo.Demo(demo.Everflame(os.path.join(self.ef.var, f"pair{index}"), self.ef.http, None))
            os.makedirs(one.ef.var, exist_ok=True)
            one.start()
            self.ef.started += one.ef.started
            self.pairs["workerd"].append({"pid": one.pids["workerd"], "url": one.ports["v41"],
                                          "inspector": one.ports["workerd_inspector"]})
            self.pairs["node"].append({"pid": one.pids["node"], "url": one.ports["api"],
                                       "inspector": one.ports["node_inspector"]})

    def load(self, seconds):
        for runtime, pair in self.pairs.items():
            for index, target in enumerate(pair):
                plan = {"urls": [f"http://127.0.0.1:{target['url']}/"], "rate": RATE, "seconds": seconds}
                self.ef.start(f"load-{runtime}-{index}",
                              ["node", os.path.join(demo.DEMO, "load.mjs"), json.dumps(plan)])

    def agent_config(self, index, budget):
        return {
            "collector": {"ingest": f"tcp://127.0.0.1:{self.ef.ingest}", "sync": f"tcp://127.0.0.1:{self.ef.sync}"},
            "budget": budget,
            "spool": {"path": os.path.join(self.ef.var, "spool")},
            "targets": [
                {"runtime": "workerd", "inspector": f"127.0.0.1:{self.pairs['workerd'][index]['inspector']}",
                 "account": "bench", "worker": "workerd", "version": "v1", "service": "demo:shop:v41",
                 "pid": self.pairs["workerd"][index]["pid"]},
                {"runtime": "node", "inspector": f"127.0.0.1:{self.pairs['node'][index]['inspector']}",
                 "account": "bench", "worker": "node", "version": "v1", "pid": self.pairs["node"][index]["pid"]},
            ],
        }


def measure_period(ef, targets, sampled, seconds, budget):
    """CPU in ns of all four processes over one period in which index `sampled` of each pair is sampled; what the agent says it cost."""
    before = {(r, i): cpu_ns(t["pid"]) for r, pair in targets.pairs.items() for i, t in enumerate(pair)}
    begun = time.monotonic()
    agent = ef.start_agent(targets.agent_config(sampled, budget))
    status = []
    while time.monotonic() - begun < seconds:
        time.sleep(1)
        status = ef.get("/api/v1/status")["targets"] or status
    agent.stop()
    ef.started.remove(agent)
    wall = time.monotonic() - begun
    after = {(r, i): cpu_ns(t["pid"]) for r, pair in targets.pairs.items() for i, t in enumerate(pair)}
    used = {key: (after[key] - before[key]) / 1e9 for key in before}
    costs = {t["runtime"]: t["sampling_cost"] for t in status}
    return wall, used, costs


def main():
    parser = argparse.ArgumentParser(prog="ops/bench-overhead", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="length of the whole measurement [10]")
    parser.add_argument("--period", type=float, default=60, help="seconds until the sampled and the unsampled process swap [60]")
    options = parser.parse_args()
    budget = {"cpu_ratio": 0.01, "pause_ms_max": 100}
    var = tempfile.mkdtemp(prefix="everflame-bench-")
    base = demo.any_port()
    while not all(demo.port_free(base + i) for i in range(3)):
        base = demo.any_port()
    ef = demo.Everflame(var, base, None)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    periods = max(2, int(options.minutes * 60 / options.period) // 2 * 2)
    differences = {"workerd": [], "node": []}
    shares = {"workerd": [], "node": []}
    pauses = {"workerd": 0.0, "node": 0.0}
    accounted = {"workerd": 0.0, "node": 0.0}
    failed = False
    try:
        ef.start_daemon()
        targets = Targets(ef)
        targets.start()
        targets.load(periods * (options.period + 10) + 60)
        time.sleep(10)  # Warm-up: code is compiled, pools are filled.
        for period in range(periods):
            sampled = period % 2
            wall, used, costs = measure_period(ef, targets, sampled, options.period, budget)
            for runtime in differences:
                with_sampling, without = used[runtime, sampled], used[runtime, 1 - sampled]
                differences[runtime].append((with_sampling - without) / wall)
                shares[runtime].append(without / wall)
                cost = costs.get(runtime, {})
                pauses[runtime] = max(pauses[runtime], cost.get("pause_ms_max", 0.0))
                accounted[runtime] = max(accounted[runtime], cost.get("cpu_ratio", 0.0))
            print(f"period {period + 1} of {periods}: " + ", ".join(
                f"{r} {differences[r][-1] * 100:+.2f} % of a core" for r in differences), file=sys.stderr, flush=True)
        for runtime in differences:
            # A pair of periods, swapped, is one observation.
            pairs = [(a + b) / 2 for a, b in zip(differences[runtime][::2], differences[runtime][1::2])]
            mean, ci = mean_and_ci(pairs)
            busy = sum(shares[runtime]) / len(shares[runtime])
            for name, value, unit, limit in (
                    (f"overhead_{runtime}", mean, "cores", budget["cpu_ratio"]),
                    (f"overhead_{runtime}_accounted", accounted[runtime], "cores", budget["cpu_ratio"]),
                    (f"pause_{runtime}", pauses[runtime], "ms", float(budget["pause_ms_max"]))):
                line = {"name": name, "value": round(value, 6), "unit": unit, "limit": limit,
                        "ratio": round(value / limit, 4)}
                if name == f"overhead_{runtime}":
                    line.update(interval_95=[round(mean - ci, 6), round(mean + ci, 6)], busy_cores=round(busy, 4),
                                periods=periods, period_s=options.period)
                print(json.dumps(line), flush=True)
                failed |= value > limit
    except demo.Failure as failure:
        print(f"ops/bench-overhead: {failure}", file=sys.stderr)
        failed = True
    finally:
        ef.stop()
        shutil.rmtree(var, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
