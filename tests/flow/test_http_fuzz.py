"""Every route of the HTTP interface with random parameters, bodies and requests for 20 s (EF_FUZZ_SECONDS): each answer has a
status that the interface declares and the declared type, JSON parses, the server lives, its memory stays below its cap.

The seed is printed; EF_TEST_SEED takes it back.
"""
import gzip
import http.client
import json
import os
import random
import re
import socket
import sys
import threading
import time
import unittest
import urllib.parse

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ef_flow as ef  # noqa: E402

SEED = int(os.environ.get("EF_TEST_SEED") or time.time_ns() % (1 << 32))
SECONDS = float(os.environ.get("EF_FUZZ_SECONDS") or 20)
MEMORY_MAX = int(os.environ.get("EF_FUZZ_MEMORY_MIB") or 128) << 20  # sanitizers need more
HEAD_BYTES_MAX = 12 << 10  # a longer one may not fit into the 32 KiB that http.c gives a connection, with its parameters
PARAMETERS = ("worker", "account", "version", "region", "type", "from", "to", "limit", "step", "format", "at", "duration")
EMPTY = {"no_such_worker", "no_such_version", "no_such_type", "before_data", "after_data", "no_samples"}
BINARY = {"application/octet-stream", "text/plain; charset=utf-8"}


def routes():
    """(method, path, parameters) of collector/serve/routes.def."""
    with open(os.path.join(ef.ROOT, "collector/serve/routes.def"), encoding="utf-8") as file:
        return [(m, p, names.split()) for m, p, names in
                re.findall(r'^X\((\w+),\s*"([^"]+)",\s*\w+,\s*\w+,\s*"([^"]*)"', file.read(), re.MULTILINE)]


def statuses():
    """What proto/base/rc.def lets an error become, without 500, and what is no error."""
    with open(os.path.join(ef.ROOT, "proto/base/rc.def"), encoding="utf-8") as file:
        codes = {int(n) for n in re.findall(r"^X\(.*,\s*(\d{3}),\s*\d+\)", file.read(), re.MULTILINE)}
    return (codes | {200, 202, 403, 405}) - {500}


class Words:
    """Random values: plausible ones often enough that requests get past the checks."""

    def __init__(self, rng):
        self.rng = rng

    def junk(self):
        rng = self.rng
        return rng.choice([
            lambda: "", lambda: "\0", lambda: "\n", lambda: "a" * rng.choice((1, 255, 256, 257, 4000)),
            lambda: "".join(chr(rng.randrange(1, 0x10000)) for _ in range(rng.randrange(9))).encode("utf-8", "replace").decode(),
            lambda: bytes(rng.randrange(256) for _ in range(rng.randrange(12))), lambda: "../../etc/passwd", lambda: "%s%n%d",
            lambda: "<script>", lambda: "'; drop", lambda: str(rng.randrange(-1 << 65, 1 << 65)), lambda: "1e999", lambda: "nan",
            lambda: "-1", lambda: "0x10", lambda: "9" * 40])()

    def time(self):
        rng = self.rng
        return rng.choice([
            "now", "now-1h", "now+1h", "now-999999999d", "now-1", "0", "-1", "1", str(1 << 62), str(-(1 << 62)), str(1 << 63),
            "1970-01-01T00:00:00Z", "2262-04-11T23:47:16Z", "9999-12-31T23:59:59Z", "2026-13-41T25:61:61Z", "2026-12-01T00:00:00+99:99",
            str(int(time.time()) - rng.randrange(4000)), str(time.time_ns() // 10**6 - rng.randrange(10**6)), "now-15m"])

    def value(self, name):
        rng = self.rng
        if rng.random() < 0.2:
            return self.junk()
        if name in ("from", "to", "at"):
            return self.time()
        return rng.choice({
            "worker": ("shop", "shop", "shop", "nobody", "web"), "account": ("default", "other"), "version": ("v1", "v2", "v3"),
            "region": ("", "fra", "sin"), "type": ("cpu", "alloc", "heap", "inuse", "wall", "fast"),
            "limit": ("0", "1", "10", "1000", "18446744073709551615", "99999999999999999999"),
            "step": ("10s", "1m", "1h", "7s", "0", "-10s", "9999999d", "10ms"),
            "format": ("pprof", "folded", "speedscope", "cpuprofile", "heapprofile", "json", "xml"),
            "duration": ("0", "10s", "1h", "1d", "2d", "-1s", "99999d")}[name])

    def query(self, names):
        rng = self.rng
        chosen = [n for n in names if n == "worker" and rng.random() < 0.95 or rng.random() < 0.4]
        if rng.random() < 0.1:
            chosen.append(rng.choice(PARAMETERS))
        if rng.random() < 0.1:
            chosen += ["version"] * rng.choice((2, 63, 64, 65, 200))
        rng.shuffle(chosen)
        text = urllib.parse.urlencode([(n, self.value(n)) for n in chosen])
        if rng.random() < 0.05:
            text += rng.choice(("&", "&&&=", "=x", "&%", "&%zz=1", "&a=%f", "&" + "b" * 3000, "#x", "?from=0"))
        return text

    def body(self, files):
        """A profile file, whole or damaged in places."""
        rng = self.rng
        data = bytearray(rng.choice(files))
        for _ in range(rng.choice((0, 0, 1, 3, 30))):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        if rng.random() < 0.2:
            data = data[:rng.randrange(len(data) + 1)]
        if rng.random() < 0.1:
            at = rng.randrange(len(data) + 1)
            data[at:at] = data[:rng.randrange(2000)]
        return gzip.compress(bytes(data)) if rng.random() < 0.2 else bytes(data)


class HttpFuzz(ef.FlowCase):
    def setUp(self):
        super().setUp()
        self.daemon = self.keep(ef.start_everflamed(self.path("d"), memory_max=f"{MEMORY_MAX}"))
        self.routes, self.statuses = routes(), statuses()
        self.assertGreaterEqual(len(self.routes), 11)
        self.seen, self.failures, self.resident = {}, [], 0
        self.files = []
        for name in os.listdir(os.path.join(ef.ROOT, "tests/data/v8")):
            with open(os.path.join(ef.ROOT, "tests/data/v8", name), "rb") as file:
                self.files.append(file.read())
        self.files = sorted(self.files, key=len)[:4] + [b"main;work 3\nmain 4\n"]
        for version in ("v1", "v2"):
            status, answer = ef.post_json(f"{self.daemon.url}/api/v1/import?worker=shop&version={version}&duration=1m",
                                          self.files[-1])
            self.assertEqual(status, 200, answer)
            query = f"worker=shop&version={version}&from=now-1h&format="
            for form in ("pprof", "folded", "speedscope"):
                self.files.append(self.daemon.get(f"/api/v1/query?{query}{form}", raw=True))

    def check(self, sent, path, status, content_type, body):
        """A sentence that says what is wrong, or None."""
        self.seen[status] = self.seen.get(status, 0) + 1
        if status not in self.statuses:
            return f"{sent}: status {status}: {body[:300]}"
        error = status >= 400
        if error or path not in ("/api/v1/query", "/metrics", "/healthz"):
            try:
                answer = json.loads(body.decode())
            except ValueError as wrong:
                return f"{sent}: {status}, {wrong}: {body[:300]}"
            if not content_type.startswith("application/json"):
                return f"{sent}: JSON as {content_type}"
            if error and not (answer["error"]["code"].startswith("EF_") and answer["error"]["message"]):
                return f"{sent}: an error without code or message: {body[:300]}"
            if isinstance(answer, dict) and "empty" in answer and answer["empty"]["reason"] not in EMPTY:
                return f"{sent}: empty for no known reason: {body[:300]}"
            if isinstance(answer, dict) and not 0 <= answer.get("coverage", 0) <= 1:
                return f"{sent}: coverage {answer['coverage']}"
        elif path == "/api/v1/query" and not (content_type in BINARY or content_type.startswith("application/json")):
            return f"{sent}: a file as {content_type}"
        elif path == "/api/v1/query" and content_type.startswith("application/json"):
            json.loads(body.decode())
        return None

    def ask(self, rng, words):
        method, path, names = rng.choice(self.routes)
        if path == "/api/v1/import" and rng.random() < 0.5:
            method, path, names = rng.choice(self.routes)  # imports take longest
        query = words.query(names)
        if rng.random() < 0.03:
            method = rng.choice(("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "NONSENSE"))
        if rng.random() < 0.03:
            path = rng.choice(("/", "/api", "/api/v2/top", path + "/", path + "x", "//", "/%2e%2e/", path.upper()))
        body = words.body(self.files) if path == "/api/v1/import" or rng.random() < 0.02 else None
        sent = f"{method} {path}?{query}"
        connection = http.client.HTTPConnection("127.0.0.1", self.daemon.http, timeout=60)
        try:
            connection.request(method, f"{path}?{query}" if query else path, body=body)
            answer = connection.getresponse()
            data = answer.read()
            if method == "HEAD":
                return None
            return self.check(sent[:2000], path, answer.status, answer.headers.get("Content-Type", ""), data)
        except (http.client.HTTPException, OSError) as wrong:
            # A body that nobody wants may be cut off before all of it was read, and a request line for which a connection has no
            # room: libmicrohttpd 0.9.75 then closes without a word.
            cut = isinstance(wrong, OSError) and (body is not None or len(sent) > HEAD_BYTES_MAX)
            return None if cut else f"{sent[:2000]}: {wrong!r}"
        finally:
            connection.close()

    def send_noise(self, rng):
        """Bytes that are hardly HTTP: any answer or none, but the server lives on."""
        with socket.create_connection(("127.0.0.1", self.daemon.http), timeout=10) as peer:
            start = rng.choice((b"", b"GET / HTTP/1.1\r\n", b"POST /api/v1/import?worker=a&version=b HTTP/1.1\r\nHost: localhost\r\n"))
            more = rng.choice((b"Content-Length: 99999999999999999999\r\n\r\n", b"Content-Length: -1\r\n\r\n",
                               b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n", b"Host: a\r\nHost: b\r\n\r\n", b"\0" * 99,
                               b"X" * 70000, rng.randbytes(300)))
            try:
                peer.sendall(start + more)
                peer.shutdown(socket.SHUT_WR)
                peer.settimeout(5)
                peer.recv(4096)
            except OSError:
                pass

    def work(self, number, until):
        rng = random.Random(SEED * 1000 + number)
        words = Words(rng)
        while time.monotonic() < until and not self.failures:
            if number == 0:
                with open(f"/proc/{self.daemon.pid}/statm", encoding="ascii") as file:
                    self.resident = max(self.resident, int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE"))
            if rng.random() < 0.03:
                self.send_noise(rng)
                continue
            try:
                wrong = self.ask(rng, words)
            except Exception as failed:  # of the test itself: reported by the test thread
                wrong = f"{type(failed).__name__}: {failed}"
            if wrong:
                self.failures.append(wrong)

    def test_every_answer_is_declared_and_the_server_lives_on(self):
        print(f"EF_TEST_SEED={SEED}", flush=True)
        until = time.monotonic() + SECONDS
        threads = [threading.Thread(target=self.work, args=(i, until)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(self.failures, [])
        self.assertTrue(self.daemon.alive(), self.daemon.log_text()[-2000:])
        self.assertEqual(self.daemon.get("/healthz", raw=True), b"ok\n")
        self.assertLess(self.resident, MEMORY_MAX)
        self.assertTrue({200, 400, 404, 405} <= set(self.seen), self.seen)
        print(f"{sum(self.seen.values())} answers: {dict(sorted(self.seen.items()))}, {self.resident >> 20} MiB resident at most")


if __name__ == "__main__":
    ef.main_with_count(unittest)
