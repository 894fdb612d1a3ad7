#!/usr/bin/env python3
"""check_symbols.py exported LIBRARY.so    what the library exports is tests/abi/exported_symbols.txt
   check_symbols.py backend LIBRARY.so     librunmax_cuda.so exports its entry and needs no CUDA library
   check_symbols.py isa OBJECT...          what an ISA object emits lies in runmax::cpu::<isa>

The last matters because the linker keeps one copy of an inline function that several objects
emit: if it were the one compiled with -mavx512f, an older machine would meet illegal instructions
in code that has nothing to do with kernels.
"""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests/abi/exported_symbols.txt"
HEADER = ROOT / "include/runmax/runmax.h"


def nm(*arguments):
    return subprocess.run(["nm", *arguments], text=True, stdout=subprocess.PIPE,
                          check=True).stdout.splitlines()


def exported(library):
    found = {line.split()[-1].split("@")[0] for line in nm("-D", "--defined-only", library)
             if line.split()[-2] != "A"}  # A: the version node itself
    golden = set(GOLDEN.read_text().split())
    declared = set(re.findall(r"^RUNMAX_API [^(]*\b(runmax_\w+)\(", HEADER.read_text(), re.M))
    errors = [f"{name}: exported, but not in {GOLDEN.name}" for name in sorted(found - golden)]
    errors += [f"{name}: in {GOLDEN.name}, but not exported" for name in sorted(golden - found)]
    errors += [f"{name}: in {GOLDEN.name} or runmax.h, not in both"
               for name in sorted(golden ^ declared)]
    return errors, len(found)


def backend(library):
    found = {line.split()[-1] for line in nm("-D", "--defined-only", library)}
    needed = re.findall(r"Shared library: \[([^]]*)\]", subprocess.run(
        ["readelf", "-d", library], text=True, stdout=subprocess.PIPE, check=True).stdout)
    errors = [f"{name}: exported, must not be" for name in sorted(found - {"runmax_cuda_backend"})]
    errors += [f"{name}: needed, must not be" for name in needed if "cuda" in name]
    return errors, len(found)


def isa(objects):
    errors = []
    count = 0
    for path in objects:
        name = Path(path).name.split(".")[0]  # avx2.cc.o
        home = f"runmax::cpu::{name}::"
        for line in nm("-C", path):
            kind, symbol = line[17:18], line[19:]
            if kind.islower() and kind not in "uvw":  # local: no other object can be given it
                continue
            count += 1
            if home in symbol or symbol.startswith("DW.ref."):
                continue
            if kind != "U":
                errors.append(f"{path}: emits {symbol} ({kind}) outside {home}")
            elif symbol.startswith("std::"):
                errors.append(f"{path}: needs {symbol}; ISA objects call nothing of std")
    return errors, count


def main():
    mode, *paths = sys.argv[1:] or [""]
    if mode == "exported" and len(paths) == 1:
        errors, count = exported(paths[0])
    elif mode == "backend" and len(paths) == 1:
        errors, count = backend(paths[0])
    elif mode == "isa" and paths:
        errors, count = isa(paths)
    else:
        sys.exit(__doc__)
    print("\n".join(errors) or f"{count} symbols are as they should be")
    sys.exit(1 if errors or not count else 0)


if __name__ == "__main__":
    main()
