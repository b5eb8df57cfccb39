#!/usr/bin/env python3
"""Every .cu file begins with a header of its kernels, each line of which begins with what it tells: Shapes, Bytes, Launch, Order, Reference, Test.

    // name -- what it computes
    //
    // Shapes     of inputs and outputs, their types and limits
    // Bytes      what is read and written, how often
    // Launch     what a block and a thread have, and what the grid depends on
    // Order      of sums: what a result's bits depend on
    // Reference  the verb or function that says what is right
    // Test       tests/...

Bench and Flops may follow. A file of at most 12 lines that only instantiates a template needs one line, which names the template's file: "// Instantiates
attention/decode.cuh, ...". A header of a kernel may be in a .cuh instead, if its .cu files instantiate it."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
FIELDS = ("Shapes", "Bytes", "Launch", "Order", "Reference", "Test")
KNOWN = FIELDS + ("Bench", "Flops")
STUB = 12  # lines
# A known word that stands inside of a line as a field would: a formatter has joined two lines.
JOINED = re.compile(r"^// .*\S {1,}(" + "|".join(KNOWN) + r") {4,}\S")


def header(text):
    lines = []
    for line in text.split("\n"):
        if not line.startswith("//"):
            break
        lines.append(line)
    return lines


def violations(path, text, exists):
    lines = header(text)
    if text.count("\n") <= STUB and "template " in text and "__global__" not in text:
        named = re.match(r"// Instantiates (\S+\.cuh)\b", lines[0] if lines else "")
        if not named:
            yield f'{path}:1: expected "// Instantiates FOLDER/FILE.cuh, ..." above an instantiation'
        elif not exists(named[1]) or f'kernels/{named[1]}"' not in text:
            yield f"{path}:1: expected the file that is included, found {named[1]}"
        return
    if not re.match(r"// [\w, ]+ -- \S", lines[0] if lines else ""):
        yield f'{path}:1: expected "// name -- what it computes"'
    at = []
    for field in FIELDS:
        found = [i for i, line in enumerate(lines) if re.match(rf"// {field} +\S", line)]
        if len(found) != 1:
            yield f'{path}:1: expected one line "// {field}  ..." in the header, found {len(found)}'
        at += found[:1]
    if at != sorted(at):
        yield f"{path}:{min(at) + 1}: expected the order {', '.join(FIELDS)}"
    for i, line in enumerate(lines):
        if JOINED.match(line) and not re.match(r"// Reference ", line):
            yield f"{path}:{i + 1}: two lines of the header in one"


def bites():
    """That what a formatter does to a header is seen, and that good headers pass."""
    good = "// a -- b\n//\n" + "".join(f"// {f:11}x\n" for f in FIELDS) + "#include <a>\n" + "int x;\n" * 20
    stub = '// Instantiates moe/a.cuh, where it is.\n#include "backend/cuda/kernels/moe/a.cuh"\ntemplate void f<1>();\n'

    def seen(text):
        return len(list(violations("a.cu", text, lambda _: True)))

    assert seen(good) == 0 and seen(stub) == 0
    assert seen(good.replace("x\n// Bytes  ", "x Bytes  ")) >= 2, "two lines joined"
    assert seen(good.replace("// Order      x\n", "")) == 1, "a line left out"
    assert seen(good.replace("// Launch     x\n// Order      x\n", "// Order      x\n// Launch     x\n")) == 1, "another order"
    assert seen(good.replace("// a -- b\n", "// about a\n")) == 1
    assert seen(stub.replace("a.cuh, ", "b.cuh, ")) == 1 and seen(stub.split("\n", 1)[1]) == 1


def main():
    bites()
    names = subprocess.run(["git", "ls-files", "-z", "src"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    kernels = ROOT / "src/backend/cuda/kernels"
    bad = []
    for name in names:
        if name.endswith(".cu") and (ROOT / name).exists():
            bad += violations(name, (ROOT / name).read_text(), lambda f: (kernels / f).exists())
    print(*bad, f"kernel headers: {len(bad)} violations", sep="\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
