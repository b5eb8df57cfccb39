#!/usr/bin/env python3
"""Every source file is in exactly one list of cmake/sources, which are sorted; every file of a list exists; what asks for CUDA is listed so.

A file of src/FOLDER has its line in cmake/sources/FOLDER.cmake, one of tests in cmake/sources/tests.cmake, one of bench in bench/CMakeLists.txt."""
import pathlib
import re
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
ALONE = {"src/app/main.cpp", "tests/support/headers.cpp", "tests/support/grammar_walk_main.cpp"}  # programs that CMake names itself
ASKS = re.compile(r"^#if FACET_CUDA", re.M)


def lists(path):
    """{variable: its lines} of a file of lists."""
    return {m[1]: m[2].split() for m in re.finditer(r"^set\((\w+)\n(.*?)^\)", path.read_text(), re.M | re.S)}


def violations(root):
    for path in sorted((root / "cmake/sources").glob("*.cmake")):
        name = path.relative_to(root)
        base = root / ("tests" if path.stem == "tests" else f"src/{path.stem}")
        here = lists(path)
        aware = here.pop("facet_cuda_aware", [])
        seen = []
        for variable, files in here.items():
            seen += files
            if files != sorted(files):
                wrong = next(b for a, b in zip(files, files[1:]) if a > b)
                yield f"{name}: {variable}: expected sorted lines, found {wrong} behind a later one"
        for f in sorted(set(seen)):
            if seen.count(f) > 1:
                yield f"{name}: {f} stands in it twice"
            if not (base / f).exists():
                yield f"{name}: {f} does not exist; take its line out"
        for f in sorted(base.rglob("*")):
            inside = str(f.relative_to(base))
            if f.suffix not in (".cpp", ".cu") or str(f.relative_to(root)) in ALONE or inside in seen:
                continue
            yield f"{f.relative_to(root)}: in no list; add a line to {name}"
        for f in seen if base.parent.name == "src" else []:
            asks = f.endswith(".cpp") and (base / f).exists() and bool(ASKS.search((base / f).read_text()))
            if asks != (f in aware):
                yield f"{name}: {f} {'asks' if asks else 'does not ask'} for FACET_CUDA; {'add it to' if asks else 'take it out of'} facet_cuda_aware"
    known = {p.stem for p in (root / "cmake/sources").glob("*.cmake")}
    for folder in sorted(p for p in (root / "src").iterdir() if p.is_dir()):
        if folder.name not in known and any(folder.rglob("*.cpp")):
            yield f"src/{folder.name}: no cmake/sources/{folder.name}.cmake"
    benches = (root / "bench/CMakeLists.txt").read_text() if (root / "bench").exists() else ""
    for f in sorted((root / "bench").rglob("*.c*")):
        m = re.match(r"cuda_(\w+)_bench\.cu$", f.name)
        if f.suffix in (".cpp", ".cu") and f.name not in benches and not (m and re.search(rf"\b{m[1]}\b", benches)):
            yield f"{f.relative_to(root)}: not in bench/CMakeLists.txt"


def bites():
    """That each of them is seen."""
    with tempfile.TemporaryDirectory() as d:
        root = pathlib.Path(d)
        (root / "cmake/sources").mkdir(parents=True)
        (root / "src/a").mkdir(parents=True)
        for f, text in (("b.cpp", ""), ("c.cpp", "#if FACET_CUDA\n"), ("forgotten.cpp", ""), ("kernel.cu", "")):
            (root / "src/a" / f).write_text(text)
        (root / "cmake/sources/a.cmake").write_text("set(facet_sources\n  c.cpp\n  b.cpp\n  gone.cpp\n)\n")
        found = "\n".join(violations(root))
        for word in ("src/a/forgotten.cpp: in no list", "src/a/kernel.cu: in no list", "sorted lines", "gone.cpp does not exist", "c.cpp asks"):
            assert word in found, (word, found)
        assert found.count("\n") == 4, found


def main():
    bites()
    bad = list(violations(ROOT))
    print(*bad, f"sources: {len(bad)} wrong", sep="\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
