#!/usr/bin/env python3
"""Reports every #include that goes up or sideways between the folders of src/, and every file that is opened past
base/files.h (see docs/architecture.md)."""
import pathlib
import re
import sys

# A folder may include itself and what is listed.
BELOW = {
    "base": [],
    "formats": ["base"],
    "tokenizer": ["formats", "base"],
    "backend": ["formats", "base"],
    "model": ["backend", "formats", "base"],
    "cache": ["model", "backend", "formats", "base"],
    "spec": ["cache", "model", "backend", "formats", "base"],
    "engine": ["spec", "cache", "model", "backend", "tokenizer", "formats", "base"],
    "server": ["engine", "tokenizer", "formats", "base"],
    "app": ["server", "engine", "spec", "cache", "model", "backend", "tokenizer", "formats", "base"],
}
# Headers that no CUDA source may reach, in whatever way.
FORBIDDEN_IN_CU = re.compile(r"boost/|nlohmann/|CLI/")
# Files that somebody names are opened in base/files.cpp alone. Below: what the system says about itself.
OPENS = re.compile(r"\b[io]?fstream\b|\bfopen\(|::open\([^)]*O_|\bmkstemp\(")
MAY_OPEN = {"base/files.cpp", "base/reserve.cpp", "base/threads.cpp", "engine/bench.cpp", "base/print.cpp", "app/line_input.cpp"}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.M)


def includes(path):
    return INCLUDE.findall(path.read_text())


def reached(path, src, seen):
    for name in includes(path):
        yield path, name
        nxt = src / name
        if nxt.exists() and nxt not in seen:
            seen.add(nxt)
            yield from reached(nxt, src, seen)


def main():
    src = pathlib.Path(__file__).resolve().parent.parent / "src"
    bad = []
    for path in sorted(src.rglob("*")):
        if path.suffix not in (".h", ".cpp", ".cu", ".cuh"):
            continue
        layer = path.relative_to(src).parts[0]
        for name in includes(path):
            other = name.split("/")[0]
            if other in BELOW and other != layer and other not in BELOW[layer]:
                bad.append(f"{path.relative_to(src)}: {layer} must not include {name}")
        if OPENS.search(path.read_text()) and str(path.relative_to(src)) not in MAY_OPEN:
            bad.append(f"{path.relative_to(src)}: opens a file; use base/files.h")
        if path.suffix in (".cu", ".cuh"):
            bad += [f"{path.relative_to(src)}: reaches {name} through {at.relative_to(src)}"
                    for at, name in reached(path, src, {path}) if FORBIDDEN_IN_CU.match(name)]
    for line in bad:
        print(line)
    print(f"layers: {len(bad)} violations")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
