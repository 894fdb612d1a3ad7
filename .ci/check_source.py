#!/usr/bin/env python3
"""Text hygiene of every tracked file, and the rules that one home per thing needs."""
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BINARY = {".safetensors", ".npy", ".png", ".bin"}

# What may stand only there: (what, pattern, files it concerns, where it may stand).
HOMES = [
    ("getenv", re.compile(r"\bgetenv\b"), re.compile(r"^(src|include)/"),
     re.compile(r"^src/device/environment\.cc$")),
    ("cpuid", re.compile(r"cpuid|__builtin_cpu_|xgetbv|getauxval"), re.compile(r"^(src|include)/"),
     re.compile(r"^src/device/")),
    ("OpenMP", re.compile(r"#\s*pragma omp|omp\.h"), re.compile(r"^(src|include)/"), None),
    ("using namespace", re.compile(r"^\s*using namespace"), re.compile(r"\.(h|hpp|cuh)$"), None),
    ("-march=native", re.compile(r"-march=native"),
     re.compile(r"CMakeLists\.txt$|\.cmake$"), None),
]


def invisible(char):
    return char not in "\n" and unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp") or char in "\u00a0\u3164"


def check(file, text):
    for number, line in enumerate(text.split("\n"), 1):
        where = f"{file}:{number}"
        if "\t" in line:
            yield f"{where}: tab"
        if line != line.rstrip():
            yield f"{where}: trailing blank"
        for char in line:
            if char != "\t" and invisible(char):
                yield f"{where}: invisible character U+{ord(char):04X}"
        for what, pattern, concerned, home in HOMES:
            if concerned.search(file) and not (home and home.search(file)) and pattern.search(line):
                yield f"{where}: {what}" + (f", which stands only in {home.pattern}" if home else "")
    if text and not text.endswith("\n"):
        yield f"{file}: no newline at the end"


def main():
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, text=True, stdout=subprocess.PIPE,
                           check=True).stdout.splitlines()
    errors = []
    for file in files:
        path = ROOT / file
        if not path.is_file() or path.suffix in BINARY or "/corpus/" in file:
            continue
        try:
            errors += check(file, path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            errors.append(f"{file}: not UTF-8")
    licence = (ROOT / "LICENSE").read_text()
    if "Apache License" not in licence or "Version 2.0, January 2004" not in licence:
        errors.append("LICENSE: not the text of Apache-2.0")
    print("\n".join(errors) or f"{len(files)} files are clean")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
