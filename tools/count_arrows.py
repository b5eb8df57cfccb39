#!/usr/bin/env python3
"""How the folders of src/ stand: lines, units, include arrows and those that go up, floors; the largest files and functions.

A unit is a header with its source (engine.h and engine.cpp are one). An arrow goes from one unit to another of the same folder that it includes, however
often. Arrows that go up are the fewest that this finds to leave out so that all others go down: none, if no unit reaches itself. Floors are the units of the
longest way down. Arrows between folders are held down by tools/check_layers.py. Of a folder that holds folders, such as src/backend/cuda/kernels, each is one
unit of what lies above it.

    tools/count_arrows.py [--markdown] [--root DIR]"""
import argparse
import pathlib
import re
import sys

import check_layers
import check_sizes

CODE = (".h", ".cuh", ".cpp", ".cu", ".def")
TEN = 10


def unit_of(path, folder):
    """The unit of `folder` that a path inside it belongs to: a file without its suffix, or the first folder."""
    parts = path.relative_to(folder).parts
    return parts[0] if len(parts) > 1 else pathlib.PurePath(parts[0]).stem


def graph(folder, src):
    arrows = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix not in CODE:
            continue
        own = unit_of(path, folder)
        arrows.setdefault(own, set())
        for name in check_layers.includes(path):
            other = src / name
            if other.exists() and folder in other.parents and unit_of(other, folder) != own:
                arrows[own].add(unit_of(other, folder))
    for other in {o for targets in arrows.values() for o in targets}:
        arrows.setdefault(other, set())
    return arrows


def components(arrows):
    """Strongly connected components, those that are below first (Tarjan)."""
    index, low, stack, on, out = {}, {}, [], set(), []

    def visit(v):
        index[v] = low[v] = len(index)
        stack.append(v)
        on.add(v)
        for w in sorted(arrows[v]):
            if w not in index:
                visit(w)
                low[v] = min(low[v], low[w])
            elif w in on:
                low[v] = min(low[v], index[w])
        if low[v] == index[v]:
            part = []
            while True:
                part.append(stack.pop())
                on.discard(part[-1])
                if part[-1] == v:
                    break
            out.append(part)

    for v in sorted(arrows):
        if v not in index:
            visit(v)
    return out


def upward(arrows):
    """Arrows to leave out so that no unit reaches itself: in each ring of units, units are taken off from where fewest arrows come in the way."""
    bad = []
    for part in components(arrows):
        left = set(part)
        order = []
        while left:
            inner = {v: (len(arrows[v] & left), sum(v in arrows[w] for w in left)) for v in left}
            v = min(sorted(left), key=lambda v: (inner[v][0] - inner[v][1], v))
            order.append(v)
            left.discard(v)
        place = {v: i for i, v in enumerate(order)}  # the lowest first
        best = list(order)
        improved = True
        while improved:  # units change places as long as that helps
            improved = False
            for i in range(len(best) - 1):
                a, b = best[i], best[i + 1]
                if (b in arrows[a]) > (a in arrows[b]):
                    best[i], best[i + 1], improved = b, a, True
        place = {v: i for i, v in enumerate(best)}
        bad += [(v, w) for v in part for w in arrows[v] if w in place and place[w] > place[v]]
    return sorted(bad)


def floors(arrows, bad):
    depth = {}

    def of(v):
        if v not in depth:
            depth[v] = 1 + max((of(w) for w in arrows[v] if (v, w) not in bad), default=0)
        return depth[v]

    return max(map(of, arrows), default=0)


def functions(path, text):
    """(lines, place) of each; kernels too."""
    found = check_sizes.functions(text)
    return [(last - first + 1, f"{path}:{first}") for kind, _, first, last in found if kind == "function"]


def bites():
    """A ring has an arrow that goes up, a tree none; a ring through two of three units counts one."""
    assert upward({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
    ring = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert len(upward(ring)) == 1 and floors(ring, upward(ring)) == 3
    assert len(upward({"a": {"b", "c"}, "b": {"a"}, "c": set()})) == 1
    kernel = "__global__ void __launch_bounds__(64)\n    f(int x) {\n" + "  g(x);\n" * 90 + "}\n"
    assert functions("a.cu", kernel) == [(93, "a.cu:1")]


def print_table(head, rows, markdown):
    if markdown:
        print("| " + " | ".join(head) + " |\n|" + " --- |" * len(head))
        print(*("| " + " | ".join(map(str, r)) + " |" for r in rows), sep="\n")
    else:
        widths = [max(len(str(r[i])) for r in [head, *rows]) for i in range(len(head))]
        for r in [head, *rows]:
            print("  ".join(str(c).ljust(w) if i == 0 else str(c).rjust(w) for i, (c, w) in enumerate(zip(r, widths))).rstrip())
    print()


def main():
    bites()
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--root", default=pathlib.Path(__file__).resolve().parents[1], type=pathlib.Path)
    p.add_argument("--markdown", action="store_true", help="tables for a document")
    p.add_argument("--upward", action="store_true", help="name the arrows that go up")
    o = p.parse_args()
    src = o.root.resolve() / "src"
    texts = {p: p.read_text() for p in sorted(src.rglob("*")) if p.suffix in CODE}
    rows, named = [], []
    for folder in sorted({d for p in texts for d in p.parents if src in d.parents}):
        files = [p for p in texts if folder in p.parents]
        arrows = graph(folder, src)
        bad = upward(arrows)
        named += [f"{folder.relative_to(src)}: {a} -> {b}" for a, b in bad]
        rows.append((str(folder.relative_to(src)), sum(texts[p].count("\n") for p in files), len(files), len(arrows), sum(map(len, arrows.values())), len(bad),
                     floors(arrows, set(bad))))
    top = [r for r in rows if "/" not in r[0]]
    rows.append(("all of src", sum(r[1] for r in top), sum(r[2] for r in top), "", sum(r[4] for r in top), sum(r[5] for r in top), ""))
    print_table(("folder", "lines", "files", "units", "arrows", "upward", "floors"), rows, o.markdown)
    largest = sorted(((t.count("\n"), str(p.relative_to(o.root.resolve()))) for p, t in texts.items()), reverse=True)[:TEN]
    print_table(("largest files", "lines"), [(n, k) for k, n in largest], o.markdown)
    longest = sorted((f for p, t in texts.items() for f in functions(p.relative_to(o.root.resolve()), t)), reverse=True)[:TEN]
    print_table(("largest functions", "lines"), [(n, k) for k, n in longest], o.markdown)
    if o.upward:
        print(*named, sep="\n")


if __name__ == "__main__":
    sys.setrecursionlimit(10000)
    main()
