#!/usr/bin/env python3
"""Files of at most 500 lines, functions of at most 80, lambdas of at most 40.

What is longer says why it is not cut: a comment that begins "Long:" at the top of the file, or above the function or lambda or within its first lines.
Kernels (src/backend/cuda) that are too long stand in tools/long_kernels.tsv with their lengths instead, and may only get shorter there:

    tools/check_sizes.py            exit 1 where something is too long
    tools/check_sizes.py --list     the longest functions and lambdas, whatever they say
    tools/check_sizes.py --shrink   writes today's lengths into the list, where they are shorter or gone

A function may begin at any column: blocks are found by their braces, outside of comments and strings."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
KERNELS = "src/backend/cuda/"
LIST = ROOT / "tools/long_kernels.tsv"
FILE, FUNCTION, LAMBDA, HEAD = 500, 80, 40, 12
CODE = (".cpp", ".h", ".cu", ".cuh")
REASON = re.compile(r"\bLong: \w")
QUIET = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])\'(?:\\.|[^\'\\\n])+\'|^[ \t]*#(?:\\\n|[^\n])*', re.S | re.M)
NO_FUNCTION = re.compile(r"^(template\s*<.*>\s*)?(inline\s+)?(namespace|struct|class|enum|union|extern\s*\"|concept|static_assert)\b", re.S)
CONTROL = re.compile(r"\b(if|for|while|switch|catch|constexpr)$")
TAIL = re.compile(r"(\bmutable|\bnoexcept|\bconst|\boverride|\bfinal|\bconstexpr|->\s*[\w:<>,&*\s]+)\s*$")


def opening(text, end):
    """Where the bracket that ends before `end` opens."""
    depth = 0
    for i in range(end - 1, -1, -1):
        if text[i] in ")]":
            depth += 1
        elif text[i] in "([":
            depth -= 1
            if depth == 0:
                return i
    return 0


def lambda_at(text, brace):
    """Where the lambda begins whose block opens at `brace`, or None."""
    head = text[:brace].rstrip()
    while (m := TAIL.search(head[-120:])):
        head = head[:len(head) - len(m[0])].rstrip()
    if head.endswith(")"):
        head = head[:opening(head, len(head))].rstrip()
        if head.endswith(">"):
            at = head.rfind("]")
            head = head[:at + 1] if at >= 0 and re.fullmatch(r"<[^<>()]*>", head[at + 1:]) else head
    if not head.endswith("]"):
        return None
    at = opening(head, len(head))
    before = head[:at].rstrip()
    return None if before and (before[-1].isalnum() or before[-1] in "_)]") and not before.endswith("return") else at


def functions(source):
    """(kind, name, first line, last line), counted from 1, of functions and lambdas."""
    text = QUIET.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), source)
    stack, start, parens = [], 0, 0  # of blocks: kind, name, begin, parens; start: of the statement at hand
    for m in re.finditer(r"[{}();]", text):
        c, at = m[0], m.start()
        if c in "()":
            parens += 1 if c == "(" else -1
        elif c == ";" and parens == 0:
            start = at + 1
        elif c == "{":
            head = re.sub(r"^\s*(public|private|protected):", "", text[start:at])
            inside = next((k for k, *_ in reversed(stack) if k in ("function", "lambda", "class")), "class")
            begin, kind, name = start + len(text[start:at]) - len(text[start:at].lstrip()), "block", ""
            if (found := lambda_at(text, at)) is not None:
                kind, begin, name = "lambda", found, "lambda"
            elif NO_FUNCTION.match(head.strip()):
                kind = "class"
            elif inside == "class" and parens == 0 and "(" in head and not re.search(r"(?<![=!<>])=(?!=)\s*$", head):
                kind = "function"
                name = next((n for n in re.findall(r"([\w~]+)\s*\(", head) if not n.startswith("__") and n not in ("requires", "alignas", "noexcept", "decltype")), "?")
            stack.append((kind, name, begin, parens))
            start, parens = at + 1, 0
        elif c == "}" and stack:
            kind, name, begin, parens = stack.pop()
            if kind in ("function", "lambda"):
                yield kind, name, text.count("\n", 0, begin) + 1, text.count("\n", 0, at) + 1
            start = at + 1


def too_long(path, source):
    """(kind, name, first line, lines) of what is over its limit."""
    for kind, name, first, last in functions(source):
        if last - first + 1 > (FUNCTION if kind == "function" else LAMBDA):
            yield kind, name, first, last - first + 1


def violations(path, text):
    lines = text.split("\n")
    n = text.count("\n")
    if n > FILE and not any(REASON.search(line) for line in lines[:HEAD]):
        yield f"{path}:1: {n} lines, at most {FILE} without a reason (a comment \"Long: ...\" in the first {HEAD} lines)"
    if not path.endswith(CODE) or path.startswith(KERNELS):
        return
    for kind, name, first, length in too_long(path, text):
        above = first - 1
        while above > 0 and lines[above - 1].lstrip().startswith("//"):
            above -= 1
        if not any(REASON.search(line) for line in lines[above:first + 2]):
            limit = FUNCTION if kind == "function" else LAMBDA
            yield f"{path}:{first}: {name}, a {kind} of {length} lines, at most {limit} without a reason (a comment \"Long: ...\" above it)"


def kernel_lengths(texts):
    """{(path, name): lines} of kernels that are too long. Lambdas of one function are told apart by their number."""
    found = {}
    for path, text in texts.items():
        for _, name, _, length in sorted(too_long(path, text), key=lambda f: f[2]):
            n = 2
            key = (path, name)
            while key in found:
                key, n = (path, f"{name}_{n}"), n + 1
            found[key] = length
    return found


def read_list():
    rows = (line.split("\t") for line in LIST.read_text().splitlines() if line and not line.startswith("#"))
    return {(path, name): int(length) for path, name, length in rows}


def kernel_violations(found, listed):
    for (path, name), length in sorted(found.items()):
        most = listed.get((path, name))
        if most is None:
            yield f"{path}: {name} has {length} lines, over the limit; cut it (tools/long_kernels.tsv takes no new line)"
        elif length > most:
            yield f"{path}: {name} has {length} lines, and had {most}; the list only shrinks"
        elif length < most:
            yield f"{path}: {name} has {length} lines, and had {most}; run tools/check_sizes.py --shrink"
    for path, name in sorted(set(listed) - set(found)):
        yield f"{path}: {name} is short or gone; run tools/check_sizes.py --shrink"


def bites():
    """That each is seen, wherever it begins, and a reason heard."""
    body = "void f(int x) {\n" + "  g(x);\n" * 90 + "}\n"
    deep = "struct S {\n  template <class T>\n      void f(T x) const requires Ok<T> {\n" + "    if (x) {\n    }\n" * 45 + "  }\n};\n"
    kernel = "namespace a {\ntemplate <int N>\n__global__ void __launch_bounds__(128)\n    k(int x) {\n" + "  g('{', \"}\");  // {\n" * 90 + "}\n}\n"
    inner = "void f() {\n  each([&](auto i) mutable -> int {\n" + "    g();\n" * 41 + "  });\n}\n"
    for text in (body, deep, kernel, inner, "A::A(int x) : a_{x}, b_(x) {\n" + "  g(x);\n" * 90 + "}\n"):
        assert len(list(violations("a.cpp", text))) == 1, text
    assert not list(violations("a.cpp", "// Long: one table.\n" + body))
    assert not list(violations("a.cpp", inner.replace("    g();\n", "", 10))), "a short lambda"
    assert len(list(violations("a.py", "pass\n" * 501))) == 1 and not list(violations("a.py", "# Long: one table.\n" + "pass\n" * 501))
    assert not list(violations("a.cpp", "void f(int x) {\n  g(x);\n}\n" * 30)) and not list(violations("a.cpp", "const T kTable[] = {\n" + "  f(1),\n" * 99 + "};\n"))
    path = KERNELS + "k.cuh"
    found = kernel_lengths({path: kernel})
    (key, length), = found.items()
    assert key == (path, "k") and not list(kernel_violations(found, found))
    assert len(list(kernel_violations(found, {}))) == 1, "a new one"
    assert len(list(kernel_violations(found, {key: length - 1}))) == 1, "a longer one"
    assert len(list(kernel_violations({}, found))) == 1, "one that is gone"


def main():
    bites()
    names = subprocess.run(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    texts = {n: (ROOT / n).read_text() for n in names if n.endswith(CODE + (".py", ".html", ".js", ".sh")) and (ROOT / n).exists()}
    kernels = kernel_lengths({n: t for n, t in texts.items() if n.startswith(KERNELS) and n.endswith(CODE)})
    if "--list" in sys.argv:
        rows = [(length, f"{n}:{first}", name) for n, t in texts.items() if n.endswith(CODE) for _, name, first, length in too_long(n, t)]
        print(*(f"{length:5} {where} {name}" for length, where, name in sorted(rows, reverse=True)), sep="\n")
        return 0
    listed = read_list()
    if "--shrink" in sys.argv:
        head = [line for line in LIST.read_text().splitlines() if line.startswith("#")]
        rows = [f"{p}\t{f}\t{min(n, kernels[p, f])}" for (p, f), n in sorted(listed.items()) if (p, f) in kernels]
        LIST.write_text("\n".join(head + rows) + "\n")
        listed = read_list()
    bad = [line for n, t in texts.items() for line in violations(n, t)] + list(kernel_violations(kernels, listed))
    print(*bad, f"sizes: {len(bad)} without a reason; {len(listed)} kernels to be cut, of {sum(listed.values())} lines", sep="\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
