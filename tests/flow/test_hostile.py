"""Whatever comes from outside is refused, counted, and disturbs nobody: garbage on the sockets, forged and replayed batches,
hostile profile files, hostile HTTP.
"""
import gzip
import os
import socket
import struct
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ef_runtimes as ef  # noqa: E402
from test_delivery import Load  # noqa: E402

SP_PUB, SP_REQ = 0x20, 0x30


def varint(number):
    out = b""
    while True:
        byte = number & 0x7F
        number >>= 7
        if number == 0:
            return out + bytes([byte])
        out += bytes([byte | 0x80])


def field(number, payload):
    return varint(number << 3 | 2) + varint(len(payload)) + payload


class SpPeer:
    """Speaks the SP handshake by hand, then sends whatever it is given."""

    def __init__(self, port, protocol):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=5)
        self.socket.sendall(struct.pack(">BBBBHH", 0, 0x53, 0x50, 0, protocol, 0))
        self.socket.recv(8)

    def send(self, body):
        try:
            self.socket.sendall(struct.pack(">Q", len(body)) + body)
        except OSError:
            pass  # Being thrown out is one right answer.

    def close(self):
        self.socket.close()


def header(kind=1, flags=0, version=1, key=0, raw=0, epoch=7, sequence=1, mac=bytes(16)):
    return b"EFW1" + struct.pack("<BBBBII", kind, flags, version, 0, key, raw) + b"p" * 16 \
        + struct.pack("<QQ", epoch, sequence) + mac


class Hostile(unittest.TestCase):
    def setUp(self):
        self.temp = tempfile.TemporaryDirectory()
        self.folder = self.temp.name
        self.daemon = ef.Everflamed(self.folder)

    def tearDown(self):
        self.daemon.stop()
        self.temp.cleanup()

    def metric(self, name):
        for line in self.daemon.get("/metrics", raw=True).decode().splitlines():
            if line.startswith(f"everflame_{name} "):
                return float(line.split()[1])
        raise AssertionError(f"no metric {name}")

    def test_garbage_on_both_sockets_is_counted_and_disturbs_nobody(self):
        load = Load(self.folder, self.daemon, 8)
        ingest, sync = self.daemon.port_list[1:]
        bodies = [b"", b"x", b"EFW1", os.urandom(64), os.urandom(5000), header(raw=4) + b"abcd",
                  header(flags=1, raw=0xFFFFFFFF) + b"\x28\xb5\x2f\xfd" + os.urandom(50), header(version=9, raw=1) + b"x",
                  header(kind=2, raw=1) + b"x", header(key=12345, raw=1) + b"x"]
        for _ in range(3):
            for port, protocol in ((ingest, SP_PUB), (sync, SP_REQ)):
                for body in bodies:
                    peer = SpPeer(port, protocol)
                    peer.send(struct.pack(">I", 0x80000001) + body if protocol == SP_REQ else body)
                    peer.close()
                raw = socket.create_connection(("127.0.0.1", port), timeout=5)
                raw.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                raw.close()
                peer = SpPeer(port, protocol)
                peer.socket.sendall(struct.pack(">Q", 1 << 40) + b"much too long")
                peer.close()
        results = load.finish()
        self.assertTrue(all(r["drained"] for r in results), results)
        samples = self.daemon.status()["samples"]
        self.assertEqual(samples["stored"], load.journals()[3])
        self.assertEqual(samples["lost"], 0)
        refused = self.metric("ingest_refused_malformed_total") + self.metric("ingest_refused_auth_total")
        self.assertGreaterEqual(refused, 15, "garbage is counted")
        self.assertTrue(self.daemon.alive())

    def test_wrong_key_is_refused_and_right_key_is_taken(self):
        keys = {}
        for name, number in (("right", "1" * 64), ("wrong", "2" * 64)):
            keys[name] = os.path.join(self.folder, name)
            with open(keys[name], "w", encoding="utf-8") as file:
                file.write(f"7 {number}\n")
        self.daemon.stop()
        self.daemon = ef.Everflamed(self.folder, name="keyed", key_file=keys["right"])
        forged = Load(self.folder, self.daemon, 2, spool=False, key_file=keys["wrong"], drain_ms=500)
        plain = Load(self.folder, self.daemon, 2, spool=False, drain_ms=500)
        honest = Load(self.folder, self.daemon, 2, spool=False, key_file=keys["right"])
        forged.finish()
        plain.finish()
        self.assertTrue(all(r["drained"] for r in honest.finish()))
        self.assertEqual(self.daemon.status()["samples"]["stored"], honest.journals()[3])
        self.assertGreater(self.metric("ingest_refused_auth_total"), 0)

    def test_hostile_profiles_are_refused_whole(self):
        sample = os.path.join(ef.ROOT, "tests/data/v8/node-cpu.cpuprofile.json")
        with open(sample, "rb") as file:
            good = file.read()
        files = {
            "empty.pprof": b"", "nothing.pprof": gzip.compress(b""), "garbage.pprof": os.urandom(4096),
            "bomb.pprof": gzip.compress(bytes(600 << 20), 9),
            "counts.pprof": field(6, b"") + field(1, b"\x08\x00\x10\x00") + field(2, field(2, b"\x01\x02\x03")),
            "name.pprof": field(6, b"") + varint(6 << 3 | 2) + varint(1 << 40),
            "cut.cpuprofile": good[:len(good) // 2], "deep.heapprofile": b'{"head":' * 5000,
            "types.cpuprofile": b'{"nodes": 7, "samples": "x"}', "lines.folded": b"a;b;c\nno count here\n",
        }
        for name, content in files.items():
            path = os.path.join(self.folder, name)
            with open(path, "wb") as file:
                file.write(content)
            out = os.path.join(self.folder, "out.json")
            for args in (("convert", path, out, "--to", "json"),
                         ("import", path, "--worker-id", "hostile", "--version", "v1")):
                with self.subTest(file=name, command=args[0]):
                    done = self.daemon.cli(*args, check=False)
                    self.assertEqual(done.returncode, 1, done.stderr)
                    lines = [line for line in done.stderr.splitlines() if line]
                    self.assertLessEqual(len(lines), 2, done.stderr)
                    self.assertIn(name, done.stderr)
                    self.assertFalse(os.path.exists(out), "a partial file is left")
        workers = [w["worker"] for w in self.daemon.get("/api/v1/workers")]
        self.assertNotIn("hostile", workers, "a refused import left something behind")
        done = self.daemon.cli("import", sample, "--worker-id", "good", "--version", "v1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("good", [w["worker"] for w in self.daemon.get("/api/v1/workers")])

    def test_web_pages_cannot_reach_the_api(self):
        for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
            request = urllib.request.Request(self.daemon.url + "/api/v1/workers", headers=headers)
            with self.assertRaises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(request, timeout=5)
            self.assertIn(caught.exception.code, (400, 403, 421))
            caught.exception.close()

    def test_slow_and_many_clients_do_not_stop_others(self):
        slow = [socket.create_connection(("127.0.0.1", self.daemon.http), timeout=5) for _ in range(100)]
        for connection in slow:
            connection.sendall(b"GET /api/v1/top?worker=")
        begun = time.monotonic()
        self.assertEqual(self.daemon.get("/healthz", raw=True).strip(), b"ok")
        self.assertLess(time.monotonic() - begun, 3)
        for connection in slow:
            connection.close()


if __name__ == "__main__":
    ef.main_with_count(unittest)
