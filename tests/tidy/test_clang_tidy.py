"""clang-tidy with the settings of .clang-tidy over every C source of ours. Standard library only."""
import concurrent.futures
import os
import subprocess
import sys

ROOT = os.environ.get("EF_SOURCE_DIR") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.dirname(os.environ.get("EF_BIN_DIR", os.path.join(ROOT, "build/bin")))


def check(path):
    done = subprocess.run(["clang-tidy-14", "-p", BUILD, "--quiet", path], text=True, cwd=ROOT,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return path, done.returncode, done.stdout


def main():
    out = subprocess.run(["git", "-C", ROOT, "ls-files", "--", "*.c"], text=True, capture_output=True, check=True)
    paths = [p for p in out.stdout.splitlines() if not p.startswith("tests/")]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        for path, code, text in pool.map(check, paths):
            if code != 0:
                failed += 1
                print(f"--- {path}\n{text}", flush=True)
    print(f"{len(paths) - failed} passed, {failed} failed", flush=True)
    return 1 if failed or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
