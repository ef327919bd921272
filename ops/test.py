"""Runs the test stages one after the other, counts every single test, and prints one closing line.

A stage that cannot be built or ends without a count is a failed test: nothing is skipped silently.
Standard library only.
"""
import argparse
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET

ROOT = os.environ.get("EF_ROOT") or os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FUZZ_SECONDS = int(os.environ.get("EF_FUZZ_SECONDS", "15"))


class Count:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.failures = []

    def add(self, name, ok, detail=""):
        if ok:
            self.passed += 1
        else:
            self.failed += 1
            self.failures.append(name)
            print(f"FAILED {name}\n{detail}", flush=True)


def build(preset, count):
    print(f"== build {preset}", flush=True)
    done = subprocess.run([os.path.join(ROOT, "ops/build"), preset], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    count.add(f"build {preset}", done.returncode == 0, done.stdout)
    return done.returncode == 0


def cmocka_counts(text):
    """Counts inside one test program: cmocka's own report, or our 'N passed, N failed' line."""
    passed = len(re.findall(r"^\[\s+OK\s+\]", text, re.M))
    failed = len(set(re.findall(r"^\[\s+FAILED\s+\] (\S+)", text, re.M)))
    skipped = len(re.findall(r"^\[\s+SKIPPED\s+\] \S+$", text, re.M)) // 2
    line = re.findall(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", text, re.M)
    if line:
        passed, failed = int(line[-1][0]), int(line[-1][1])
        skipped = int(line[-1][2] or 0)
    return passed, failed, skipped


def ctest(folder, labels, count, stage, jobs="2"):
    print(f"== {stage}", flush=True)
    folder = os.path.join(ROOT, folder)
    report = os.path.join(folder, f"report-{re.sub(r'[^a-z]+', '-', stage)}.xml")
    if os.path.exists(report):
        os.unlink(report)
    started = time.monotonic()
    subprocess.run(["ctest", "--test-dir", folder, "-j", jobs, "-L", labels, "--output-junit", report,
                    "--output-on-failure", "--quiet", "--test-output-size-passed", "4000000",
                    "--test-output-size-failed", "4000000"], stdout=subprocess.DEVNULL,
                   stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    cases = ET.parse(report).getroot().findall("testcase") if os.path.exists(report) else []
    if not cases:
        count.add(f"{stage}: ctest ran nothing", False)
        return
    passed = failed = 0
    for case in cases:
        output = case.findtext("system-out") or ""
        ok = case.get("status") == "run"
        inner_passed, inner_failed, inner_skipped = cmocka_counts(output)
        count.skipped += inner_skipped
        for name in sorted(set(re.findall(r"^(?:SKIPPED: (.*)|\[  SKIPPED \] (\w+))$", output, re.M))):
            print(f"   skipped in {case.get('name')}: {''.join(name)}", flush=True)
        count.passed += inner_passed if ok else 0
        passed += inner_passed if ok else 0
        if not ok or inner_failed:
            failed += max(1, inner_failed)
            count.failed += max(1, inner_failed) - 1
            count.add(f"{stage}: {case.get('name')}", False, output[-6000:])
        elif inner_passed == 0:
            count.add(f"{stage}: {case.get('name')}", True)
            passed += 1
    print(f"   {passed} passed, {failed} failed in {time.monotonic() - started:.0f} s", flush=True)


def fuzz(count):
    folder = os.path.join(ROOT, "build-fuzz/tests")
    names = sorted(n for n in os.listdir(folder) if n.startswith("fuzz_")) if os.path.isdir(folder) else []
    print(f"== fuzz, {FUZZ_SECONDS} s each: {' '.join(names)}", flush=True)
    if not names:
        count.add("fuzz: no targets", False)
    for name in names:
        seeds = os.path.join(ROOT, "tests/fuzz/seeds", name)
        work = os.path.join(ROOT, "build-fuzz/corpus", name)
        os.makedirs(work, exist_ok=True)
        done = subprocess.run([os.path.join(folder, name), f"-max_total_time={FUZZ_SECONDS}",
                               "-rss_limit_mb=2048", "-timeout=10", "-print_final_stats=0",
                               f"-artifact_prefix={work}/", work, seeds],
                              text=True, errors="replace", stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        count.add(f"fuzz {name}", done.returncode == 0, done.stdout[-6000:])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    os.chdir(ROOT)
    count = Count()
    started = time.monotonic()
    if build("release", count):
        ctest("build", "tidy|unit|contract|fault|compat|fuzz", count, "release")
        if not quick:
            ctest("build", "flow", count, "flow on real processes", jobs="1")
    if not quick:
        if build("asan", count):
            ctest("build-asan", "unit|contract|fault|compat|fuzz", count, "address+undefined")
        if build("tsan", count):
            ctest("build-tsan", "unit|contract", count, "thread")
        if build("fuzz", count):
            fuzz(count)
    print(f"\n{time.monotonic() - started:.0f} s")
    for name in count.failures:
        print(f"failed: {name}")
    tail = f", {count.skipped} skipped" if count.skipped else ""
    print(f"{count.passed} passed, {count.failed} failed{tail}", flush=True)
    return 1 if count.failed else 0


if __name__ == "__main__":
    sys.exit(main())
