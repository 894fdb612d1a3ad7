#!/usr/bin/env python3
"""count_tests.py LastTest.log: prints "PASSED FAILED" of a ctest run.

An executable of GoogleTest counts with its test cases, any other with 1; one that failed without
naming a case (a crash, a time-out, nothing run) counts as 1 failure.
"""
import re
import sys


def main():
    passed = failed = 0
    log = open(sys.argv[1], encoding="utf-8", errors="replace").read()
    for block in re.split(r"^\d+/\d+ Testing: ", log, flags=re.M)[1:]:
        good = sum(map(int, re.findall(r"^\[  PASSED  \] (\d+) tests?", block, re.M)))
        bad = sum(map(int, re.findall(r"^\[  FAILED  \] (\d+) tests?, listed below", block, re.M)))
        ended_well = re.search(r"^Test Passed\.", block, re.M) is not None
        if ended_well and bad == 0:
            passed += good or 1
        else:
            passed += good
            failed += max(bad, 1)
    print(passed, failed)


if __name__ == "__main__":
    main()
