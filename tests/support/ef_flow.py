"""What flow tests need besides real runtimes (ef_runtimes.py): the command line program, a fake collector, a terminal, temporary
folders, polling, JSON over HTTP.

Programs are found by EF_BIN_DIR; every process is stopped by its pid when the test case ends, ports are free ones of 127.0.0.1.
A test file ends with `ef_flow.main_with_count(unittest)`, which prints "N passed, N failed" last. Standard library only.
"""
import http.server
import json
import os
import pty
import select
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

from ef_runtimes import BIN, ROOT, Child, Everflamed, free_port, main_with_count, wait_for

__all__ = ["BIN", "ROOT", "Child", "Everflamed", "FakeCollector", "FlowCase", "free_port", "get_json", "main_with_count",
           "program", "post_json", "run_cli", "run_on_terminal", "start_everflamed", "wait_for", "wait_until"]

# What could change the program's behaviour from outside is taken out of its environment.
QUIET = ("EVERFLAME_URL", "EVERFLAME_WORKER_ID", "NO_COLOR", "CI", "http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY",
         "HTTPS_PROXY", "ALL_PROXY", "LC_ALL", "LC_CTYPE")


def program(name="everflame"):
    return os.path.join(BIN, name)


def environment(url=None, **more):
    env = {k: v for k, v in os.environ.items() if k not in QUIET}
    env.update({"LANG": "C.UTF-8", "TERM": "xterm"})
    if url:
        env["EVERFLAME_URL"] = url
    env.update(more)
    return env


def run_cli(*args, url=None, input=b"", env=None, timeout=60, **kwargs):
    """Runs `everflame`; gives the completed process with bytes in stdout and stderr."""
    return subprocess.run([program(), *args], input=input, env=environment(url, **(env or {})), timeout=timeout,
                          stdout=kwargs.pop("stdout", subprocess.PIPE), stderr=kwargs.pop("stderr", subprocess.PIPE), **kwargs)


def run_on_terminal(*args, url=None, env=None, timeout=60):
    """Runs `everflame` with standard output on a pseudo terminal; gives (exit code, what the terminal got, stderr)."""
    master, slave = pty.openpty()
    process = subprocess.Popen([program(), *args], stdin=subprocess.DEVNULL, stdout=slave, stderr=subprocess.PIPE,
                               env=environment(url, **(env or {})))
    os.close(slave)
    shown = b""
    end = time.monotonic() + timeout
    try:
        while time.monotonic() < end:
            if select.select([master], [], [], 0.2)[0]:
                try:
                    part = os.read(master, 65536)
                except OSError:  # Linux: EIO when the last writer is gone
                    break
                if not part:
                    break
                shown += part
        stderr = process.stderr.read()
        return process.wait(timeout), shown, stderr
    finally:
        process.stderr.close()
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(master)


def wait_until(predicate, timeout=10, what="the condition"):
    """Polls until predicate() gives something true and gives that; fails otherwise."""
    return wait_for(predicate, timeout, what)


def get_json(url, timeout=20):
    """(status, parsed body) of a GET; an error status is no exception."""
    return _json(urllib.request.Request(url), timeout)


def post_json(url, body=b"", timeout=30):
    """(status, parsed body) of a POST."""
    return _json(urllib.request.Request(url, data=body, method="POST"), timeout)


def _json(request, timeout):
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def start_everflamed(data, flush_interval="1s", **options):
    """A real collector on free ports with its data and log under the folder `data`; has .url, .cli(), .get(), .stop()."""
    return Everflamed(data, flush=flush_interval, **options)


class FakeCollector:
    """An HTTP server that answers what a test put in.

    answers: {path: answer}; an answer is JSON-able data, bytes, (status, data or bytes), (status, data, {header: value}) or a
    function of the request handler that writes by itself. `requests` records (method, path, parameters as lists, body).
    """

    def __init__(self):
        self.answers = {}
        self.requests = []
        self.released = threading.Event()  # handlers that hang wait for this
        fake = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def answer(self):
                path, _, query = self.path.partition("?")
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                fake.requests.append((self.command, path, urllib.parse.parse_qs(query, keep_blank_values=True), body))
                answer = fake.answers.get(path, (404, {"error": {"code": "EF_ENOTFOUND", "message": f"no route {path}"}}))
                if callable(answer):
                    answer = answer(self)
                    if answer is None:
                        self.close_connection = True
                        return
                status, data, headers = (answer + ({},))[:3] if isinstance(answer, tuple) else (200, answer, {})
                if not isinstance(data, bytes):
                    data = json.dumps(data).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                try:
                    self.wfile.write(data)
                except OSError:
                    self.close_connection = True  # The client has had enough; one right answer to too much.

            do_GET = do_POST = answer

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.thread.start()

    def close(self):
        self.released.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class FlowCase(unittest.TestCase):
    """A temporary folder, children that are stopped by pid, and the command line program."""

    def setUp(self):
        self.temp = tempfile.TemporaryDirectory(prefix="ef-flow-")
        self.addCleanup(self.temp.cleanup)
        self.folder = self.temp.name

    def keep(self, child):
        """Stops the child (an ef_runtimes.Child) when the test ends."""
        self.addCleanup(child.stop)
        return child

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def write(self, name, content):
        """Writes a file into the folder; gives its path."""
        with open(self.path(name), "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
        return self.path(name)
