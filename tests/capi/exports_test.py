#!/usr/bin/env python3
"""libfacet exports the functions of include/facet.h and nothing else; the header is C11 and C++; the example is short.
exports_test.py LIBRARY CC CXX"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main(library, cc, cxx):
    header = re.sub(r"/\*.*?\*/", "", (ROOT / "include/facet.h").read_text(), flags=re.S)
    declared = set(re.findall(r"FACET_API [\w* ]+?\b(facet_\w+)\(", header))
    names = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    exported = {line.split()[-1].split("@")[0] for line in names.splitlines()}
    bad = [f"declared and not exported: {n}" for n in sorted(declared - exported)]
    bad += [f"exported and not declared: {n}" for n in sorted(exported - declared)]
    for compiler, language, flags in ((cc, "c", "-std=c11"), (cxx, "c++", "-std=c++11")):
        done = subprocess.run([compiler, "-x", language, flags, "-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only",
                               str(ROOT / "include/facet.h"), *(["-Wno-pragma-once-outside-header"] if "clang" in compiler else [])],
                              capture_output=True, text=True)
        if done.returncode:
            bad.append(f"{language}: {done.stderr}")
    lines = len((ROOT / "examples/chat.c").read_text().splitlines())
    if lines >= 80:
        bad.append(f"examples/chat.c has {lines} lines, and should have fewer than 80")
    for line in bad:
        print(line)
    print(f"libfacet: {len(declared)} functions, {len(bad)} problems")
    return 1 if bad or len(declared) < 15 else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
