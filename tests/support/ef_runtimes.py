"""Real runtimes for the flow tests: workerd and Node.js services with known work, the agent, a bounded load.

Every process is started here and stopped by its pid; ports are free ones of 127.0.0.1. Standard library only.
"""
import json
import os
import random
import signal
import socket
import subprocess
import threading
import time
import urllib.request

ROOT = os.environ.get("EF_SOURCE_DIR") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("EF_BIN_DIR", os.path.join(ROOT, "build/bin"))
GUARD = os.path.join(os.path.dirname(BIN), "lib/libeverflame-guard.so")
WORKERD = os.path.join(ROOT, "ops/demo/node_modules/@cloudflare/workerd-linux-64/bin/workerd")

# A dead branch too big to inline keeps the frame of a function in V8's profiles.
TOO_BIG = "if (n < 0) return [" + ",".join(["n"] * 90) + "].length;"


def work_source(functions, spike):
    """JavaScript of `functions` {name: units of equal work per request} and of one more function `spike` that runs for 20 ms."""
    text = ["function spin(n, seed) { let x = seed | 0; for (let i = 0; i < n * 20000; i++) "
            "{ x = (x * 1103515245 + 12345) | 0; x ^= x >>> 7; } return x; }"]
    for name in [*functions, spike]:
        text.append(f"function {name}(n) {{ {TOO_BIG} let r = 0; "
                    f"for (let i = 0; i < n; i++) r ^= spin(1, i); return r; }}")
    calls = " ^ ".join(f"{name}({units})" for name, units in functions.items())
    text.append(f"function handle(path) {{ if (path === '/spike') return {spike}(500); return {calls}; }}")
    return "\n".join(text)


def workerd_source(functions, spike="burnCpu"):
    return work_source(functions, spike) + """
export default { async fetch(request) { return new Response(String(handle(new URL(request.url).pathname))); } };
"""


def node_source(functions, spike="burnCpu"):
    return work_source(functions, spike) + """
const http = require("node:http");
const server = http.createServer((request, response) => response.end(String(handle(request.url))));
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
process.on("SIGTERM", () => server.close(() => process.exit(0)));
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(condition, seconds, what):
    """Polls until the condition gives something true; fails with `what` otherwise."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        result = condition()
        if result:
            return result
        time.sleep(0.05)
    raise AssertionError(f"{what}: not within {seconds} s")


class Child:
    def __init__(self, name, args, folder, **kwargs):
        self.name = name
        self.log_path = os.path.join(folder, f"{name}.log")
        self.log = open(self.log_path, "ab")
        kwargs.setdefault("stdout", self.log)
        self.process = subprocess.Popen(args, stdin=subprocess.DEVNULL, stderr=self.log, start_new_session=True,
                                        **kwargs)
        self.pid = self.process.pid

    def alive(self):
        return self.process.poll() is None

    def log_text(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self, seconds=30):
        return self.process.wait(seconds)

    def stop(self, seconds=30):
        """SIGTERM, then SIGKILL when that is not obeyed; gives the exit status."""
        if self.alive():
            self.signal(signal.SIGTERM)
            try:
                self.wait(seconds)
            except subprocess.TimeoutExpired:
                self.signal(signal.SIGKILL)
                self.wait()
        self.close_files()
        return self.process.returncode

    def kill(self):
        if self.alive():
            self.signal(signal.SIGKILL)
            self.wait()
        self.close_files()

    def close_files(self):
        self.log.close()
        if self.process.stdout:
            self.process.stdout.close()


class Workerd(Child):
    """services: {service name: JavaScript}. ports[name] is the service's HTTP port, inspector the inspector's. guard: started with
    the exit guard, as the README asks for. watch: workerd executes itself anew when a file changes; its ports are fixed ones, because 0
    would give others then, and the control pipe stays open, because it reports the ports again."""

    def __init__(self, folder, services, name="workerd", inspector=True, watch=False, guard=True):
        os.makedirs(folder, exist_ok=True)
        self.folder = folder
        self.files = {}
        parts, sockets = [], []

        def port():
            return free_port() if watch else 0  # 0: a busy inspector port would keep workerd from ever serving.

        for index, (service, source) in enumerate(services.items()):
            module = f"worker{index}.js"
            self.files[service] = os.path.join(folder, module)
            with open(self.files[service], "w", encoding="utf-8") as file:
                file.write(source)
            parts.append(f'(name = "{service}", worker = (modules = [(name = "{module}", esModule = embed "{module}")], '
                         f'compatibilityDate = "2026-01-01"))')
            sockets.append(f'(name = "s{index}", address = "127.0.0.1:{port()}", http = (), service = "{service}")')
        with open(os.path.join(folder, "config.capnp"), "w", encoding="utf-8") as file:
            file.write('using Workerd = import "/workerd/workerd.capnp";\nconst config :Workerd.Config = (\n'
                       f"services = [{', '.join(parts)}],\nsockets = [{', '.join(sockets)}]);\n")
        read_end, write_end = os.pipe()
        self.control = None
        args = [WORKERD, "serve", "config.capnp", f"--control-fd={write_end}"]
        if inspector:
            args.append(f"--inspector-addr=127.0.0.1:{port()}")
        if watch:
            args.append("--watch")
        environment = {**os.environ, **({"LD_PRELOAD": GUARD} if guard else {})}
        super().__init__(name, args, folder, cwd=folder, pass_fds=(write_end,), env=environment)
        os.close(write_end)
        seen = b""
        os.set_blocking(read_end, False)

        def events():
            nonlocal seen
            try:
                seen += os.read(read_end, 65536)
            except BlockingIOError:
                pass
            if not self.alive():
                raise AssertionError(f"workerd ended at once: {self.log_text()[-500:]}")
            lines = [json.loads(line) for line in seen.decode().splitlines() if line.endswith("}")]
            return lines if len(lines) == len(services) + (1 if inspector else 0) else None

        lines = wait_for(events, 20, "workerd listens")
        self.control = read_end
        by_socket = {e.get("socket"): e["port"] for e in lines}
        self.inspector = by_socket.get(None)
        self.ports = {service: by_socket[f"s{index}"] for index, service in enumerate(services)}

    def close_files(self):
        super().close_files()
        if self.control is not None:
            os.close(self.control)
            self.control = None

    def url(self, service, path="/"):
        return f"http://127.0.0.1:{self.ports[service]}{path}"

    def target(self, service, account, worker, version, **more):
        return {"runtime": "workerd", "inspector": f"127.0.0.1:{self.inspector}", "account": account, "worker": worker,
                "version": version, "service": service, "pid": self.pid, **more}


class Node(Child):
    def __init__(self, folder, source, name="node", flags=()):
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, f"{name}.cjs")
        with open(path, "w", encoding="utf-8") as file:
            file.write(source)
        self.inspector = free_port()
        super().__init__(name, ["node", f"--inspect=127.0.0.1:{self.inspector}", *flags, path], folder,
                         stdout=subprocess.PIPE)
        self.port = int(self.process.stdout.readline())

    def url(self, path="/"):
        return f"http://127.0.0.1:{self.port}{path}"

    def target(self, account, worker, version, **more):
        return {"runtime": "node", "inspector": f"127.0.0.1:{self.inspector}", "account": account, "worker": worker,
                "version": version, "pid": self.pid, **more}


class Agent(Child):
    def __init__(self, folder, daemon, targets, name="agent", budget=None, env=None, **config):
        """daemon needs `ingest` and `sync` URLs. targets: list of dicts, as in the agent's configuration."""
        os.makedirs(folder, exist_ok=True)
        self.config_path = os.path.join(folder, f"{name}.yaml")
        self.config = {
            "collector": {"ingest": daemon.ingest, "sync": daemon.sync}, "region": "test",
            "budget": budget or {"cpu_ratio": 0.05, "pause_ms_max": 100},
            "spool": {"path": os.path.join(folder, f"{name}-spool")}, "targets": targets, **config}
        self.write_config()
        super().__init__(name, [os.path.join(BIN, "everflame-agent"), "--config", self.config_path], folder,
                         env={**os.environ, **(env or {})})

    def write_config(self):
        with open(self.config_path, "w", encoding="utf-8") as file:
            json.dump(self.config, file)


class Load(threading.Thread):
    """Random requests at a mean rate, one at a time per thread; bounded by `seconds`."""

    def __init__(self, url, rate, seconds, seed=None):
        super().__init__(daemon=True)
        self.url, self.rate, self.seconds = url, rate, seconds
        self.random = random.Random(seed)
        self.answered = self.failed = 0
        self.stopped = threading.Event()
        self.start()

    def run(self):
        end = time.monotonic() + self.seconds
        due = time.monotonic()
        while not self.stopped.is_set() and time.monotonic() < end:
            due = max(due + self.random.expovariate(self.rate), time.monotonic() - 0.5)
            self.stopped.wait(max(0.0, due - time.monotonic()))
            try:
                with urllib.request.urlopen(self.url, timeout=15) as answer:
                    answer.read()
                self.answered += 1
            except OSError:
                self.failed += 1

    def stop(self):
        self.stopped.set()
        self.join()


def burn(url, seconds):
    """Keeps one core of a target busy by back-to-back requests; gives the wall times of start and end."""
    begun = time.time()
    while time.time() < begun + seconds:
        with urllib.request.urlopen(url, timeout=30) as answer:
            answer.read()
    return begun, time.time()


class Everflamed(Child):
    """The collector on free ports; `restart` starts it again on the same ports and data after a kill."""

    def __init__(self, folder, name="everflamed", flush="1s", data=None, ports=None, prefix=(), **options):
        os.makedirs(folder, exist_ok=True)
        self.arguments = (folder, name, flush, data, prefix, options)
        self.http, ingest, sync = ports or (free_port(), free_port(), free_port())
        self.port_list = (self.http, ingest, sync)
        self.host = options.pop("host", "127.0.0.1")
        self.url = f"http://{self.host}:{self.http}"
        self.ingest, self.sync = f"tcp://{self.host}:{ingest}", f"tcp://{self.host}:{sync}"
        self.data = data or os.path.join(folder, "data")
        args = [*prefix, os.path.join(BIN, "everflamed"), "--data", self.data, "--http", f"{self.host}:{self.http}",
                "--ingest", self.ingest, "--sync", self.sync, "--flush-interval", flush]
        for key, value in options.items():
            args.append(f"--{key.replace('_', '-')}={value}")
        super().__init__(name, args, folder)
        self.wait_ready()

    def wait_ready(self):
        def ready():
            if not self.alive():
                raise AssertionError(f"everflamed ended: {self.log_text()[-800:]}")
            try:
                return self.get("/healthz", raw=True) == b"ok\n" or self.get("/healthz", raw=True) == b"ok"
            except OSError:
                return False

        wait_for(ready, 30, "everflamed is ready")

    def restart(self):
        folder, name, flush, data, prefix, options = self.arguments
        return Everflamed(folder, name, flush, data, self.port_list, prefix, **{**options, "host": self.host})

    def get(self, path, raw=False, timeout=20):
        with urllib.request.urlopen(self.url + path, timeout=timeout) as answer:
            body = answer.read()
        return body if raw else json.loads(body)

    def post(self, path, body=b""):
        request = urllib.request.Request(self.url + path, data=body, method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

    def status(self):
        return self.get("/api/v1/status")

    def cli(self, *args, check=True, text=True):
        """Runs `everflame` against this collector; gives the completed process."""
        done = subprocess.run([os.path.join(BIN, "everflame"), *args], stdin=subprocess.DEVNULL, capture_output=True,
                              text=text, env={**os.environ, "EVERFLAME_URL": self.url}, timeout=120)
        if check and done.returncode != 0:
            raise AssertionError(f"everflame {' '.join(args)}: exit {done.returncode}: {done.stderr}")
        return done

    def top(self, worker, version, start, end, profile_type="cpu"):
        which = ["--version", version] if version else []
        return json.loads(self.cli("top", "--worker-id", worker, *which, "--profile-type", profile_type, "--from", f"{start:.3f}", "--to", f"{end:.3f}", "--json").stdout)

    def wait_sampling(self, count, seconds=40):
        """Until the agents report `count` targets in state sampling."""
        def sampling():
            targets = self.status()["targets"]
            return targets if sum(t["state"] == "sampling" for t in targets) >= count else None

        try:
            return wait_for(sampling, seconds, f"{count} targets are sampled")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.status()['targets']}") from None


def main_with_count(unittest):
    """Runs the module's tests and prints the closing line that ops/test reads."""
    import sys
    result = unittest.main(module="__main__", exit=False, verbosity=2).result
    # A test with failed sub tests is one failed test.
    failed = len({str(getattr(test, "test_case", test)) for test, _ in result.failures + result.errors})
    skipped = len(result.skipped)
    for test, reason in result.skipped:
        print(f"SKIPPED: {test}: {reason}")
    print(f"{result.testsRun - failed - skipped} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""),
          flush=True)
    sys.exit(1 if failed or result.testsRun == 0 else 0)
