#!/usr/bin/env python3
"""Reports every #include that goes up or sideways between the folders of src/ (see docs/architecture.md)."""
import pathlib
import re
import sys

# A folder may include itself and what is listed.
BELOW = {
    "base": [],
    "formats": ["base"],
    "tokenizer": ["formats", "base"],
    "grammar": ["tokenizer", "formats", "base"],
    "backend": ["formats", "base"],
    "model": ["backend", "formats", "base"],
    "cache": ["model", "backend", "formats", "base"],
    "spec": ["cache", "model", "backend", "formats", "base"],
    "engine": ["spec", "cache", "model", "backend", "grammar", "tokenizer", "formats", "base"],
    "server": ["engine", "grammar", "tokenizer", "formats", "base"],
    "app": ["server", "engine", "spec", "cache", "model", "backend", "grammar", "tokenizer", "formats", "base"],
}
# Headers that no CUDA source may reach, in whatever way.
FORBIDDEN_IN_CU = re.compile(r"boost/|nlohmann/|CLI/")
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
        if path.suffix in (".cu", ".cuh"):
            bad += [f"{path.relative_to(src)}: reaches {name} through {at.relative_to(src)}"
                    for at, name in reached(path, src, {path}) if FORBIDDEN_IN_CU.match(name)]
    for line in bad:
        print(line)
    print(f"layers: {len(bad)} violations")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
