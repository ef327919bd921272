"""The style guide, as far as a machine can check it: include directions, the one-place rule for foreign libraries,
headers that compile alone, formatting, tables against the generated reference, README headings, words.

Each check is also run against a made-up violation first, so that a check that cannot fail is noticed.
Standard library only.
"""
import os
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = os.environ.get("EF_SOURCE_DIR") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("EF_BIN_DIR", os.path.join(ROOT, "build/bin"))

# Folder prefix -> our folders it may include (its own is always allowed). The longest prefix counts.
MAY_INCLUDE = {
    "proto/base": [],
    "proto/wire": ["proto/"],
    "proto/model": ["proto/base", "proto/model"],
    "proto/pprof": ["proto/base", "proto/model", "proto/formats"],
    "proto/formats": ["proto/base", "proto/model", "proto/pprof"],
    "proto/http": ["proto/base"],
    "sampler": ["sampler/", "proto/"],
    "storage": ["storage/", "proto/"],
    "storage/rocksdb": ["storage/", "proto/"],
    "storage/memory": ["storage/", "proto/"],
    "collector/aggregate": ["storage/store.h", "storage/block.h", "proto/"],
    "collector/ingest": ["collector/aggregate", "storage/store.h", "proto/"],
    "collector/query": ["storage/store.h", "storage/block.h", "proto/"],
    "collector/serve": ["collector/query", "collector/ingest", "collector/aggregate", "storage/store.h", "proto/"],
    "collector/cli": ["proto/"],
    "collector/daemon": ["collector/", "storage/", "proto/"],
    "tests": [""],
}
# Foreign header -> where alone it may be included (tests may include anything).
ONE_PLACE = {
    r"rocksdb/": ["storage/rocksdb/"],
    r"microhttpd\.h": ["collector/serve/"],
    r"nng/": ["collector/ingest/", "sampler/lib/", "sampler/agent/", "sampler/v8/"],
    r"cyaml/": ["sampler/agent/", "collector/daemon/"],
    r"jansson\.h": ["proto/formats/", "collector/cli/", "sampler/v8/"],
    r"curl/": ["proto/http/"],
    r"sodium": ["proto/wire/"],
    r"zstd": ["proto/wire/"],
    r"zlib\.h": ["proto/pprof/"],
    r"xxhash\.h": ["proto/base/", "proto/model/"],
    r"protobuf-c/": ["proto/wire/"],
    r"cmocka": [],
}
README_HEADINGS = ["What it does", "In and out", "Rules that must hold", "Files", "How to add one"]
# Paths of somebody's machine have no place in a repository.
LOCAL_PATHS = re.compile(r"/(?:home|Users|wor[k])/[a-z]\w*/", re.I)


def tracked(*patterns):
    out = subprocess.run(["git", "-C", ROOT, "ls-files", "--", *patterns], text=True, capture_output=True, check=True)
    return [p for p in out.stdout.splitlines() if os.path.exists(os.path.join(ROOT, p))]


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def folder_rule(path):
    best = [p for p in MAY_INCLUDE if path.startswith(p + "/")]
    return max(best, key=len) if best else None


def include_faults(path, text):
    faults = []
    rule = folder_rule(path)
    own = os.path.dirname(path)
    for number, line in enumerate(text.splitlines(), 1):
        quoted = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
        angled = re.match(r"\s*#\s*include\s+<([^>]+)>", line)
        where = f"{path}:{number}: "
        if quoted:
            name = quoted.group(1)
            if ".." in name:
                faults.append(where + f"'{name}' has '..'; write includes from the root")
            elif "/" not in name:
                faults.append(where + f"'{name}' is not written from the root")
            elif rule is None:
                faults.append(where + "this folder is not in the table of tests/tidy")
            elif not (os.path.dirname(name) == own or name.startswith("proto/everflame/")
                      or any(name.startswith(p) for p in MAY_INCLUDE[rule])):
                faults.append(where + f"{rule} must not include '{name}'")
        if angled and not path.startswith("tests/"):
            for library, places in ONE_PLACE.items():
                if re.match(library, angled.group(1)) and not any(path.startswith(p) for p in places):
                    faults.append(where + f"<{angled.group(1)}> belongs to {' '.join(places) or 'the tests'} only")
    return faults


def readme_faults(path, text):
    found = re.findall(r"^## (.+)$", text, re.M)
    faults = [f"{path}: heading '{h}' is missing" for h in README_HEADINGS if h not in found]
    if len(text.splitlines()) > 90:
        faults.append(f"{path}: {len(text.splitlines())} lines are more than a page (90)")
    return faults


class Tidy(unittest.TestCase):
    def none(self, faults):
        self.assertFalse(faults, "\n" + "\n".join(faults[:40]))

    def test_includes_follow_the_way_of_a_sample(self):
        self.assertTrue(include_faults("proto/base/x.c", '#include "storage/store.h"\n'))
        self.assertTrue(include_faults("storage/x.c", '#include "../proto/base/err.h"\n'))
        self.assertTrue(include_faults("collector/query/x.c", "#include <rocksdb/c.h>\n"))
        self.assertTrue(include_faults("collector/query/x.c", '#include "collector/ingest/ingest.h"\n'))
        faults = []
        for path in tracked("*.c", "*.h"):
            faults += include_faults(path, read(path))
        self.none(faults)

    def test_each_header_compiles_alone(self):
        flags = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{ROOT}",
                 "-isystem", os.path.join(os.path.dirname(BIN), "gen"), "-x", "c"]
        with tempfile.NamedTemporaryFile("w", suffix=".h") as bad:
            bad.write("struct x { size_t y; };\n")
            bad.flush()
            self.assertNotEqual(subprocess.run(["cc", *flags, bad.name], capture_output=True).returncode, 0)
        faults = []
        for path in tracked("*.h"):
            done = subprocess.run(["cc", *flags, os.path.join(ROOT, path)], text=True, capture_output=True)
            if done.returncode != 0:
                faults.append(f"{path}: {done.stderr[:400]}")
        self.none(faults)

    def test_sources_are_formatted(self):
        faults = []
        for path in tracked("*.c", "*.h"):
            done = subprocess.run(["clang-format-14", "--dry-run", "--Werror", os.path.join(ROOT, path)],
                                  text=True, capture_output=True)
            if done.returncode != 0:
                faults.append(f"{path}: not as clang-format-14 writes it")
        self.none(faults)

    def test_files_begin_with_what_they_decide(self):
        self.none([f"{p}: begins without a comment" for p in tracked("*.c", "*.h", "*.def")
                   if not read(p).startswith("/*") and not p.startswith("tests/support/ef_test")])

    def test_static_names_and_public_prefix(self):
        faults = []
        for path in tracked("*.h"):
            if path.startswith("tests/"):
                continue
            for name in re.findall(r"^(?:EF_MUST_USE )?[a-z_][\w \*]*?\b(\w+)\(", read(path), re.M):
                if not name.startswith(("ef_", "EF_")):
                    faults.append(f"{path}: public name '{name}' lacks the prefix ef_")
        self.none(faults)

    def test_folder_readmes_have_the_five_headings(self):
        self.assertTrue(readme_faults("x", "# x\n"))
        folders = {os.path.dirname(p) for p in tracked("*.c") if not p.startswith("tests/")}
        faults = []
        for folder in sorted(folders):
            path = f"{folder}/README.md"
            if not os.path.exists(os.path.join(ROOT, path)):
                faults.append(f"{path} is missing")
            else:
                faults += readme_faults(path, read(path))
        self.none(faults)

    def test_generated_reference_agrees_with_the_tables(self):
        for program, what, path in (("everflamed", "options", "ops/reference/everflamed-options.md"),
                                    ("everflamed", "metrics", "ops/reference/metrics.md"),
                                    ("everflamed", "events", "ops/reference/events.md"),
                                    ("everflamed", "errors", "ops/reference/errors.md"),
                                    ("everflamed", "routes", "ops/reference/routes.md"),
                                    ("everflame-agent", "options", "ops/reference/everflame-agent-options.md")):
            with self.subTest(path=path):
                done = subprocess.run([os.path.join(BIN, program), "--print", what], text=True, capture_output=True)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(done.stdout, read(path), f"{path} is old: cmake --build build --target reference")
        done = subprocess.run([os.path.join(BIN, "everflame"), "help", "--markdown"], text=True, capture_output=True)
        self.assertEqual(done.stdout, read("ops/reference/cli.md"))

    def test_metrics_and_events_of_the_tables_are_used(self):
        sources = "".join(read(p) for p in tracked("*.c") if not p.startswith("tests/"))
        faults = [f"metric '{n}' is declared but never changed"
                  for n in re.findall(r"^X\((\w+)", read("proto/base/metrics.def"), re.M)
                  if f"EF_METRIC_{n}" not in sources]
        faults += [f"event '{n}' is declared but never logged"
                   for n in re.findall(r"^X\((\w+)", read("proto/base/events.def"), re.M)
                   if not re.search(rf"EF_LOG\(\s*{n}\b|EF_EVENT_{n}\b", sources)]
        self.none(faults)

    def test_packages_are_explained_in_the_readme(self):
        readme = read("README.md")
        names = [line.split()[0] for line in read("ops/packages.txt").splitlines()
                 if line.strip() and not line.startswith("#")]
        self.none([f"README.md does not say why '{n}' is needed" for n in names if f"`{n}`" not in readme])

    def test_no_paths_of_somebodys_machine(self):
        self.assertTrue(LOCAL_PATHS.search("see /" + "home/somebody/everflame"))
        faults = []
        for path in tracked():
            if path.startswith("tests/tidy/") or path.endswith((".bin", ".png", ".gz", ".pprof")):
                continue
            try:
                text = read(path)
            except UnicodeDecodeError:
                continue
            for number, line in enumerate(text.splitlines(), 1):
                if LOCAL_PATHS.search(line):
                    faults.append(f"{path}:{number}: {line.strip()[:100]}")
        self.none(faults)

    def test_top_level_is_closed(self):
        allowed = {"CMakeLists.txt", "CMakePresets.json", "CONTRIBUTING.md", "LICENSE", "README.md", "collector", "ops",
                   "proto", "sampler", "storage", "tests"}
        top = {p.split("/")[0] for p in tracked()}
        self.none([f"'{n}' does not belong at the top level" for n in sorted(top) if n not in allowed and n[0] != "."])

    def test_scripts_are_sound(self):
        faults = []
        for path in ("ops/run", "ops/test", "ops/build", "ops/install", ".ci/run"):
            if not os.access(os.path.join(ROOT, path), os.X_OK):
                faults.append(f"{path} is not executable")
            done = subprocess.run(["bash", "-n", os.path.join(ROOT, path)], text=True, capture_output=True)
            if done.returncode != 0:
                faults.append(f"{path}: {done.stderr}")
        self.none(faults)


if __name__ == "__main__":
    result = unittest.main(exit=False, verbosity=1).result
    failed = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - failed} passed, {failed} failed", flush=True)
    sys.exit(1 if failed else 0)
