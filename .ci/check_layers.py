#!/usr/bin/env python3
"""Checks every #include of the project's own files against the table in ARCHITECTURE.md.

A row "| `part` | `path`, `path` |" names a folder or a file and the folders and files it may include
besides itself and include/runmax (which all may). A file is held to the longest part that matches,
so that it can be a part of its own.
"""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PUBLIC = "include/runmax"


def table():
    rows = {}
    for line in (ROOT / "ARCHITECTURE.md").read_text().splitlines():
        match = re.match(r"\| `([^`]+)` \|([^|]*)\|$", line)
        if match:
            rows[match[1]] = set(re.findall(r"`([^`]+)`", match[2])) | {match[1], PUBLIC}
    return rows


def lies_in(path, place):
    return path == place or path.startswith(place + "/")


def resolve(name, includer):
    for base in (includer.parent, ROOT / "src", ROOT / "include", ROOT):
        if (base / name).is_file():
            return (base / name).resolve().relative_to(ROOT).as_posix()
    return None


def main():
    rows = table()
    if PUBLIC not in rows or "src/core" not in rows:
        sys.exit("ARCHITECTURE.md: dependency table not found")
    files = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard",
         "*.h", "*.hpp", "*.c", "*.cc", "*.cu", "*.cuh"],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, check=True).stdout.split()
    errors = []
    checked = 0
    for file in files:
        path = ROOT / file
        if file.startswith("tests/abi/v") or not path.exists():  # frozen headers of past releases
            continue
        part = max((p for p in rows if lies_in(file, p)), key=len, default=None)
        if part is None:
            errors.append(f"{file}: in no part of ARCHITECTURE.md's table")
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = re.match(r'\s*#\s*include\s+(["<])([^">]+)[">]', line)
            if not match:
                continue
            target = resolve(match[2], path)
            if target is None:
                if match[1] == '"' and "/" in match[2]:
                    errors.append(f'{file}:{number}: "{match[2]}" is no file of the project')
                continue
            checked += 1
            if not any(lies_in(target, place) for place in rows[part]):
                allowed = ", ".join(sorted(rows[part]))
                errors.append(f"{file}:{number}: {part} includes {target}; allowed: {allowed}")
    for error in errors:
        print(error)
    print(f"{checked} includes of {len(files)} files checked")
    sys.exit(1 if errors or not checked else 0)


if __name__ == "__main__":
    main()
