"""`everflame convert` on real and made-up files: every pair of formats keeps what each function cost, hostile files are refused
in one line without a partial output, and `go tool pprof` reads the result.
"""
import gzip
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ef_flow as ef  # noqa: E402

SUFFIX = {"pprof": ".pprof", "folded": ".folded", "speedscope": ".speedscope.json", "cpuprofile": ".cpuprofile",
          "heapprofile": ".heapprofile", "json": ".json"}
READABLE = [name for name in SUFFIX if name != "json"]
FOLDED = b"main;render 12\nmain;render;query 30\nmain;parse;parse 5\nmain 3\nidle loop 50\n"
ORIGIN = {"count": "folded", "time": "cpuprofile", "bytes": "heapprofile"}
HOLDS = {"count": ["folded", "pprof", "speedscope"], "time": ["folded", "pprof", "speedscope", "cpuprofile"],
         "bytes": ["folded", "pprof", "speedscope", "heapprofile"]}
V8 = os.path.join(ef.ROOT, "tests/data/v8")


def call_frame(name):
    return {"functionName": name, "scriptId": "1", "url": "file:///srv/shop.js", "lineNumber": 3, "columnNumber": 0}


def cpuprofile():
    """render calls query: 30 ticks in query, 12 in render, 3 in main; one tick is 1 ms."""
    tree = [(1, "(root)", [2], 0), (2, "main", [3], 3), (3, "render", [4], 12), (4, "query", [], 30)]
    samples = [node for node, _, _, hits in tree for _ in range(hits)]
    nodes = [{"id": i, "callFrame": call_frame(name), "children": children, "hitCount": hits} for i, name, children, hits in tree]
    return json.dumps({"nodes": nodes, "startTime": 1000000, "endTime": 1000000 + 1000 * len(samples), "samples": samples,
                       "timeDeltas": [1000] * len(samples)}).encode()


def heapprofile():
    query = {"callFrame": call_frame("query"), "selfSize": 300000, "id": 3, "children": []}
    render = {"callFrame": call_frame("render"), "selfSize": 120000, "id": 2, "children": [query]}
    return json.dumps({"head": {"callFrame": call_frame("(root)"), "selfSize": 0, "id": 1, "children": [render]},
                       "samples": [{"size": 1000, "nodeId": node, "ordinal": i} for i, node in enumerate([2] * 120 + [3] * 300)]}
                      ).encode()


def convert(*args, **kwargs):
    return ef.run_cli("convert", *args, **kwargs)


def shares(table):
    """{function name: (self share, total share)} of a JSON table by its last sample type. Functions of one name (there are many
    anonymous ones) are added up; their totals, which may overlap, are None."""
    whole = table["totals"][-1]
    out = {}
    for row in table["functions"]:
        self_share, total_share = row["self"][-1] / whole, row["total"][-1] / whole
        if row["name"] in out:
            self_share, total_share = out[row["name"]][0] + self_share, None
        out[row["name"]] = (self_share, total_share)
    return out


def good_files():
    """A well-formed file of each format that can be read."""
    out = {"folded": FOLDED, "cpuprofile": cpuprofile(), "heapprofile": heapprofile()}
    for name in ("pprof", "speedscope"):
        out[name] = convert("-", "-", "--from", "cpuprofile", "--to", name, input=cpuprofile()).stdout
    return out


class Convert(ef.FlowCase):
    def table(self, path, *more):
        done = convert(path, "-", "--to", "json", *more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def close(self, got, wanted, what):
        for name, (self_share, total_share) in wanted.items():
            # "(root)" is the root itself in some formats and a function in others.
            if name == "(root)" or (self_share == 0 and not total_share):
                continue
            self.assertIn(name, got, what)
            self.assertAlmostEqual(got[name][0], self_share, delta=1e-6, msg=f"{what}: self of {name}")
            if total_share is not None and got[name][1] is not None:
                self.assertAlmostEqual(got[name][1], total_share, delta=1e-6, msg=f"{what}: total of {name}")
        self.assertLessEqual(set(got), set(wanted) | {"(root)"}, what)

    def sources(self):
        """(kind, path): one truth in each format that can hold it, for each kind of profile, and all captures of real runtimes.
        The kind says which formats can hold it: time fits no heapprofile, bytes fit no cpuprofile, a count fits neither."""
        for kind, content in (("count", FOLDED), ("time", cpuprofile()), ("bytes", heapprofile())):
            base = self.write(f"{kind}-base" + SUFFIX[ORIGIN[kind]], content)
            yield kind, base
            for name in HOLDS[kind]:
                # Folded lines hold one number of no unit: what was time is a count afterwards.
                if name not in (ORIGIN[kind], "folded"):
                    path = self.path(f"{kind}" + SUFFIX[name])
                    done = convert(base, path)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    yield kind, path
        for name in sorted(os.listdir(V8)) if os.path.isdir(V8) else []:
            yield {"cpuprofile": "time", "heapprofile": "bytes"}[name.split(".")[1]], os.path.join(V8, name)

    def test_known_costs_come_out_as_they_are(self):
        table = self.table(self.write("base.folded", FOLDED))
        rows = {row["name"]: (row["self"][-1], row["total"][-1]) for row in table["functions"]}
        self.assertEqual(table["totals"][-1], 100)
        self.assertEqual(rows, {"main": (3, 50), "render": (12, 42), "query": (30, 30), "parse": (5, 5), "idle loop": (50, 50)})

    def test_every_pair_of_formats_keeps_what_functions_cost(self):
        pairs = 0
        for kind, path in self.sources():
            wanted = shares(self.table(path))
            self.assertTrue(wanted)
            for target in READABLE:
                out = self.path("out" + SUFFIX[target])
                done = convert(path, out)
                if target not in HOLDS[kind]:
                    self.assertEqual(done.returncode, 1, (path, target))
                    self.assertRegex(done.stderr, rb"^everflame: .*a (cpu|heap)profile holds .*\n$")
                    self.assertFalse(os.path.exists(out))
                    continue
                self.assertEqual(done.returncode, 0, (path, target, done.stderr))
                self.close(shares(self.table(out)), wanted, f"{path} -> {target}")
                piped = convert(path, "-", "--to", target)
                with open(out, "rb") as file:
                    self.assertEqual(piped.stdout, file.read(), "a file and a pipe differ")
                back = convert("-", "-", "--to", "json", input=piped.stdout)
                self.assertEqual(back.returncode, 0, f"{target} is not known by its content: {back.stderr}")
                os.unlink(out)
                pairs += 1
        self.assertGreaterEqual(pairs, 2 * 3 + 3 * 4 + 3 * 4)

    @unittest.skipUnless(shutil.which("go"), "no go")
    def test_go_tool_pprof_reads_the_result_with_the_same_numbers(self):
        for _, path in self.sources():
            out = self.path("go.pprof")
            self.assertEqual(convert(path, out).returncode, 0)
            done = subprocess.run(["go", "tool", "pprof", "-top", "-unit=auto", "-nodecount=1000", "-nodefraction=0", out],
                                  capture_output=True, text=True, timeout=120, env={**os.environ, "PPROF_TMPDIR": self.folder})
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stdout, r"flat%", path)
            wanted = shares(self.table(path))
            shown = {}
            for line in done.stdout.splitlines():
                match = re.match(r"\s*\S+\s+([\d.]+)%\s+[\d.]+%\s+\S+\s+([\d.]+)%\s+(.*?)(?: \(inline\))?$", line)
                if match:
                    shown[match.group(3)] = float(match.group(2)) / 100
            for name, (_, total) in wanted.items():
                if name in shown and total is not None:
                    self.assertLessEqual(abs(shown[name] - total), 0.006, f"{path}: {name}")
            self.assertTrue(set(wanted) & set(shown), done.stdout)

    def refused(self, name, content, *more, text=""):
        path = self.write(name, content)
        out = self.path("refused.speedscope.json")
        begun = time.monotonic()
        done = convert(path, out, *more)
        self.assertEqual(done.returncode, 1, (name, done.stderr))
        words = done.stderr.decode()
        self.assertEqual(len(words.splitlines()), 1, words)
        self.assertTrue(words.startswith("everflame: "), words)
        self.assertIn(name, words)
        self.assertIn(text, words)
        self.assertFalse(os.path.exists(out), f"{name} left a partial output")
        self.assertLess(time.monotonic() - begun, 30, f"{name} took too long")
        piped = convert(path, "-", "--to", "folded", *more)
        self.assertEqual((piped.returncode, piped.stdout), (1, b""), name)
        os.unlink(path)

    def test_hostile_files_are_refused_in_one_line(self):
        good = good_files()
        self.refused("empty.pprof", b"", text="is empty")
        self.refused("unknown.bin", b"\x00\x01\x02 no profile at all \xff")
        self.refused("garbage.pprof", random.Random(1).randbytes(5000))
        self.refused("cut.pprof", good["pprof"][:-20])
        self.refused("bomb.pprof", gzip.compress(bytes(300 << 20), 9))
        self.refused("length.pprof", b"\x32\xff\xff\xff\xff\xff\xff\xff\xff\x7f")
        for name in ("cpuprofile", "heapprofile", "speedscope"):
            self.refused("cut" + SUFFIX[name], good[name][:len(good[name]) // 2])
            self.refused("deep" + SUFFIX[name], b'{"nodes":' + b"[" * 100000)
            self.refused("null" + SUFFIX[name], b"null")
            self.refused("wrong" + SUFFIX[name], b'{"nodes": {}, "head": 3, "profiles": 7, "shared": []}')
        self.refused("lines.folded", b"a;b no-number\n")
        self.refused("other.pprof", good["speedscope"], text="")
        self.refused("cycle.cpuprofile", json.dumps({
            "nodes": [{"id": i, "callFrame": {"functionName": "f", "url": "", "lineNumber": 0, "columnNumber": 0,
                                              "scriptId": "0"}, "children": [3 - i]} for i in (1, 2)],
            "startTime": 0, "endTime": 10, "samples": [1, 2], "timeDeltas": [1, 1]}).encode())

    def test_flipped_bits_never_crash(self):
        seed = int(os.environ.get("EF_TEST_SEED", str(int(time.time()))))
        print(f"EF_TEST_SEED={seed}")
        chance = random.Random(seed)
        for name, good in good_files().items():
            plain = gzip.decompress(good) if name == "pprof" else good
            for _ in range(40):
                bad = bytearray(plain)
                for _ in range(chance.randint(1, 4)):
                    bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
                done = convert("-", "-", "--from", name, "--to", "json", input=bytes(bad))
                if done.returncode == 0:
                    json.loads(done.stdout)
                    continue
                # The line is checked too: a sanitizer's report also ends with 1.
                self.assertEqual((done.returncode, done.stdout), (1, b""), (name, bytes(bad), done.stderr))
                self.assertRegex(done.stderr, rb"^everflame: [^\n]*\n$", (name, bytes(bad)))

    def test_usage_and_files(self):
        source = self.write("base.folded", FOLDED)
        for args, code, text in (((source, self.path("x.unknown")), 2, "give --to"), ((source, "-"), 2, "give --to"),
                                 ((source, "-", "--to", "pprop"), 2, "do you mean 'pprof'?"),
                                 ((source, "-", "--to", "folded", "--from", "json"), 2, "can only be written"),
                                 ((self.path("none"), "-", "--to", "folded"), 1, "No such file"),
                                 ((self.folder, "-", "--to", "folded"), 1, "is a directory"),
                                 ((source, self.path("no/such/dir/x.pprof")), 1, "cannot write"),
                                 ((source, "/dev/full", "--to", "pprof"), 1, "No space left")):
            done = convert(*args)
            self.assertEqual((done.returncode, done.stdout), (code, b""), done.stderr)
            self.assertIn(text, done.stderr.decode())
        self.assertEqual(os.listdir(self.folder), ["base.folded"])
        with open("/dev/full", "wb") as full:
            done = convert(source, "-", "--to", "pprof", stdout=full)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"cannot write to standard output: No space left", done.stderr)

    def test_interrupt_at_any_moment_leaves_the_old_file_or_the_new_one(self):
        seed = int(os.environ.get("EF_TEST_SEED", str(int(time.time()))))
        print(f"EF_TEST_SEED={seed}")
        chance = random.Random(seed)
        lines = (f"main;a{i % 500};b{i} {i + 1}" for i in range(60000))
        source = self.write("big.folded", "\n".join(lines) + "\n")
        out = self.path("out.speedscope.json")
        begun = time.monotonic()
        self.assertEqual(convert(source, out).returncode, 0)
        length = time.monotonic() - begun
        with open(out, "rb") as file:
            whole = file.read()
        ends = set()
        for _ in range(30):
            with open(out, "wb") as file:
                file.write(b"old")
            process = subprocess.Popen([ef.program(), "convert", source, out], env=ef.environment())
            time.sleep(chance.uniform(0, 1.1 * length))  # the moment is what is tested
            process.send_signal(signal.SIGINT)
            code = process.wait(30)
            ends.add(code)
            # -2: the signal came before the program had begun.
            self.assertIn(code, (130, 0, -signal.SIGINT))
            with open(out, "rb") as file:
                self.assertIn(file.read(), (b"old", whole) if code else (whole,))
            self.assertEqual(sorted(os.listdir(self.folder)), ["big.folded", "out.speedscope.json"])
        self.assertIn(130, ends)

    def test_a_limit_on_file_sizes_is_an_error_and_leaves_nothing(self):
        source = self.write("base.folded", FOLDED)
        limit = (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16)))
        done = convert(source, self.path("x.pprof"), preexec_fn=limit)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"File too large", done.stderr)
        self.assertEqual(os.listdir(self.folder), ["base.folded"])

    def test_binary_is_refused_on_a_terminal(self):
        source = self.write("base.folded", FOLDED)
        code, shown, words = ef.run_on_terminal("convert", source, "-", "--to", "pprof")
        self.assertEqual((code, shown), (2, b""), words)
        code, shown, _ = ef.run_on_terminal("convert", source, "-", "--to", "folded")
        self.assertEqual(code, 0)
        self.assertIn(b"main;render;query 30", shown)

    def test_a_file_may_be_converted_over_itself(self):
        path = self.write("same.folded", FOLDED)
        before = self.table(path)
        self.assertEqual(convert(path, path).returncode, 0)
        self.assertEqual(self.table(path), before)
        self.assertEqual(os.listdir(self.folder), ["same.folded"])


if __name__ == "__main__":
    ef.main_with_count(unittest)
