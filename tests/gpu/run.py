#!/usr/bin/env python3
"""Runs the test binaries on the GPU of this machine; ./dev gpu-test calls it.

  run.py [--sanitize] [--shard I/N] [--bin DIR] [--out DIR] [--jobs N]
  run.py --status      how the last summaries stand to this tree, one line each
  run.py --hash        the hash of src/cuda and src/policy that a summary carries

Every test case runs in a process of its own, several at once. Prints counts and, for every kernel,
the largest error as a share of its gate; writes the same to DIR/gpu-test.json (or gpu-sanitize.json;
with a shard: gpu-test-1of3.json). Fails where there is no GPU, where a test fails, and where nothing ran.
"""
import argparse
import concurrent.futures
import datetime
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SHARED = ["sweep_test", "bits_test", "cases_test", "matrix_test"]  # the CPU's tests, unchanged
ALONE = "gpu_test"  # watches the GPU's free memory: nothing else runs beside it
CPU_ONLY = {"Bits.any_parallel_for"}  # about the threads of a CPU device
SANITIZERS = ["memcheck", "racecheck", "initcheck", "synccheck"]
SANITIZED = {"memcheck": "Gpu.small_problems:Gpu.wild_*"}
SANITIZED_ELSE = "Gpu.small_problems"
TIMEOUT = 300


def tree_hash():
    total = hashlib.sha256()
    for folder in ("src/cuda", "src/policy"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file():
                total.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:16]


class Runner:
    def __init__(self, folder):
        self.folder = folder
        self.environment = dict(os.environ, RUNMAX_TEST_DEVICE="cuda",
                                RUNMAX_FEATURES_PAGE=str(ROOT / "docs/features.md"),
                                RUNMAX_SWEEP_LISTS=str(ROOT / "tests/sweep"))
        self.environment["LD_LIBRARY_PATH"] = f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}"

    def run(self, command, timeout=TIMEOUT):
        """(passed, output, seconds)"""
        started = time.monotonic()
        try:
            done = subprocess.run(command, text=True, errors="replace", timeout=timeout,
                                  env=self.environment, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT)
            passed, output = done.returncode == 0, done.stdout
        except subprocess.TimeoutExpired as expired:
            passed, output = False, f"{expired.stdout or ''}\nran longer than {timeout} s"
        return passed, output, time.monotonic() - started

    def names(self, binary):
        passed, output, _ = self.run([self.folder / binary, "--gtest_list_tests"])
        if not passed:
            sys.exit(f"gpu-test: {binary} does not list its tests:\n{output}")
        suite, names = "", []
        for line in output.splitlines():
            if line.startswith("  "):
                names.append(suite + line.split()[0])
            elif re.match(r"^\w+\.", line):
                suite = line.split()[0]
        return [name for name in names if name not in CPU_ONLY]

    def gpu(self):
        passed, output, _ = self.run(
            [self.folder / ALONE, "--gtest_filter=Gpu.the_device_describes_itself"])
        if not passed:
            sys.exit("gpu-test: no GPU can be tested here:\n" + "\n".join(output.splitlines()[-12:]))
        return re.search(r"^\[gpu\] (.*)$", output, re.M)[1]


def worst_errors(outputs):
    """Lines "[errors] KERNEL DTYPE RATIO ERROR" of the tests: the largest of each kernel and type."""
    worst = {}
    for output in outputs:
        for kernel, dtype, ratio, error in re.findall(
                r"^\[errors\] (\S+) (\S+) (\S+) (\S+)$", output, re.M):
            entry = worst.setdefault(f"{kernel} {dtype}", {"of_gate": 0.0, "error": 0.0})
            entry["of_gate"] = max(entry["of_gate"], float(ratio))
            entry["error"] = max(entry["error"], float(error))
    return dict(sorted(worst.items()))


def run_tests(runner, shard, jobs):
    tests = [(binary, name) for binary in SHARED for name in runner.names(binary)]
    alone = [(ALONE, name) for name in runner.names(ALONE)]
    index, count = shard
    chosen, chosen_alone = tests[index - 1::count], alone[index - 1::count]

    def one(test):
        return test, runner.run([runner.folder / test[0], f"--gtest_filter={test[1]}"])

    results = [one(test) for test in chosen_alone]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        results += list(pool.map(one, chosen))
    return results


def run_sanitizers(runner):
    results = []
    for tool in SANITIZERS:
        names = SANITIZED.get(tool, SANITIZED_ELSE)
        command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9",
                   runner.folder / ALONE, f"--gtest_filter={names}"]
        passed, output, seconds = runner.run(command, timeout=170)
        clean = re.search(r"ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards", output)
        results.append((("compute-sanitizer", tool), (passed and bool(clean), output, seconds)))
    return results


def summary_path(folder, sanitize, shard):
    name = "gpu-sanitize" if sanitize else "gpu-test"
    return folder / (name + ("" if shard[1] == 1 else f"-{shard[0]}of{shard[1]}") + ".json")


def status():
    now = tree_hash()
    found = sorted((ROOT / "results").glob("gpu-*.json"))
    for path in found:
        summary = json.loads(path.read_text())
        age = "of this tree" if summary["hash"] == now else "STALE: src/cuda or src/policy changed since"
        print(f"GPU: {path.relative_to(ROOT)} ({summary['date']}, {summary['gpu']}): "
              f"{summary['passed']} passed, {summary['failed']} failed; {age}")
    if not found:
        print("GPU: never tested; run ./dev gpu-test on a machine with one")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sanitize", action="store_true")
    parser.add_argument("--shard", default="1/1")
    parser.add_argument("--bin", type=Path, default=ROOT / "build/gpu-test")
    parser.add_argument("--out", type=Path, default=ROOT / "results")
    parser.add_argument("--jobs", type=int, default=min(14, os.cpu_count() or 1))
    parser.add_argument("--status", action="store_true")
    parser.add_argument("--hash", action="store_true")
    arguments = parser.parse_args()
    if arguments.hash or arguments.status:
        print(tree_hash()) if arguments.hash else status()
        return
    if not re.fullmatch(r"[1-9]\d*/[1-9]\d*", arguments.shard):
        sys.exit(f"gpu-test: --shard: is {arguments.shard}, must be I/N, such as 1/3")
    shard = tuple(map(int, arguments.shard.split("/")))
    if shard[0] > shard[1]:
        sys.exit(f"gpu-test: --shard: is {arguments.shard}, I must be at most N")
    built = arguments.bin / "hash"
    if not built.exists() or built.read_text().strip() != tree_hash():
        sys.exit(f"gpu-test: {arguments.bin} is empty, or holds tests of another tree; ./dev gpu-build makes new ones")

    started = time.monotonic()
    runner = Runner(arguments.bin.resolve())
    for binary in SHARED + [ALONE]:
        if not (arguments.bin / binary).exists():
            sys.exit(f"gpu-test: {arguments.bin / binary} is missing; ./dev gpu-build makes it")
    gpu = runner.gpu()
    print(f"gpu-test on {gpu}")
    results = run_sanitizers(runner) if arguments.sanitize else run_tests(runner, shard, arguments.jobs)
    failed = [(test, output) for test, (passed, output, _) in results if not passed]
    errors = worst_errors(output for _, (_, output, _) in results)
    for test, output in failed[:20]:
        lines = [line for line in output.splitlines() if not re.match(r"^\[[-= ]|^Note:", line)]
        print(f"FAILED {test[0]} {test[1]}", *lines[:12], sep="\n  ")
    for kernel, worst in errors.items():
        print(f"{kernel:24} largest error {worst['error']:.3g}, {worst['of_gate']:.3g} of its gate")
    slowest = sorted(results, key=lambda result: -result[1][2])[:3]
    print("slowest: " + ", ".join(f"{test[1]} {seconds:.0f} s" for test, (_, _, seconds) in slowest))
    summary = {
        "date": datetime.date.today().isoformat(),
        "gpu": gpu,
        "hash": tree_hash(),
        "shard": arguments.shard,
        "passed": len(results) - len(failed),
        "failed": len(failed),
        "failures": [" ".join(test) for test, _ in failed],
        "largest_errors": errors,
        "seconds": round(time.monotonic() - started),
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = summary_path(arguments.out, arguments.sanitize, shard)
    path.write_text(json.dumps(summary, indent=1) + "\n")
    print(f"{summary['passed']} passed, {summary['failed']} failed in {summary['seconds']} s: {path}")
    sys.exit(1 if failed or not results else 0)


if __name__ == "__main__":
    main()
