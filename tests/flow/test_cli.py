"""The program `everflame` against a fake collector: what it asks, what it prints where, how it ends; also when the collector is
missing, hostile, slow or refuses.
"""
import json
import os
import re
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ef_flow as ef  # noqa: E402

FROM, TO = "2026-12-01T03:00:00Z", "2026-12-01T03:01:00Z"
RANGE = ("--from", FROM, "--to", TO)
W = ("--worker-id", "shop")
SHARE = {"samples": 900, "share": 0.75, "low": 0.70, "high": 0.78}
SMALL = {"samples": 3, "share": 0.0025, "low": 0.001, "high": 0.004}
LONG = "handleTheVeryLongRequestOfTheCustomerWhoNeverReadsAnything" * 2 + "AtTheEnd"
TOP = {"worker": "shop", "versions": ["v41", "v42"], "profile_type": "cpu", "from": FROM, "to": TO, "samples": 1200,
       "coverage": 0.982, "total": {"value": 24.6e9, "unit": "nanoseconds", "low": 23e9, "high": 26e9},
       "functions": [{"name": "render", "file": "shop.js", "line": 12, "self": SMALL, "total": SHARE},
                     {"name": LONG, "file": "", "line": 0, "self": SMALL, "total": SMALL}],
       "other": {"name": "", "file": "", "line": 0, "self": SMALL, "total": SMALL},
       "process_cpu_ns": 25e9, "notes": ["one target was starved"]}



def timeline(points, unit="nanoseconds", profile_type="cpu"):
    return {"worker": "shop", "versions": ["v41"], "profile_type": profile_type, "unit": unit, "points": points}


def step(index, samples, value, coverage=1.0, cpu=0):
    start, end = index * 10, index * 10 + 10
    return {"from": f"2026-12-01T03:{start // 60:02}:{start % 60:02}Z", "to": f"2026-12-01T03:{end // 60:02}:{end % 60:02}Z",
            "samples": samples, "value": value, "coverage": coverage, "process_cpu_ns": cpu}


STATUS = {"version": "0.1.0", "started": "2026-12-01T00:00:00Z", "now": "2026-12-01T03:00:00Z",
          "samples": {"published": 1000010, "stored": 1000000, "lost": 0, "late": 0, "duplicate": 0},
          "publishers": [{"name": "host1", "publisher": "abc", "epoch": 1, "last_seen": FROM, "connected": True,
                          "samples": {"published": 10, "stored": 1000000, "lost": 0, "late": 0, "duplicate": 0},
                          "spool_bytes": 1024, "spool_bytes_max": 1 << 26}],
          "targets": [{"account": "a", "worker": "shop", "version": "v41", "instance": "i", "host": "host1", "runtime": "workerd",
                       "inspector": "127.0.0.1:9229", "pid": 1, "state": "sampling", "message": "", "samples": 123456,
                       "samples_starved": 0, "sampled_until": FROM,
                       "sampling_cost": {"cpu_ratio": 0.0021, "pause_ms_max": 12, "pause_ratio": 0.0001}}],
          "sampling_cost": [], "memory": {"resident_bytes": 100 << 20, "cap_bytes": 400 << 20, "aggregate_bytes": 1 << 20,
                                          "store_bytes": 30 << 20, "query_bytes": 0},
          "disk": {"bytes": 3 << 20, "block_bytes": 1, "definition_bytes": 1, "totals_bytes": 1, "bytes_per_sample": 0.83,
                   "oldest": FROM, "newest": TO}, "limits": []}
EMPTY = {"no_such_worker": 3, "no_such_version": 3, "no_such_type": 3, "before_data": 3, "after_data": 3, "no_samples": 4}
FOLDED = b"main;render 12\nmain;query 3\n"


class CliCase(ef.FlowCase):
    def setUp(self):
        super().setUp()
        self.fake = ef.FakeCollector()
        self.addCleanup(self.fake.close)

    def cli(self, *args, code=0, **kwargs):
        """Runs with the fake's address; checks the exit code and that words are one line each, from us."""
        done = ef.run_cli(*args, **{"url": self.fake.url, **kwargs})
        out = done.stdout.decode(errors="replace") if done.stdout is not None else ""
        words = done.stderr.decode()
        self.assertEqual(done.returncode, code, f"{args}\n{out[:500]}\n{words[:500]}")
        for line in words.splitlines():
            self.assertTrue(line.startswith("everflame: "), words)
        if code != 0:
            self.assertTrue(words, "a failure without a word")
        return out, words

    def shown(self, *args):
        """Lines that a terminal of 80 columns gets, without colour; none is wider."""
        code, shown, _ = ef.run_on_terminal(*args, url=self.fake.url)
        self.assertEqual(code, 0)
        lines = re.sub(r"\033\[\d*m", "", shown.decode()).splitlines()
        self.assertLessEqual(max(len(line) for line in lines), 80, lines)
        return lines

    def asked(self):
        """The only request that was made: (method, path, parameters)."""
        self.assertEqual(len(self.fake.requests), 1, self.fake.requests)
        return self.fake.requests[0][:3]


class Top(CliCase):
    def test_human_table_has_header_shares_intervals_and_places(self):
        self.fake.answers["/api/v1/top"] = TOP
        out, words = self.cli("top", *W, *RANGE, "--version", "v41", "--version=v42", "--account", "a&b", "--limit", "7")
        self.assertEqual(words, "")
        lines = out.splitlines()
        self.assertEqual(lines[0], f"shop, versions v41, v42, cpu, {FROM} to {TO} (1m)")
        self.assertEqual(lines[1], "1,200 samples, coverage 98.20 %, total 24.6 s of CPU (95 %: 23.0 s to 26.0 s), 0.41 cores, "
                                   "process CPU 25.0 s")
        self.assertEqual(lines[2], "note: one target was starved")
        self.assertEqual(lines[4].split(), ["SELF", "(95", "%)", "TOTAL", "(95", "%)", "FUNCTION", "FILE:LINE"])
        self.assertIn("  0.25 %  +0.15  -0.15   75.00 %  +3.00  -5.00  render", lines[5])
        self.assertTrue(lines[5].endswith("shop.js:12"))
        self.assertIn(LONG, lines[6], "cut although this is no terminal")
        self.assertIn("(other functions)", lines[7])
        method, path, parameters = self.asked()
        self.assertEqual((method, path), ("GET", "/api/v1/top"))
        self.assertEqual(parameters, {"worker": ["shop"], "account": ["a&b"], "version": ["v41", "v42"], "type": ["cpu"],
                                      "from": [FROM], "to": [TO], "limit": ["7"]})

    def test_json_is_passed_through_to_the_byte(self):
        body = json.dumps(TOP, indent=3, ensure_ascii=False).encode() + b"\n\n"
        self.fake.answers["/api/v1/top"] = body
        out, _ = self.cli("top", *W, *RANGE, "--json")
        self.assertEqual(out, body.decode().rstrip() + "\n")

    def test_each_empty_reason_has_its_words_and_exit_code(self):
        for reason, code in EMPTY.items():
            for more in ((), ("--json",)):
                with self.subTest(reason=reason, more=more):
                    answer = {**TOP, "functions": [], "samples": 0, "empty": {"reason": reason, "message": f"because {reason}"}}
                    self.fake.answers["/api/v1/top"] = answer
                    out, words = self.cli("top", *W, *RANGE, *more, code=code)
                    self.assertIn(f"because {reason} (hint: ", words)
                    self.assertEqual(json.loads(out) if more else out, answer if more else "")

    def test_no_utf8_locale_gives_ascii(self):
        self.fake.answers["/api/v1/top"] = TOP
        out, _ = self.cli("top", *W, *RANGE, env={"LANG": "C"})
        self.assertTrue(out.isascii())
        self.fake.answers["/api/v1/timeline"] = timeline([step(0, 5, 5e9)])
        self.assertTrue(self.cli("timeline", *W, *RANGE, env={"LANG": "C"})[0].isascii())

    def test_terminal_cuts_in_the_middle_and_has_colour_unless_forbidden(self):
        self.fake.answers["/api/v1/top"] = TOP
        code, shown, _ = ef.run_on_terminal("top", *W, *RANGE, url=self.fake.url)
        text = shown.decode()
        self.assertEqual(code, 0)
        self.assertNotIn(LONG, text)
        self.assertRegex(text, r"handleThe\w*…\w*AtTheEnd")
        self.assertIn("\033[1m", text)
        rows = [re.sub(r"\033\[\d*m", "", line) for line in text.splitlines()][4:]
        self.assertLessEqual(max(len(row) for row in rows), 80)
        _, shown, _ = ef.run_on_terminal("top", *W, *RANGE, url=self.fake.url, env={"NO_COLOR": "1"})
        self.assertNotIn(b"\033", shown)

    def test_names_from_outside_cannot_steer_the_terminal(self):
        nasty = "a\u001b]0;x\u0007b\nc\u202ed\u009be"
        answer = {**TOP, "functions": [{**TOP["functions"][0], "name": nasty}], "notes": [nasty], "versions": [nasty]}
        self.fake.answers["/api/v1/top"] = answer
        out, _ = self.cli("top", *W, *RANGE)
        self.assertIn("a?]0;x?b?c?d?e", out)
        self.assertFalse(re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", out))

    def test_wrong_members_are_survived(self):
        for answer in ({}, {"functions": 7}, {"functions": None}):
            self.fake.answers["/api/v1/top"] = answer
            self.cli("top", *W, code=1)
        for functions in ([1, None, [], {}], [{"name": 5, "self": 7, "total": {"share": "x"}, "line": -1e300}]):
            self.fake.answers["/api/v1/top"] = {"functions": functions, "versions": 3, "total": [], "notes": {}}
            self.cli("top", *W)


class Timeline(CliCase):
    def test_bars_cores_and_gaps(self):
        steps = [step(0, 100, 5e9), step(1, 200, 10e9, 0.5), step(2, 0, 0, 0), step(3, 0, 0, 0, cpu=2e9), step(4, 10, 1e9)]
        self.fake.answers["/api/v1/timeline"] = timeline(steps)
        out, words = self.cli("timeline", *W, *RANGE)
        lines = out.splitlines()
        self.assertEqual(lines[0], "shop, version v41, cpu, 2026-12-01T03:00:00Z to 2026-12-01T03:00:50Z (50s)")
        self.assertEqual(lines[2].split(), ["TIME", "cores", "SAMPLES", "COVERAGE"])
        self.assertEqual(lines[3].split(), ["2026-12-01T03:00:00Z", "0.500", "100", "100.00", "%", "█" * 20])
        self.assertEqual(lines[4].split(), ["2026-12-01T03:00:10Z", "1.000", "200", "50.00", "%", "█" * 40])
        self.assertIn("(gap: no samples)", lines[5])
        self.assertIn("(gap: no samples, process CPU 2.0 s)", lines[6])
        self.assertEqual(words, "")
        self.assertEqual(self.asked()[2]["step"], ["10s"])

    def test_narrow_terminal_has_shorter_bars_and_words(self):
        steps = [step(0, 12345678, 5e9), step(1, 200, 10e9), step(2, 0, 0, 0, cpu=12.3e9), step(3, 1, 1e9)] + \
            [step(i, 0, 0, 0) for i in range(4, 10)] + [step(10, 1, 1e9)]
        self.fake.answers["/api/v1/timeline"] = timeline(steps)
        lines = self.shown("timeline", *W, *RANGE)
        bars = [line.count("█") for line in lines[3:5]]
        self.assertGreaterEqual(bars[1], 20)
        self.assertAlmostEqual(bars[0] * 2, bars[1], delta=1)
        self.assertIn("(gap, process CPU 12.3 s)", lines[5])
        self.assertIn("(gap of 6 steps)", lines[7])

    def test_long_gaps_are_one_line_and_steps_are_sent(self):
        steps = [step(0, 1, 1e9)] + [step(i, 0, 0, 0) for i in range(1, 8)] + [step(8, 1, 1e9)]
        self.fake.answers["/api/v1/timeline"] = timeline(steps)
        out, _ = self.cli("timeline", *W, *RANGE, "--step", "90s")
        self.assertIn("(gap: no samples in 7 steps, to 2026-12-01T03:01:20Z)", out)
        self.assertEqual(len(out.splitlines()), 6)
        self.assertEqual(self.asked()[2]["step"], ["1m30s"])

    def test_allocations_are_mb_per_second_and_heap_is_mb(self):
        self.fake.answers["/api/v1/timeline"] = timeline([step(0, 5, 50e6)], "bytes", "alloc")
        out, _ = self.cli("timeline", *W, *RANGE, "--profile-type", "heap", env={"LANG": "C"})
        self.assertRegex(out, r"MB/s.*\n.* 5\.000 .*#{40}\n")
        self.assertEqual(self.asked()[2]["type"], ["heap"])
        self.fake.answers["/api/v1/timeline"] = timeline([step(0, 5, 50e6)], "bytes", "inuse")
        out, _ = self.cli("timeline", *W, *RANGE, "--profile-type", "inuse")
        self.assertRegex(out, r"MB +SAMPLES.*\n.* 50\.000 ")

    def test_nothing_in_the_range_says_so(self):
        for answer, code in ((timeline([step(0, 0, 0, 0)]), 4), (timeline([]), 4),
                             ({**timeline([]), "empty": {"reason": "before_data", "message": "too old"}}, 3)):
            self.fake.answers["/api/v1/timeline"] = answer
            out, _ = self.cli("timeline", *W, *RANGE, code=code)
            self.assertEqual(out, "")
            out, _ = self.cli("timeline", *W, *RANGE, "--json", code=code)
            self.assertEqual(json.loads(out), answer)


class Query(CliCase):
    def test_text_goes_to_standard_output_and_binary_to_a_pipe(self):
        self.fake.answers["/api/v1/query"] = FOLDED
        out, words = self.cli("query", *W, *RANGE, "--version", "v41", "--format", "folded")
        self.assertEqual((out, words), (FOLDED.decode(), ""))
        self.assertEqual(self.asked()[2], {"worker": ["shop"], "version": ["v41"], "type": ["cpu"], "from": [FROM], "to": [TO],
                                           "format": ["folded"]})
        self.fake.answers["/api/v1/query"] = PPROF
        done = ef.run_cli("query", *W, *RANGE, "--format", "pprof", url=self.fake.url)
        self.assertEqual((done.returncode, done.stdout), (0, PPROF))

    def test_binary_is_refused_on_a_terminal_before_anybody_is_asked(self):
        self.fake.answers["/api/v1/query"] = PPROF
        for more in ((), ("-o", "-"), ("-o", "/dev/stdout")):
            code, shown, words = ef.run_on_terminal("query", *W, "--format", "pprof", *more, url=self.fake.url)
            self.assertEqual((code, shown), (2, b""), words)
            self.assertIn(b"redirect with > x.pprof or use -o FILE", words)
        self.assertEqual(self.fake.requests, [])
        code, shown, _ = ef.run_on_terminal("query", *W, "--format", "pprof", "--force", url=self.fake.url)
        self.assertEqual(code, 0)
        self.assertTrue(shown)
        path = self.path("x.pprof")
        code, shown, words = ef.run_on_terminal("query", *W, "--format", "pprof", "-o", path, url=self.fake.url)
        self.assertEqual((code, shown), (0, b""), words)
        self.assertEqual(read(path), PPROF)

    def test_file_is_whole_or_not_there(self):
        path = self.path("x.pprof")
        self.fake.answers["/api/v1/query"] = PPROF
        self.cli("query", *W, "--format", "pprof", "-o", path)
        self.assertEqual(read(path), PPROF)
        self.assertEqual(oct(os.stat(path).st_mode & 0o777), oct(0o666 & ~current_umask()))
        for answer, code in (((404, error("EF_ENOTFOUND", "gone")), 3), ((500, b"<html>"), 1), (b"", 1),
                             (json.dumps(TOP).encode(), 1)):
            self.fake.answers["/api/v1/query"] = answer
            other = self.path("y.pprof")
            self.cli("query", *W, "--format", "pprof", "-o", other, code=code)
            self.assertFalse(os.path.exists(other))
            self.cli("query", *W, "--format", "pprof", "-o", path, code=code)
            self.assertEqual(read(path), PPROF, "the old file is gone")
        self.assertEqual(os.listdir(self.folder), ["x.pprof"])

    def test_link_is_followed_and_devices_stay_devices(self):
        self.fake.answers["/api/v1/query"] = FOLDED
        target = self.write("real", "old")
        os.symlink(target, self.path("link"))
        self.cli("query", *W, "--format", "folded", "-o", self.path("link"))
        self.assertTrue(os.path.islink(self.path("link")))
        self.assertEqual(read(target), FOLDED)
        os.mkfifo(self.path("pipe"))
        reader = subprocess.Popen(["cat", self.path("pipe")], stdout=subprocess.PIPE)
        self.addCleanup(reader.stdout.close)
        self.addCleanup(reader.kill)
        self.cli("query", *W, "--format", "folded", "-o", self.path("pipe"))
        self.assertEqual(reader.communicate(timeout=10)[0], FOLDED)
        _, words = self.cli("query", *W, "--format", "folded", "-o", "/dev/full", code=1)
        self.assertIn("No space left", words)
        _, words = self.cli("query", *W, "--format", "folded", "-o", self.folder, code=1)
        self.assertIn("is a directory", words)
        self.cli("query", *W, "--format", "folded", "-o", self.path("no", "such"), code=1)

    def test_empty_range_is_an_error_with_its_reason(self):
        for reason, code in EMPTY.items():
            self.fake.answers["/api/v1/query"] = (404, {"error": {"code": "EF_ENOTFOUND", "message": f"because {reason}",
                                                                  "hint": "look", "reason": reason}})
            out, words = self.cli("query", *W, "--format", "pprof", code=code)
            self.assertEqual(out, "")
            self.assertRegex(words, rf"^everflame: because {reason} \(hint: .*'everflame .*\)\n$")

    def test_interrupt_ends_with_130_and_leaves_no_file(self):
        self.fake.answers["/api/v1/query"] = lambda handler: self.fake.released.wait(60) and None
        process = subprocess.Popen([ef.program(), "query", *W, "--format", "pprof", "-o", self.path("x.pprof")],
                                   env=ef.environment(self.fake.url), stderr=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        ef.wait_until(lambda: self.fake.requests, 10, "the question")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(10), 130)
        self.assertEqual(os.listdir(self.folder), [])


class Lists(CliCase):
    WORKERS = [{"account": "a", "worker": "shop", "first_seen": FROM, "last_seen": TO, "versions": 1234,
                "profile_types": ["cpu", "alloc"]}]

    def test_workers_and_versions(self):
        self.fake.answers["/api/v1/workers"] = self.WORKERS
        out, _ = self.cli("workers", "list")
        self.assertEqual([line.split() for line in out.splitlines()],
                         [["WORKER", "ACCOUNT", "VERSIONS", "FIRST", "SEEN", "LAST", "SEEN", "MEASURED"],
                          ["shop", "a", "1,234", FROM, TO, "cpu,", "alloc"]])
        out, _ = self.cli("workers", "list", "--json")
        self.assertEqual(json.loads(out), self.WORKERS)
        self.fake.answers["/api/v1/versions"] = [{**self.WORKERS[0], "version": "v41"}]
        out, _ = self.cli("workers", "versions", "list", *W, "--account", "a")
        self.assertEqual(out.splitlines()[1].split(), ["v41", "a", FROM, TO, "cpu,", "alloc"])
        self.assertEqual(self.fake.requests[-1][2], {"worker": ["shop"], "account": ["a"]})

    def test_empty_lists(self):
        self.fake.answers["/api/v1/workers"] = self.fake.answers["/api/v1/versions"] = []
        out, words = self.cli("workers", "list")
        self.assertEqual(out, "")
        self.assertIn("no worker has samples yet", words)
        self.assertEqual(self.cli("workers", "list", "--json")[0], "[]\n")
        _, words = self.cli("workers", "versions", "list", *W, code=3)
        self.assertIn("there is no worker 'shop'", words)

    def test_collect(self):
        self.fake.answers["/api/v1/collect"] = (202, {"requested": True})
        out, _ = self.cli("collect", *W, "--version", "v1", "--version", "v2")
        self.assertEqual(out, "")
        self.assertEqual(self.asked(), ("POST", "/api/v1/collect", {"worker": ["shop"], "version": ["v1", "v2"]}))
        self.fake.answers["/api/v1/collect"] = (202, {"requested": False})
        self.cli("collect", *W, code=4)


class Status(CliCase):
    def test_page(self):
        self.fake.answers["/api/v1/status"] = STATUS
        out, words = self.cli("status")
        self.assertEqual(words, "")
        for text in ("version 0.1.0, up 3h", "100.0 MiB of 400.0 MiB (25 %)", "3.0 MiB, 0.83 bytes per sample", f"data from {FROM}",
                     "1,000,000 stored of 1,000,010 published", "0.21 %, longest pause 12 ms", "1.0 KiB of 64.0 MiB", "sampling"):
            self.assertIn(text, out)
        self.assertNotIn("were lost", out)
        out, _ = self.cli("status", "--json")
        self.assertEqual(json.loads(out), STATUS)

    def test_narrow_terminal_keeps_every_line_and_says_below_what_has_no_room(self):
        target = STATUS["targets"][0]
        self.fake.answers["/api/v1/status"] = {
            **STATUS, "publishers": [{**STATUS["publishers"][0], "name": f"agent-{place}-with-a-long-name.example", "connected": here}
                                     for place, here in (("fra", True), ("sin", False))],
            "targets": [{**target, "worker": "a-rather-long-name-of-a-worker", "samples": 98765432},
                        {**target, "state": "starved", "samples_starved": 120, "message": "confined to one CPU: shares are wrong"}],
            "limits": [{"name": "stacks_per_version_max", "count": 12, "message": "samples were booked on (limit reached): too many"}]}
        lines = self.shown("status")
        for text in ("connected", "seen ", "98,765,432", "COST, PAUSE", "0.21 %, 12 ms"):
            self.assertIn(text, "\n".join(lines))
        self.assertIn("shop v41 on host1: confined to one CPU: shares are wrong; 120 samples starved", " ".join(lines))

    def test_losses_and_limits_are_said(self):
        samples = {"published": 10, "stored": 1, "lost": 7000, "late": 3, "duplicate": 2}
        self.fake.answers["/api/v1/status"] = {**STATUS, "samples": samples, "publishers": [], "targets": [],
                                               "limits": [{"name": "stacks_max", "count": 12, "message": "folded into one"}]}
        out, _ = self.cli("status")
        for text in ("7,000 samples were lost", "3 samples came too late", "2 samples came twice", "No publisher", "No target",
                     "stacks_max reached 12 times: folded into one"):
            self.assertIn(text, out)

    def test_an_empty_object_is_survived(self):
        self.fake.answers["/api/v1/status"] = {}
        self.cli("status")


class Import(CliCase):
    OK = {"samples": 1500, "stacks": 3, "profile_type": "cpu", "from": FROM, "to": TO, "notes": ["labels were dropped"]}

    def test_file_is_sent_as_it_is_with_all_that_was_said(self):
        self.fake.answers["/api/v1/import"] = self.OK
        path = self.write("a.folded", FOLDED)
        out, words = self.cli("import", path, *W, "--version", "v 1", "--account", "a", "--region", "fra", "--at", FROM,
                              "--duration", "30s", "--profile-type", "wall")
        self.assertEqual(out, "")
        self.assertIn(f"'{path}': note: labels were dropped", words)
        self.assertIn("imported 1 of 1 file into 'shop' version 'v 1', 1,500 samples", words)
        method, route, parameters, body = self.fake.requests[0]
        self.assertEqual((method, route, body), ("POST", "/api/v1/import", FOLDED))
        self.assertEqual(parameters, {"worker": ["shop"], "version": ["v 1"], "account": ["a"], "region": ["fra"], "at": [FROM],
                                      "duration": ["30s"], "type": ["wall"], "format": ["folded"]})

    def test_standard_input(self):
        self.fake.answers["/api/v1/import"] = self.OK
        self.cli("import", "-", *W, "--version", "v1", "--format", "folded", input=FOLDED)
        self.assertEqual(self.fake.requests[0][3], FOLDED)

    def test_failures_are_named_and_the_others_still_imported(self):
        def answer(handler):
            bad = b"bad" in self.fake.requests[-1][3]
            return (422, error("EF_ECORRUPT", "not a profile")) if bad else self.OK

        self.fake.answers["/api/v1/import"] = answer
        good, bad, empty = self.write("good", FOLDED), self.write("bad", "bad"), self.write("empty", "")
        big = self.write("big", b"")
        os.truncate(big, (64 << 20) + 1)
        _, words = self.cli("import", bad, self.folder, empty, self.path("none"), big, good, *W, "--version", "v1", code=1)
        lines = words.splitlines()
        self.assertEqual(lines[0], f"everflame: '{bad}': not a profile")
        self.assertIn("is a directory; give the files in it", lines[1])
        self.assertIn("is empty", lines[2])
        self.assertIn("No such file", lines[3])
        self.assertIn("at most 64 MiB", lines[4])
        self.assertIn("imported 1 of 6 files", lines[-1])
        self.assertIn("5 failed", lines[-1])
        self.assertEqual(len(self.fake.requests), 2)

    def test_an_endless_input_is_bounded(self):
        process = subprocess.Popen(["cat", "/dev/zero"], stdout=subprocess.PIPE)
        self.addCleanup(process.wait)
        self.addCleanup(process.stdout.close)
        done = subprocess.run([ef.program(), "import", "-", *W, "--version", "v1"], stdin=process.stdout,
                              env=ef.environment(self.fake.url), capture_output=True, timeout=60)
        process.kill()
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"more than 64 MiB", done.stderr)
        self.assertEqual(self.fake.requests, [])

    def test_missing_collector_ends_at_once(self):
        files = [self.write(f"f{i}", FOLDED) for i in range(3)]
        _, words = self.cli("import", *files, *W, "--version", "v1", code=6, url=f"http://127.0.0.1:{ef.free_port()}")
        self.assertEqual(words.count("cannot reach"), 1)
        self.assertIn("2 not sent", words)

    def test_bar_only_on_a_terminal(self):
        self.fake.answers["/api/v1/import"] = self.OK
        path = self.write("a.folded", FOLDED)
        _, words = self.cli("import", path, *W, "--version", "v1")
        self.assertNotIn("\r", words)
        for more, bar in (({}, True), ({"CI": "1"}, False), ({"TERM": "dumb"}, False)):
            master, slave = os.openpty()
            done = ef.run_cli("import", path, *W, "--version", "v1", url=self.fake.url, stderr=slave, env=more)
            shown = os.read(master, 65536)
            os.close(slave)
            os.close(master)
            self.assertEqual((done.returncode, done.stdout), (0, b""))
            self.assertEqual(b"[........................] 1/1 " in shown, bar, shown)
            self.assertIn(b"imported 1 of 1 file", shown)


class Failures(CliCase):
    EACH = [("workers", "list"), ("workers", "versions", "list", *W), ("top", *W), ("query", *W, "--format", "folded"),
            ("timeline", *W), ("collect", *W), ("status",)]
    ROUTES = ["workers", "versions", "top", "query", "timeline", "collect", "status", "import"]

    def every(self, answer):
        for route in self.ROUTES:
            self.fake.answers[f"/api/v1/{route}"] = answer

    def test_unreachable_says_the_address_and_what_to_do(self):
        url = f"http://127.0.0.1:{ef.free_port()}"
        for args in self.EACH:
            out, words = self.cli(*args, url=url, code=6)
            self.assertEqual(out, "")
            self.assertIn(f"cannot reach the collector at {url}: ", words)
            self.assertIn("ops/run", words)
            self.assertIn("EVERFLAME_URL", words)
            self.assertEqual(len(words.splitlines()), 1)

    def test_refusals_have_their_exit_codes(self):
        for status, code, exit_code in ((401, "EF_EAUTH", 5), (403, "EF_EAUTH", 5), (404, "EF_ENOTFOUND", 3), (413, "EF_ELIMIT", 1),
                                        (400, "EF_EINVAL", 1), (503, "EF_EBUSY", 1), (502, "EF_EUNREACH", 1), (302, "", 1)):
            self.every((status, error(code, "the reason", "the hint")))
            for args in self.EACH:
                out, words = self.cli(*args, code=exit_code)
                self.assertEqual((out, words), ("", "everflame: the reason (hint: the hint)\n"))
        self.every((429, error("EF_ERATE", "too often"), {"Retry-After": "17"}))
        for args in self.EACH:
            _, words = self.cli(*args, code=7)
            self.assertIn("too often; try again in 17 s", words)

    def test_answers_that_are_not_json(self):
        for answer in (b"<html>hello</html>", b"", b"{", b'"text"', b"[" * 100000, b'{"a":1,"a":2}', b"\xff\xfe", b"{}\x00{}"):
            self.every(answer)
            for args in self.EACH:
                if args[0] != "query":
                    out, words = self.cli(*args, code=1)
                    self.assertEqual(out, "", (args, answer[:20]))
                    self.assertIn("the answer of", words)
        self.every((500, b"\x1b[31mboom"))
        for args in self.EACH:
            _, words = self.cli(*args, code=1)
            self.assertIn("HTTP status 500", words)

    def test_too_large_an_answer_is_refused(self):
        self.every(b'{"functions":["' + b"x" * (100 << 20) + b'"]}')
        _, words = self.cli("top", *W, code=1)
        self.assertIn("larger than", words)

    def test_slow_answer_ends_after_the_timeout(self):
        def slow(handler):
            handler.send_response(200)
            handler.send_header("Content-Length", "100")
            handler.end_headers()
            while not self.fake.released.wait(0.1):
                try:
                    handler.wfile.write(b" ")
                    handler.wfile.flush()
                except OSError:
                    return

        self.every(slow)
        begun = time.monotonic()
        _, words = self.cli("top", *W, "--timeout", "500ms", code=1)
        self.assertLess(time.monotonic() - begun, 10)
        self.assertIn("no whole reply within 500 ms", words)

    def test_cut_answer_is_refused(self):
        def cut(handler):
            handler.send_response(200)
            handler.send_header("Content-Length", "1000")
            handler.end_headers()
            handler.wfile.write(json.dumps(TOP).encode()[:400])

        self.every(cut)
        for args in self.EACH:
            out, _ = self.cli(*args, code=1)
            self.assertEqual(out, "")

    def test_full_disk_behind_standard_output(self):
        self.every(TOP)
        self.fake.answers["/api/v1/query"] = FOLDED
        with open("/dev/full", "wb") as full:
            for args in (("top", *W), ("top", *W, "--json"), ("query", *W, "--format", "folded"), ("help",), ("version",)):
                _, words = self.cli(*args, code=1, stdout=full)
                self.assertEqual(words, "everflame: cannot write to standard output: No space left on device\n")

    def test_closed_standard_output_is_an_error_and_a_gone_reader_is_silent(self):
        done = subprocess.run(["sh", "-c", f"{ef.program()} help >&-"], capture_output=True, timeout=20)
        self.assertEqual(done.returncode, 1)
        read_end, write_end = os.pipe()
        os.close(read_end)
        done = ef.run_cli("help", stdout=write_end)
        os.close(write_end)
        self.assertEqual((done.returncode, done.stderr), (-signal.SIGPIPE, b""))


class Usage(CliCase):
    def test_mistakes_end_with_2_and_name_the_nearest(self):
        for args, text in (
                ((), ""), (("tpo", *W), "do you mean 'top'?"), (("workers", "lsit"), "do you mean 'workers list'?"),
                (("workers", "versions"), "needs a further word"), (("workers",), "needs a further word"),
                (("top", "--worker-idd", "x"), "do you mean '--worker-id'?"), (("top",), "which worker?"),
                (("top", *W, "extra"), "'extra' is one word too many"), (("top", "--worker-id"), "needs a value"),
                (("top", *W, "--version"), "needs a value"), (("top", *W, "--version="), "needs a value"),
                (("top", *W, "--profile-type", "cpuu"), "do you mean 'cpu'?"), (("top", *W, "--from", "yesterday"), "is not a time"),
                (("top", *W, "--from", "now", "--to", "now-1h"), "is not before"), (("top", *W, "--limit", "0"), "outside"),
                (("top", *W, *["--version=x"] * 65), "at most 64 times"), (("timeline", *W, "--step", "x"), "length of time"),
                (("query", *W), "which format?"), (("query", *W, "--format", "pprop"), "do you mean 'pprof'?"),
                (("query", *W, "--format", "svgz"), "there is no format"), (("import", "x", *W), "which version?"),
                (("import", *W, "--version", "1"), "needs FILE..."), (("convert", "x"), "needs IN OUT"),
                (("status", "--url", "127.0.0.1:4680"), "is not an address"), (("completions", "bahs"), "do you mean 'bash'?"),
                (("--url", "x", "top"), "the command comes first"), (("help", "topp"), "do you mean 'top'?"),
                (("import", "x", *W, "--version", "1", "--version", "2"), "one version"),
                (("import", "x", *W, "--version", "1", "--at", "noon"), "--at: ")):
            with self.subTest(args=args):
                done = ef.run_cli(*args, url=self.fake.url)
                self.assertEqual((done.returncode, done.stdout), (2, b""), done.stderr)
                self.assertIn(text, done.stderr.decode())
                if args:
                    self.assertEqual(len(done.stderr.splitlines()), 1)
        self.assertEqual(self.fake.requests, [])

    def test_flag_wins_over_environment_over_default(self):
        self.fake.answers["/api/v1/top"] = TOP
        self.cli("top", env={"EVERFLAME_WORKER_ID": "from-env", "EVERFLAME_VERSION": "not-ours"})
        self.assertEqual(self.fake.requests[-1][2]["worker"], ["from-env"])
        self.assertNotIn("version", self.fake.requests[-1][2])
        self.cli("top", "--worker-id", "from-flag", env={"EVERFLAME_WORKER_ID": "from-env"})
        self.assertEqual(self.fake.requests[-1][2]["worker"], ["from-flag"])
        self.cli("top", *W, "--url", self.fake.url + "/", url="http://127.0.0.1:1")
        self.assertEqual(self.fake.requests[-1][1], "/api/v1/top")

    def test_version_of_the_program_and_version_of_a_worker(self):
        for args in (("--version",), ("version",), ("status", "--version")):
            out, _ = self.cli(*args)
            self.assertRegex(out, r"^everflame \d+\.\d+\.\d+\n$")
        self.fake.answers["/api/v1/top"] = TOP
        self.cli("top", "--worker-id", "--version", "--version", "v1")
        self.assertEqual(self.fake.requests[-1][2]["worker"], ["--version"])
        self.assertEqual(self.fake.requests[-1][2]["version"], ["v1"])

    def test_every_command_has_help_with_examples(self):
        out, _ = self.cli("help")
        commands = re.findall(r"^  ([a-z]+(?: [a-z]+)*)  ", out, re.M)
        self.assertGreaterEqual(len(commands), 11)
        for command in commands:
            out, _ = self.cli("help", *command.split())
            self.assertEqual(self.cli(*command.split(), "--help")[0], out)
            self.assertIn("Usage: everflame " + command, out)
            self.assertGreaterEqual(len(out.split("Examples:\n")[1].splitlines()), 2)
        self.assertIn("workers versions list", self.cli("workers", "--help")[0])
        markdown, _ = self.cli("help", "--markdown")
        for command in commands:
            self.assertIn(f"## everflame {command}\n", markdown)

    def test_completions_are_valid_shell(self):
        out, _ = self.cli("completions", "bash")
        path = self.write("completions", out)
        script = (f"set -eu; . {path}; COMP_WORDS=(everflame top --wor); COMP_CWORD=2; _everflame; echo ${{COMPREPLY[@]}};"
                  f"COMP_WORDS=(everflame wor); COMP_CWORD=1; _everflame; echo ${{COMPREPLY[@]}};"
                  f"COMP_WORDS=(everflame workers ver); COMP_CWORD=2; _everflame; echo ${{COMPREPLY[@]}};"
                  f"COMP_WORDS=(everflame query --format sp); COMP_CWORD=3; _everflame; echo ${{COMPREPLY[@]}}")
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=20)
        self.assertEqual(done.stdout.split(), ["--worker-id", "workers", "versions", "speedscope"], done.stderr)
        for shell in ("zsh", "fish"):
            out, _ = self.cli("completions", shell)
            self.assertIn("worker-id", out)


def error(code, message, hint=""):
    return {"error": {"code": code, "message": message, "hint": hint}}


def read(path):
    with open(path, "rb") as file:
        return file.read()


def current_umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def pprof_bytes():
    """A real pprof, made by the program itself."""
    done = ef.run_cli("convert", "-", "-", "--from", "folded", "--to", "pprof", input=FOLDED)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return done.stdout


PPROF = pprof_bytes()

if __name__ == "__main__":
    ef.main_with_count(unittest)
