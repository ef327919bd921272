"""Kinds of faults that profile files and clocks of the field have caused elsewhere, through the whole product: a file made here by
hand goes in over HTTP, and comes out of a real collector with the same numbers, or is refused whole with a reason.

The numbers are those of tests/FAULTS.md, which also names the unit tests of the other kinds.
"""
import gzip
import json
import os
import random
import re
import sys
import time
import unittest
import urllib.parse
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ef_flow as ef  # noqa: E402
import ef_runtimes as rt  # noqa: E402


def varint(number):
    number &= (1 << 64) - 1
    out = b""
    while True:
        byte = number & 0x7F
        number >>= 7
        if number == 0:
            return out + bytes([byte])
        out += bytes([byte | 0x80])


def number(field, value):
    return varint(field << 3) + varint(value)


def message(field, *parts):
    body = b"".join(parts)
    return varint(field << 3 | 2) + varint(len(body)) + body


class Pprof:
    """A pprof file that may be wrong in any way: `stacks` are lists of function names, root first, with values."""

    def __init__(self, types=(("samples", "count"), ("cpu", "nanoseconds"))):
        self.strings = [""]
        self.head = b"".join(message(1, number(1, self.text(t)), number(2, self.text(u))) for t, u in types)
        self.body = b""
        self.locations = {}

    def text(self, text):
        if text not in self.strings:
            self.strings.append(text)
        return self.strings.index(text)

    def location(self, name, mapping=0, address=0, ident=None):
        if (name, mapping, address) not in self.locations:
            ident = len(self.locations) + 1 if ident is None else ident
            self.locations[name, mapping, address] = ident
            line = b""
            if name:
                self.body += message(5, number(1, ident), number(2, self.text(name)))
                line = message(4, number(1, ident))
            self.body += message(4, number(1, ident), number(2, mapping), number(3, address), line)
        return self.locations[name, mapping, address]

    def mapping(self, ident, start, end, file):
        self.body += message(3, number(1, ident), number(2, start), number(3, end), number(5, self.text(file)))

    def sample(self, locations, *values):
        """Locations root first, as people write stacks."""
        self.body += message(2, message(1, *[varint(i) for i in reversed(locations)]), message(2, *[varint(v) for v in values]))

    def stack(self, names, *values):
        self.sample([self.location(name) for name in names], *values)

    def bytes(self, time_ns=0, duration_ns=0, period=0, period_type=None):
        out = self.head + self.body
        if time_ns:
            out += number(9, time_ns)
        if duration_ns:
            out += number(10, duration_ns)
        if period_type:
            out += message(11, number(1, self.text(period_type[0])), number(2, self.text(period_type[1])))
        if period:
            out += number(12, period)
        return out + b"".join(message(6, s.encode()) for s in self.strings)


class Faults(ef.FlowCase):
    def setUp(self):
        super().setUp()
        self.daemon = self.keep(ef.start_everflamed(self.path("d")))
        self.begun = int(time.time()) // 10 * 10 - 600

    def request(self, method, path, body=None, **params):
        url = f"{self.daemon.url}/api/v1/{path}?{urllib.parse.urlencode(params)}"
        return ef.get_json(url) if method == "GET" else ef.post_json(url, body or b"")

    def put(self, file, worker="shop", version="v1", offset=0, **params):
        """Imports at begun + offset seconds; gives (status, answer)."""
        at = f"{self.begun + offset}.000" if offset is not None else None
        return self.request("POST", "import", file, worker=worker, version=version, **({"at": self.stamp(offset)} if at else {}),
                            **params)

    def stamp(self, offset):
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.begun + offset))

    def taken(self, *args, **kwargs):
        status, answer = self.put(*args, **kwargs)
        self.assertEqual(status, 200, answer)
        return answer

    def refused(self, file, words, status=None, **kwargs):
        """Refused with a reason, and nothing of it is left."""
        got, answer = self.put(file, worker="refused", **kwargs)
        self.assertIn(got, (400, 413, 422, 501) if status is None else (status,), answer)
        self.assertRegex(answer["error"]["message"], words)
        self.assertNotIn("refused", [w["worker"] for w in self.daemon.get("/api/v1/workers")])

    def folded(self, worker="shop", start=0, end=3600, **params):
        """{stack: value} of an export."""
        query = urllib.parse.urlencode({"worker": worker, "from": self.stamp(start), "to": self.stamp(end), "format": "folded",
                                        **params})
        lines = self.daemon.get(f"/api/v1/query?{query}", raw=True).decode().splitlines()
        return {line.rpartition(" ")[0]: int(line.rpartition(" ")[2]) for line in lines}

    def top(self, worker="shop", start=0, end=3600, **params):
        status, answer = self.request("GET", "top", worker=worker, **{"from": self.stamp(start), "to": self.stamp(end), **params})
        self.assertEqual(status, 200, answer)
        return answer

    def points(self, start, end, worker="shop"):
        """[samples] of each 10 s."""
        status, answer = self.request("GET", "timeline", worker=worker, **{"from": self.stamp(start), "to": self.stamp(end)})
        self.assertEqual(status, 200, answer)
        return [p["samples"] for p in answer["points"]]

    # 1, 13: what one profile lacks, another has; and nobody has mappings.
    def test_profiles_with_and_without_mappings_add_up(self):
        empty = Pprof().bytes(period_type=("cpu", "nanoseconds"), period=1000)
        self.refused(empty, "no samples")
        bare, mapped = Pprof(), Pprof()
        bare.stack(["main", "work"], 2, 2000)
        mapped.mapping(1, 0x1000, 0x9000, "lib.so")
        mapped.sample([mapped.location("main", 1, 0x1100), mapped.location("work", 1, 0x1200)], 3, 3000)
        for file in (bare.bytes(), mapped.bytes(), bare.bytes()):
            self.taken(file)
        self.assertEqual(self.folded(), {"main;work": 7000})

    # 3, 8, 16, 22: files that are none, or two, or lie about sizes.
    def test_files_that_are_none_or_two_are_refused_whole(self):
        one = Pprof()
        one.stack(["main"], 1, 1000)
        self.refused(one.bytes() + one.bytes(), "several profiles")
        self.refused(b"", "body is empty")
        self.refused(gzip.compress(b""), "empty|not a profile|cannot tell|no format")
        self.refused(one.bytes() + message(1, number(1, len(one.strings)), number(2, 0)), "string|index|table", format="pprof")
        self.refused(one.bytes() + message(5, number(1, 99), number(2, len(one.strings))), "string|index|table", format="pprof")
        self.refused(one.bytes() + varint(6 << 3 | 2) + varint(1 << 40), "damaged", format="pprof")
        self.refused(gzip.compress(bytes(300 << 20), 9), "larger|limit|MiB|bytes|more than")
        self.assertTrue(self.daemon.alive())
        self.assertLess(self.daemon.status()["memory"]["resident_bytes"], 256 << 20)

    # 4
    def test_more_or_fewer_values_than_types_are_refused(self):
        for values in ((1,), (1, 2, 3), ()):
            file = Pprof()
            file.stack(["main"], 1, 1000)
            file.stack(["main", "work"], *values)
            self.refused(file.bytes(), "value", format="pprof")

    # 7: a profile scaled down to nothing holds no samples; that is said, not called damaged.
    def test_a_profile_of_zeros_is_named_as_one_without_samples(self):
        file = Pprof()
        file.stack(["main"], 0, 0)
        self.refused(file.bytes(), "no samples", status=400)

    # 10, 19, 20: numbers of mappings are names; one library at two bases; code without a mapping among native code.
    def test_addresses_of_mappings_with_any_number_stay_apart(self):
        file = Pprof()
        file.mapping(7000000, 0x10000, 0x20000, "lib.so")
        file.mapping(42, 0x50000, 0x60000, "lib.so")
        low, high = file.location("", 7000000, 0x10010), file.location("", 42, 0x50010)
        jit, main = file.location("", 0, 0xDEAD0), file.location("main")
        file.sample([main, low], 1, 1000)
        file.sample([main, high], 2, 2000)
        file.sample([main, jit], 4, 4000)
        self.taken(file.bytes())
        stacks = self.folded()
        self.assertEqual(sorted(stacks.values()), [1000, 2000, 4000])
        self.assertEqual(len({f["name"] for f in self.top()["functions"]}), 4)
        self.assertTrue(any("dead0" in s for s in stacks), stacks)

    # 12: elements with number 0 go alone; a location with mapping 0 stays.
    def test_elements_with_number_zero_go_alone(self):
        file = Pprof()
        file.stack(["main", "work"], 5, 5000)
        bad = message(3, number(1, 0)) + message(4, number(1, 0), number(3, 1)) + message(5, number(1, 0))
        self.taken(bad + file.bytes())
        self.assertEqual(self.folded(), {"main;work": 5000})

    # 15: no period type, in one and in both.
    def test_profiles_with_and_without_a_period_type_add_up(self):
        with_type, without = Pprof(), Pprof()
        with_type.stack(["main"], 1, 1000)
        without.stack(["main"], 2, 2000)
        self.taken(with_type.bytes(period_type=("cpu", "nanoseconds"), period=1000))
        self.taken(without.bytes())
        self.taken(without.bytes())
        self.assertEqual(self.folded(), {"main": 5000})
        self.assertEqual(self.top()["total"]["value"], 5000)

    # 23
    def test_five_thousand_roots_come_out_again(self):
        file = Pprof()
        for i in range(5000):
            file.sample([file.location(f"root{i}")], 1, 1000)
        self.taken(file.bytes())
        self.assertEqual(len(self.folded()), 5000)
        self.assertEqual(self.top(limit=10)["other"]["self"]["samples"], 4990)

    # 23: more stacks than a version may have, and more callers among them than a batch may hold: the sum is kept all the same.
    def test_more_stacks_than_a_version_may_have_are_booked_on_the_limit(self):
        rng = random.Random(5)
        lines = [";".join(f"f{rng.randrange(2000)}" for _ in range(8)) + " 1" for _ in range(60000)]
        answer = self.taken("\n".join(lines).encode())
        self.assertEqual(answer["samples"], 60000)
        stacks = self.folded()
        self.assertEqual(sum(stacks.values()), 60000)
        self.assertGreater(stacks["(limit reached)"], 10000)
        self.assertIn("stacks_per_version_max", [limit["name"] for limit in self.daemon.status()["limits"]])

    # 26, 29, 30: a difference is no profile; but what nets to something positive is.
    def test_negative_values_are_refused_unless_they_net_out(self):
        types = (("alloc_objects", "count"), ("alloc_space", "bytes"))
        file = Pprof(types)
        file.stack(["main", "grow"], 10, 100)
        file.stack(["main", "shrink"], -5, -50)
        self.refused(file.bytes(), "negative")
        for order in ((100, -150, 200), (-150, 100, 200), (200, 100, -150)):
            file = Pprof(types)
            for value in order:
                file.stack(["main", "net"], value, value)
            answer = self.taken(file.bytes(), worker=f"net{order[0]}")
            self.assertEqual(answer["samples"], 150)
            self.assertEqual(self.top(worker=f"net{order[0]}", type="alloc")["total"]["value"], 150)

    # 52: units of other programs; several profiles in one file.
    def test_speedscope_files_of_any_unit_are_taken_or_refused_with_a_reason(self):
        def file(*units):
            return json.dumps({"$schema": "https://www.speedscope.app/file-format-schema.json",
                               "shared": {"frames": [{"name": "main"}, {"name": "work"}]},
                               "profiles": [{"type": "sampled", "name": "p", "unit": unit, "startValue": 0, "endValue": 3,
                                             "samples": [[0], [0, 1]], "weights": [1, 2]} for unit in units]}).encode()

        self.taken(file("seconds"), worker="s")
        self.assertEqual(self.top(worker="s", type="wall")["total"]["value"], 3 * 10**9)
        self.taken(file("milliseconds", "milliseconds"), worker="two")
        self.assertEqual(self.top(worker="two", type="wall")["total"]["value"], 6 * 10**6)
        self.taken(file("seconds"), worker="asked", type="cpu")
        self.assertEqual(self.top(worker="asked")["total"]["value"], 3 * 10**9)
        for unit in ("bytes", "none", "foo"):
            status, answer = self.put(file(unit), worker=f"u-{unit}", type="alloc")
            self.assertIn(status, (200, 422, 501), answer)
            if status != 200:
                self.assertTrue(answer["error"]["message"])

    # 53, 63: times as text of every kind; ranges of no length and inverted ones.
    def test_times_are_text_of_any_kind_and_odd_ranges_get_clear_answers(self):
        file = Pprof()
        file.stack(["main"], 3, 3000)
        self.taken(file.bytes())
        first, last = self.begun, self.begun + 10
        for start, end in ((first, last), (first * 1000, last * 1000), (self.stamp(0), self.stamp(10)), (f"{first}.0", f"{last}.0"),
                           (self.stamp(0).replace("Z", "+00:00"), self.stamp(10))):
            status, answer = self.request("GET", "top", worker="shop", **{"from": start, "to": end})
            self.assertEqual(status, 200, (start, answer))
            self.assertEqual(answer["samples"], 3, start)
        self.assertEqual(self.top(start=5, end=5)["samples"], 3, "a moment is the bucket that holds it")
        status, answer = self.request("GET", "top", worker="shop", **{"from": self.stamp(10), "to": self.stamp(0)})
        self.assertEqual(status, 400)
        self.assertIn("later than", answer["error"]["message"])
        for text in ("%7B", "yesterday", "", "now-", "1e999", "{from}"):
            status, answer = self.request("GET", "top", worker="shop", **{"from": text})
            self.assertEqual(status, 400, answer)
            self.assertIn("from", answer["error"]["message"])

    # 55: data for an older bucket, and for the last one of a range, add to what is there and overwrite nothing.
    def test_backfill_adds_and_overwrites_nothing(self):
        file = Pprof()
        file.stack(["main"], 4, 4000)
        for offset in (50, 0, 50, 30, 0):
            self.taken(file.bytes(), offset=offset)
        self.assertEqual(self.points(0, 60), [8, 0, 0, 4, 0, 8])
        self.assertEqual(self.points(0, 50), [8, 0, 0, 4, 0])
        self.assertEqual(self.points(50, 60), [8])

    # 56: the same points whatever the range around them.
    def test_points_do_not_change_while_the_range_moves(self):
        rng = random.Random(7)
        for offset in range(0, 120, 10):
            file = Pprof()
            file.stack(["main"], rng.randint(1, 50), 1000)
            self.taken(file.bytes(), offset=offset + rng.randint(0, 9))
        whole = self.points(0, 120)
        self.assertTrue(all(whole))
        for shift in range(0, 60, 10):
            self.assertEqual(self.points(shift, shift + 60), whole[shift // 10:shift // 10 + 6])

    # 58: ten seconds that lie across two buckets.
    def test_a_session_across_two_buckets_is_split_and_its_sum_kept(self):
        file = Pprof()
        file.stack(["main"], 101, 101000)
        self.taken(file.bytes(), offset=15, duration="10s")
        points = self.points(0, 40)
        self.assertEqual((points[0], points[3], sum(points)), (0, 0, 101))
        self.assertEqual(sorted(points[1:3]), [50, 51])

    # 60: no time at all: as of now, and said so.
    def test_a_file_without_a_time_is_booked_as_of_now_and_says_so(self):
        file = Pprof()
        file.stack(["main"], 9, 9000)
        answer = self.taken(file.bytes(duration_ns=5 * 10**9), offset=None)
        self.assertTrue(any("as of now" in note for note in answer["notes"]), answer)
        ago = time.time() - time.mktime(time.strptime(answer["to"][:19], "%Y-%m-%dT%H:%M:%S")) + time.timezone
        self.assertLess(abs(ago), 25)
        self.assertEqual(self.top(start=500, end=700)["samples"], 9)

    # 61: two workers with equal labels, interleaved and out of order.
    def test_interleaved_times_of_equal_names_are_all_kept(self):
        offsets = [o for pair in zip(range(100, 0, -10), range(0, 100, 10)) for o in pair]
        for offset in offsets:
            file = Pprof()
            file.stack(["main"], 1, 1000)
            self.taken(file.bytes(), offset=offset, region="fra")
        self.assertEqual(sum(self.points(0, 110)), len(offsets))

    # 22: what a file says in few bytes may need much memory: refused before it is taken, and the cap holds.
    def test_an_import_that_needs_more_than_the_cap_is_refused_and_the_cap_holds(self):
        small = self.keep(ef.start_everflamed(self.path("small"), name="small", memory_max=str(96 << 20)))
        ticks = json.dumps({"nodes": [{"id": 1, "callFrame": {"functionName": "main", "scriptId": "0", "url": "", "lineNumber": 0,
                                                              "columnNumber": 0}, "hitCount": 1}],
                            "startTime": 0, "endTime": 9, "samples": [1] * 2000000, "timeDeltas": [1] * 2000000},
                           separators=(",", ":")).encode()
        rng = random.Random(1)
        stacks = "".join(";".join(f"f{rng.randrange(300)}" for _ in range(20)) + " 1\n" for _ in range(60000)).encode()
        for body in (ticks, stacks, gzip.compress(ticks)):
            status, answer = ef.post_json(f"{small.url}/api/v1/import?worker=big&version=v1", body)
            self.assertEqual((status, answer["error"]["code"]), (413, "EF_ELIMIT"), answer)
            self.assertIn("memory_max", answer["error"]["message"] + answer["error"]["hint"])
        with open(f"/proc/{small.pid}/status", encoding="ascii") as file:
            most = int(re.search(r"VmHWM:\s+(\d+)", file.read()).group(1)) << 10
        self.assertLess(most, 96 << 20)
        self.assertEqual(small.get("/api/v1/workers"), [])

    # 6: an export of nothing says why, and an empty file that has types is not called damaged.
    def test_nothing_to_export_says_why(self):
        file = Pprof()
        file.stack(["main"], 1, 1000)
        self.taken(file.bytes())
        status, answer = self.request("GET", "query", worker="shop", type="wall")
        self.assertEqual((status, answer["error"]["reason"]), (404, "no_such_type"))
        done = ef.run_cli("convert", self.write("e.pprof", Pprof().bytes()), self.path("e2.pprof"))
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(self.path("e2.pprof"), "rb") as out:
            again = gzip.decompress(out.read())
        for text in (b"samples", b"count", b"cpu", b"nanoseconds"):
            self.assertTrue(re.search(message(6, text), again, re.DOTALL), text)


CHURN = """
const kept = [];
setInterval(() => { if (kept.length < 300) kept.push(new Array(5000).fill(kept.length + 0.5)); }, 100);
function churn() { let sum = 0; for (let i = 0; i < 400; i++) sum += new Array(5000).fill(i + 0.5).length; return sum; }
setInterval(churn, 10);
const server = require("http").createServer((request, response) => {
    global.gc();
    response.end(JSON.stringify({used: process.memoryUsage().heapUsed, kept: kept.length}));
});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
"""


class LiveHeap(ef.FlowCase):
    # 49: what is in use must follow the real heap, not the sum of what was ever allocated.
    def test_garbage_does_not_pile_up_in_the_heap_in_use(self):
        daemon = self.keep(ef.start_everflamed(self.path("d")))
        node = self.keep(rt.Node(self.folder, CHURN, flags=("--expose-gc",)))
        self.keep(rt.Agent(self.folder, daemon, [node.target("acct", "churn", "v1", heap="inuse", rotation="5s")]))
        begun = time.time()

        def snapshots():
            answer = daemon.get(f"/api/v1/timeline?worker=churn&type=inuse&from={begun - 20:.0f}&step=10s")
            return [p["value"] for p in answer["points"] if p["samples"] > 0]

        value = ef.wait_for(snapshots, 150, "a snapshot of the heap in use, each 60 s")[0]
        with urllib.request.urlopen(node.url(), timeout=10) as answer:
            real = json.loads(answer.read())["used"]
        print(f"in use {value >> 10} KiB of a heap of {real >> 10} KiB", flush=True)
        # 300 arrays of 5,000 doubles are 12 MB and stay; of the others each second makes hundreds of MB.
        self.assertLess(value, 2 * real)
        self.assertGreater(value, 6 << 20)


if __name__ == "__main__":
    ef.main_with_count(unittest)
