#!/usr/bin/env python3
"""What documents look like, and whether what they name exists; which files a change of each kind touches.

    tools/check_docs.py            exit 1 where a line is too long, a code name is nowhere in the tree, or a recipe is not true
    tools/check_docs.py --places   also prints the places of a verb, an endpoint, a tensor type and a K/V type
    tools/check_docs.py --shrink   writes today's counts into tools/long_lines.tsv, where they are smaller

Lines have at most 110 columns. tools/long_lines.tsv has the documents that still have longer ones, mostly tables, and how many; it may only shrink.
A code name stands in backticks and is an identifier with an underscore, with capitals inside, with :: or with (). A recipe of CONTRIBUTING.md names the files
of one kind of change; PLACES has an example of each kind, and the recipe names every file that has the example's name."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
COLUMNS = 110
LIST = ROOT / "tools/long_lines.tsv"
CODE = ("src", "include", "tests", "bench", "tools", "scripts", "python", "examples", "deploy", "cmake")
NAME = re.compile(r"(?:[A-Za-z_]\w*::)*~?[A-Za-z_]\w*(?:\(\))?$")
# Names of others that documents speak of: system calls, keywords of JSON Schema, and a form of names.
OTHERS = set("""
arch_prctl sched_setattr unevaluatedProperties NAMESPACE__NAME
""".split())
# kind: (heading of the recipe, an example, where its name stands, files that every such change touches: a pattern of the example's places)
PLACES = {
    "verb": ("Adding a verb", r"\bple_combine\b", ("src", "tests", "bench")),
    "endpoint": ("Adding an endpoint", r"\bkTokenizerInfo\b|/tokenizer_info\b|\btokenizer_json\(", ("src", "tests", "docs")),
    "tensor type": ("Adding a tensor type", r"\bkQ5_K\b", ("src",)),
    "K/V type": ("Adding a K/V type", r"\bKvType::kTQ3_0\b", ("src",)),
}
COUNTED = ("verb", "endpoint")  # the others are printed


def documents(root=ROOT):
    return [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").glob("*.md"))]


def is_code_name(word):
    """Whether a word in backticks is a name of code: not an option, a value, a path or a file's key with dots."""
    if not NAME.match(word) or word.isupper() and "_" not in word:
        return False
    bare = word.replace("()", "")
    return "::" in bare or word.endswith("()") or "_" in bare.strip("_") or bool(re.search(r"[a-z][A-Z]|[A-Z][a-z]+[A-Z]", bare))


def code_names(text):
    """(line number, name) in backticks, outside of fenced blocks."""
    fenced = False
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        for word in [] if fenced else re.findall(r"`([^`\s]+)`", line):
            if is_code_name(word):
                yield number, word


def unknown_names(path, text, words):
    for number, name in code_names(text):
        parts = re.split(r"::", name.replace("()", "").replace("~", ""))
        missing = [p for p in parts if p not in words and p != "facet" and p not in OTHERS]
        if missing:
            yield f"{path}:{number}: `{name}`: {missing[0]} is nowhere in {', '.join(CODE[:3])}, ...; name what there is"


def long_lines(text):
    return [i for i, line in enumerate(text.split("\n"), 1) if len(line) > COLUMNS]


def long_violations(path, text, most):
    found = long_lines(text)
    if len(found) > most:
        yield f"{path}:{found[-1]}: {len(found)} lines of more than {COLUMNS} columns, at most {most}"
    elif len(found) < most:
        yield f"{path}: {len(found)} lines of more than {COLUMNS} columns, and had {most}; run tools/check_docs.py --shrink"


def read_list():
    rows = (line.split("\t") for line in LIST.read_text().splitlines() if line and not line.startswith("#"))
    return {path: int(n) for path, n in rows}


def places(kind, root=ROOT):
    """Files that an example of this kind of change stands in."""
    _, example, folders = PLACES[kind]
    found = []
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".h", ".cpp", ".cu", ".cuh", ".def", ".py", ".yaml") and re.search(example, path.read_text()):
                found.append(str(path.relative_to(root)))
    return found


def recipe(text, heading):
    m = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    return m[1] if m else ""


def recipe_violations(kind, text, found):
    """A recipe names each file, or its folder with a star, that an example of its kind stands in."""
    heading = PLACES[kind][0]
    body = recipe(text, heading)
    if not body:
        yield f'CONTRIBUTING.md: expected a recipe "## {heading}"'
        return
    named = re.findall(r"`([\w/.*-]+)`", body)
    for path in found:
        if not any(pathlib.PurePath(path).match(n) for n in named if "." in n or "*" in n):
            yield f'CONTRIBUTING.md: "{heading}" does not name {path}'


def bites():
    assert is_code_name("TensorParallel") and is_code_name("kv_append") and is_code_name("a::b") and is_code_name("f()")
    assert not any(is_code_name(w) for w in ("GGUF", "--port", "q8_0.gguf", "src/a_b.h", "temperature", "F16"))
    assert len(list(unknown_names("a.md", "`kv_append` and `kv_forgotten`\n```\n`in_code`\n```\n", {"kv_append"}))) == 1
    assert len(list(long_violations("a.md", "x" * 111, 0))) == 1 and not list(long_violations("a.md", "x" * 111, 1)) and list(long_violations("a.md", "x", 1))
    text = "## Adding a verb\n\n`src/a.h` `src/cpu/*.cpp`\n\n## Other\n`src/b.h`\n"
    assert not list(recipe_violations("verb", text, ["src/a.h", "src/cpu/x.cpp"]))
    assert len(list(recipe_violations("verb", text, ["src/b.h"]))) == 1


def main():
    bites()
    listed, bad = read_list(), []
    if "--shrink" in sys.argv:
        head = [line for line in LIST.read_text().splitlines() if line.startswith("#")]
        now = {p: min(n, len(long_lines((ROOT / p).read_text()))) for p, n in listed.items() if (ROOT / p).exists()}
        LIST.write_text("\n".join(head + [f"{p}\t{n}" for p, n in sorted(now.items()) if n]) + "\n")
        listed = read_list()
    words = set()
    for name in subprocess.run(["git", "ls-files", "-z", "-co", "--exclude-standard", *CODE, "CMakeLists.txt"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0"):
        path = ROOT / name
        if name and path.is_file() and path.suffix in (".h", ".cpp", ".cu", ".cuh", ".def", ".py", ".sh", ".cmake", ".txt", ".c", ".tsv", ".yaml", ".html", ".service", "") \
                and not name.startswith("tests/data/"):
            words |= set(re.findall(r"\w+", path.read_text(errors="ignore")))
            words |= set(re.findall(r"\w+", name))
    words |= {f"facet_test_{m}" for m in re.findall(r"\bfacet_test\((\w+)\)", (ROOT / "tests/CMakeLists.txt").read_text())}
    for path in documents():
        text, name = path.read_text(), str(path.relative_to(ROOT))
        bad += long_violations(name, text, listed.get(name, 0))
        bad += unknown_names(name, text, words)
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for kind, (heading, *_) in PLACES.items():
        found = places(kind)
        if kind in COUNTED:
            bad += recipe_violations(kind, text, found)
        elif not recipe(text, heading):
            bad.append(f'CONTRIBUTING.md: expected a recipe "## {heading}"')
        print(f"{kind}: {len(found)} places" + (": " + ", ".join(found) if "--places" in sys.argv else ""))
    print(*bad, f"documents: {len(bad)} wrong; {sum(listed.values())} long lines to be cut", sep="\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
