#!/usr/bin/env python3
"""Every file of more than 500 lines and every function of more than 80 says why it is not cut: a comment that begins "Long:" at the
top of the file, or above the function or within its first lines. Functions are found by clang-format's indentation."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
FILE, FUNCTION, HEAD = 500, 80, 12
CODE = (".cpp", ".h", ".cu", ".cuh")
REASON = re.compile(r"\bLong: \w")
NO_FUNCTION = re.compile(r"\s*(namespace|struct|class|enum|union|extern|if|for|while|switch|else|do|try|template)\b")


def functions(lines):
    """(first line, line behind) of what looks like a function or a method: a line that opens a block behind a list of parameters."""
    for i, line in enumerate(lines):
        m = re.match(r"( {0,2})\S", line)
        if not m or not line.rstrip().endswith("{") or ")" not in line or NO_FUNCTION.match(line) or " = {" in line:
            continue
        first = i
        while first > 0 and lines[first - 1].strip() and not lines[first - 1].rstrip().endswith((";", "}", "{", ":")) \
                and not lines[first - 1].lstrip().startswith(("//", "#", "*")):
            first -= 1
        end = next((k for k in range(i + 1, len(lines)) if re.match(m[1] + r"\}", lines[k])), len(lines) - 1)
        yield first, end + 1


def violations(path, text):
    lines = text.split("\n")
    n = text.count("\n")
    if n > FILE and not any(REASON.search(line) for line in lines[:HEAD]):
        yield f"{path}:1: {n} lines, at most {FILE} without a reason (a comment \"Long: ...\" in the first {HEAD} lines)"
    if not path.endswith(CODE):
        return
    for first, end in functions(lines):
        above = first
        while above > 0 and lines[above - 1].lstrip().startswith("//"):
            above -= 1
        if end - first > FUNCTION and not any(REASON.search(line) for line in lines[above:first + 3]):
            yield f"{path}:{first + 1}: a function of {end - first} lines, at most {FUNCTION} without a reason (a comment \"Long: ...\" above it)"


def bites():
    """That each of the two is seen, and a reason heard."""
    body = "void f(int x) {\n" + "  g(x);\n" * 90 + "}\n"
    assert len(list(violations("a.cpp", body))) == 1 and not list(violations("a.cpp", "// Long: one table.\n" + body))
    assert len(list(violations("a.py", "pass\n" * 501))) == 1 and not list(violations("a.py", "# Long: one table.\n" + "pass\n" * 501))
    assert not list(violations("a.cpp", "void f(int x) {\n  g(x);\n}\n" * 30))


def main():
    bites()
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    bad = []
    for name in names:
        if name.endswith(CODE + (".py", ".html", ".js", ".sh")) and (ROOT / name).exists():
            bad += violations(name, (ROOT / name).read_text())
    print(*bad, f"sizes: {len(bad)} without a reason", sep="\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
