"""Starts Everflame and, unless --no-demo, a demo: real workerd and Node.js under a bounded load with one CPU spike each.

Called by ops/run after the build. Ctrl-C (or SIGTERM) stops all it started, in order, and nothing else.
Standard library only.
"""
import argparse
import datetime
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BIN = os.path.join(ROOT, "build/bin")
GUARD = os.path.join(ROOT, "build/lib/libeverflame-guard.so")  # see sampler/v8/inside/README.md
DEMO = os.path.join(ROOT, "ops/demo")
WORKERD = os.path.join(DEMO, "node_modules/@cloudflare/workerd-linux-64/bin/workerd")
# Requests per second of each service: together about 0.4 of a core, whatever the machine has.
RATES = {"v41": 10, "v42": 8, "api": 10}
SPIKE_SECONDS = 3


class Failure(Exception):
    """A sentence for the user."""


def say(text=""):
    print(text, flush=True)


def iso(seconds):
    at = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


class Process:
    """One child in its own process group, so that the terminal's Ctrl-C reaches only us and we stop children in order."""

    def __init__(self, name, args, log_path, **kwargs):
        self.name = name
        self.log_path = log_path
        self.log = open(log_path, "wb")
        self.child = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=kwargs.pop("stdout", self.log),
                                      stderr=self.log, start_new_session=True, **kwargs)

    def alive(self):
        return self.child.poll() is None

    def log_tail(self):
        with open(self.log_path, "rb") as file:
            return b"\n".join(file.read().splitlines()[-8:]).decode("utf-8", "replace")

    def stop(self, wait=20):
        if self.alive():
            self.child.send_signal(signal.SIGTERM)
            try:
                self.child.wait(wait)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()
        self.log.close()


def port_free(port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def any_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Everflame:
    def __init__(self, var, base_port, flush):
        self.var = var
        self.http, self.ingest, self.sync = base_port, base_port + 1, base_port + 2
        self.url = f"http://127.0.0.1:{self.http}"
        self.flush = flush
        self.started = []  # in start order

    def start(self, name, args, **kwargs):
        process = Process(name, args, os.path.join(self.var, f"{name}.log"), **kwargs)
        self.started.append(process)
        return process

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return json.load(answer)

    def start_daemon(self):
        for port in (self.http, self.ingest, self.sync):
            if not port_free(port):
                raise Failure(f"port {port} on 127.0.0.1 is in use, perhaps by another everflamed; stop that one, "
                              f"or choose other ports with ops/run --port N")
        args = [os.path.join(BIN, "everflamed"), "--data", os.path.join(self.var, "data"),
                "--http", f"127.0.0.1:{self.http}", "--ingest", f"tcp://127.0.0.1:{self.ingest}",
                "--sync", f"tcp://127.0.0.1:{self.sync}"]
        if self.flush:
            args += ["--flush-interval", self.flush]
        daemon = self.start("everflamed", args)
        self.wait(daemon, lambda: self.get("/api/v1/status"), 30)

    def start_agent(self, config):
        path = os.path.join(self.var, "agent.yaml")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file, indent=1)  # JSON is YAML too.
        return self.start("everflame-agent", [os.path.join(BIN, "everflame-agent"), "--config", path])

    def wait(self, process, ready, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if not process.alive():
                raise Failure(f"{process.name} ended with status {process.child.returncode}; its last words:\n"
                              f"{process.log_tail()}")
            try:
                result = ready()
                if result:
                    return result
            except (urllib.error.URLError, OSError, ValueError):
                pass
            time.sleep(0.1)
        raise Failure(f"{process.name} was not ready within {seconds} s; its last words:\n{process.log_tail()}")

    def cli(self, *args, check=True):
        done = subprocess.run([os.path.join(BIN, "everflame"), *args], text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env={**os.environ, "EVERFLAME_URL": self.url})
        if check and done.returncode != 0:
            raise Failure(f"everflame {' '.join(args)}: exit {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def stop(self):
        for process in reversed(self.started):
            process.stop()


class Demo:
    """workerd with two versions of one Worker, and a Node.js service."""

    def __init__(self, ef):
        self.ef = ef
        self.ports = {}
        self.spikes = []  # (what, after seconds)

    def start(self):
        if not os.access(WORKERD, os.X_OK):
            raise Failure("workerd is not installed; run ops/install")
        folder = os.path.join(self.ef.var, "demo")
        os.makedirs(folder, exist_ok=True)
        self.ports = {"v41": any_port(), "v42": any_port(), "api": any_port(), "node_inspector": any_port()}
        with open(os.path.join(DEMO, "shop.capnp.in"), encoding="utf-8") as file:
            text = file.read()
        for version in ("v41", "v42"):
            text = text.replace(f"PORT_{version.upper()}", str(self.ports[version]))
        with open(os.path.join(folder, "shop.capnp"), "w", encoding="utf-8") as file:
            file.write(text)
        with open(os.path.join(DEMO, "shop.js"), "rb") as source, \
                open(os.path.join(folder, "shop.js"), "wb") as target:
            target.write(source.read())
        # Port 0 and the control pipe are the only safe way: with a busy inspector port workerd would never serve.
        read_end, write_end = os.pipe()
        workerd = self.ef.start("workerd", [WORKERD, "serve", "shop.capnp", "--inspector-addr=127.0.0.1:0",
                                            f"--control-fd={write_end}"], cwd=folder, pass_fds=(write_end,),
                                env={**os.environ, "LD_PRELOAD": GUARD})
        os.close(write_end)
        self.ports["workerd_inspector"] = self.inspector_port(workerd, read_end)
        node = self.ef.start("node", ["node", f"--inspect=127.0.0.1:{self.ports['node_inspector']}",
                                      os.path.join(DEMO, "api.mjs")],
                             env={**os.environ, "PORT": str(self.ports["api"])})
        self.ef.wait(node, lambda: not port_free(self.ports["api"]), 20)
        self.pids = {"workerd": workerd.child.pid, "node": node.child.pid}

    def inspector_port(self, workerd, read_end):
        os.set_blocking(read_end, False)
        seen = b""

        def look():
            nonlocal seen
            try:
                seen += os.read(read_end, 65536)
            except BlockingIOError:
                pass
            events = [json.loads(line) for line in seen.decode().splitlines() if line.endswith("}")]
            ports = [e["port"] for e in events if e.get("event") == "listen-inspector"]
            return ports[0] if ports and sum(e.get("event") == "listen" for e in events) == 2 else None

        port = self.ef.wait(workerd, look, 20)
        os.close(read_end)
        return port

    def agent_config(self):
        return {
            "collector": {"ingest": f"tcp://127.0.0.1:{self.ef.ingest}", "sync": f"tcp://127.0.0.1:{self.ef.sync}"},
            "region": "local",
            "budget": {"cpu_ratio": 0.01, "pause_ms_max": 100},
            "spool": {"path": os.path.join(self.ef.var, "spool")},
            "mappings": [{"service": "{account}:{worker}:{version}"}],
            "scans": [{"runtime": "workerd", "inspector": f"127.0.0.1:{self.ports['workerd_inspector']}",
                       "heap": "alloc"}],
            "targets": [{"runtime": "node", "inspector": f"127.0.0.1:{self.ports['node_inspector']}",
                         "account": "demo", "worker": "api", "version": "v7", "pid": self.pids["node"]}],
        }

    def start_load(self, seconds, spike_from, spike_to):
        url = {name: f"http://127.0.0.1:{self.ports[name]}/" for name in RATES}
        spike_at = {"v41": random.uniform(spike_from, spike_to), "api": random.uniform(spike_from, spike_to)}
        for name in RATES:
            plan = {"urls": [url[name]], "rate": RATES[name], "seconds": seconds, "spikes": []}
            if name in spike_at:
                plan["spikes"] = [{"url": url[name] + "spike", "after": spike_at[name], "seconds": SPIKE_SECONDS}]
            self.ef.start(f"load-{name}", ["node", os.path.join(DEMO, "load.mjs"), json.dumps(plan)])
        return spike_at


def no_demo_config(ef):
    return {
        "collector": {"ingest": f"tcp://127.0.0.1:{ef.ingest}", "sync": f"tcp://127.0.0.1:{ef.sync}"},
        "region": "local",
        "budget": {"cpu_ratio": 0.01, "pause_ms_max": 100},
        "spool": {"path": os.path.join(ef.var, "spool")},
        "mappings": [{"service": "{account}:{worker}:{version}"}],
        "scans": [{"runtime": "workerd", "inspector": "127.0.0.1:9229"}],
    }


def print_running(ef, demo):
    say(f"\nEverflame runs. HTTP API {ef.url}, data in {os.path.relpath(ef.var)}/data, logs in "
        f"{os.path.relpath(ef.var)}/*.log")
    for process in ef.started:
        if not process.name.startswith("load"):
            say(f"  {process.name:<16} pid {process.child.pid}")
    port = "" if ef.http == 4680 else f"EVERFLAME_URL={ef.url} "
    everflame = port + os.path.relpath(os.path.join(BIN, "everflame"))
    say("\nTry, in another terminal (the first profiles arrive within about a minute):")
    say(f"  {everflame} status")
    if demo:
        say(f"  {everflame} top --worker-id shop --version v42 --from now-5m --to now")
        say(f"  {everflame} timeline --worker-id api --from now-5m --to now --step 10s")
    else:
        say(f"  {everflame} workers list")
        say(f"  {everflame} import PROFILE.cpuprofile --worker-id demo --version v1")
    say("\nCtrl-C stops all of it.")


def selector(worker, version):
    return ["--worker-id", worker, "--version", version]


def check_top(ef, worker, version, function, start, end):
    """Prints the top functions; the known hot function must lead all functions of our own code by self time."""
    args = ["top", *selector(worker, version), "--from", iso(start), "--to", iso(end)]
    say(f"\n$ everflame {' '.join(args)} --limit 8")
    say(ef.cli(*args, "--limit", "8"))
    answer = json.loads(ef.cli(*args, "--json"))
    if answer["samples"] < 20:
        raise Failure(f"{worker} {version}: only {answer['samples']} samples")
    shares = {f["name"]: f["total"]["share"] for f in answer["functions"]}
    rivals = {n: s for n, s in shares.items() if n in ("renderCatalog", "priceBasket", "signSession", "buildReport",
                                                      "validateToken", "keepGarbage")}
    if not rivals or max(rivals, key=rivals.get) != function:
        raise Failure(f"{worker} {version}: the hot function '{function}' does not lead: {rivals}")


def check_spike(ef, worker, version, function, start, end):
    """Finds the spike from the stored data alone: the bucket with the most CPU, and what ran in it."""
    answer = json.loads(ef.cli("timeline", *selector(worker, version), "--from", iso(start), "--to", iso(end),
                               "--step", "10s", "--json"))
    points = [p for p in answer["points"] if p["samples"] > 0]
    if len(points) < 3:
        raise Failure(f"{worker} {version}: the timeline has only {len(points)} points with samples")
    best = None
    for point in points:
        args = ["top", *selector(worker, version), "--from", point["from"], "--to", point["to"], "--json"]
        top = json.loads(ef.cli(*args))
        hot = [f for f in top["functions"] if f["name"] == function]
        if hot and (best is None or hot[0]["total"]["samples"] > best[1]["total"]["samples"]):
            best = (point, hot[0])
    if best is None:
        raise Failure(f"{worker} {version}: the spike's function '{function}' is nowhere in the stored data")
    point, hot = best
    say(f"spike in {worker} {version}: {point['from']} to {point['to']}, {function} with "
        f"{hot['total']['share'] * 100:.0f} % of the bucket's CPU "
        f"({hot['total']['low'] * 100:.0f} to {hot['total']['high'] * 100:.0f} %, {hot['total']['samples']} samples)")
    if hot["total"]["share"] < 0.15:
        raise Failure(f"{worker} {version}: the spike's function has only {hot['total']['share']:.2f} of its bucket")
    return point


def report_once(ef, start, end, spike_wall, status):
    for worker, version, function in (("shop", "v41", "renderCatalog"), ("shop", "v42", "renderCatalog"),
                                      ("api", "v7", "buildReport")):
        check_top(ef, worker, version, function, start, end)
    for (worker, version, function), truth in ((("shop", "v41", "recountInventory"), spike_wall["v41"]),
                                               (("api", "v7", "reindexEverything"), spike_wall["api"])):
        point = check_spike(ef, worker, version, function, start, end)
        found = datetime.datetime.fromisoformat(point["from"].replace("Z", "+00:00")).timestamp()
        if not found - 10 <= truth <= found + 20:
            raise Failure(f"{worker}: the spike was at {iso(truth)}, but found at {point['from']}")
    targets = status["targets"]
    if len(targets) < 3:
        raise Failure(f"the status names {len(targets)} targets, not 3")
    for target in targets:
        cost = target["sampling_cost"]
        say(f"sampling cost {target['worker']} {target['version']} ({target['runtime']}): "
            f"{cost['cpu_ratio'] * 100:.2f} % of a core, longest pause {cost['pause_ms_max']:.1f} ms")
    final = ef.get("/api/v1/status")
    samples, disk = final["samples"], final["disk"]
    say(f"samples: {samples['published']} published, {samples['stored']} stored, {samples['lost']} lost, "
        f"{samples['duplicate']} duplicate")
    say(f"stored: {disk['bytes_per_sample']:.2f} bytes per sample in blocks, {disk['bytes']} bytes on disk in all")
    if samples["stored"] <= 0 or samples["lost"] != 0 or samples["published"] != samples["stored"]:
        raise Failure(f"samples published, stored and lost do not agree: {samples}")
    if disk["bytes_per_sample"] <= 0:
        raise Failure("bytes per sample are missing")


def run_once(ef, demo):
    seconds = 62
    agent = ef.start_agent(demo.agent_config())
    ef.wait(agent, lambda: sum(t["state"] == "sampling" for t in ef.get("/api/v1/status")["targets"]) >= 3, 30)
    start = time.time()
    spike_after = demo.start_load(seconds, 15, 40)
    say(f"sampling 3 targets under load for {seconds} s; two CPU spikes of {SPIKE_SECONDS} s come unannounced …")
    while time.time() < start + seconds:
        for process in ef.started:
            if not process.alive() and not process.name.startswith("load"):
                raise Failure(f"{process.name} ended; its last words:\n{process.log_tail()}")
        time.sleep(0.5)
    status = ef.get("/api/v1/status")
    agent.stop()  # In order: collects the running profiles and waits until they are on disk.
    end = time.time() + 10
    report_once(ef, start - 10, end, {name: start + after for name, after in spike_after.items()}, status)
    say("\nall of it was there: top functions, both spikes, costs, bytes per sample")


def run_forever(ef, demo):
    if demo:
        ef.start_agent(demo.agent_config())
        demo.start_load(7 * 86400, 30, 90)
    else:
        ef.start_agent(no_demo_config(ef))
    print_running(ef, demo)
    while True:
        for process in ef.started:
            if not process.alive() and not process.name.startswith("load"):
                raise Failure(f"{process.name} ended with status {process.child.returncode}; its last words:\n"
                              f"{process.log_tail()}")
        time.sleep(0.5)


def main():
    parser = argparse.ArgumentParser(prog="ops/run", description=__doc__)
    parser.add_argument("--no-demo", action="store_true", help="collector and agent alone")
    parser.add_argument("--once", action="store_true",
                        help="play the demo for at most 90 s, print and check what a user wants to see, and end")
    parser.add_argument("--port", type=int, default=4680, help="HTTP port; ingest and sync are the next two [4680]")
    parser.add_argument("--var", default=os.path.join(ROOT, "var"), help="folder of data, spool and logs [./var]")
    options = parser.parse_args()
    if options.once and options.no_demo:
        parser.error("--once plays the demo; it does not go with --no-demo")
    var = os.path.abspath(os.path.join(options.var, f"once-{os.getpid()}") if options.once else options.var)
    os.makedirs(var, exist_ok=True)
    base = options.port
    if options.once and not all(port_free(base + i) for i in range(3)):
        base = any_port()
        while not all(port_free(base + i) for i in range(3)):
            base = any_port()
    ef = Everflame(var, base, "2s" if options.once else None)

    def stop(number, frame):
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)  # Also when started in the background of a shell, which ignores it.
    try:
        ef.start_daemon()
        demo = None if options.no_demo else Demo(ef)
        if demo:
            demo.start()
        if options.once:
            run_once(ef, demo)
        else:
            run_forever(ef, demo)
    except Failure as failure:
        print(f"ops/run: {failure}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        say("\nstopping …")
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        ef.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
