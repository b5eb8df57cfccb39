#!/usr/bin/env python3
"""A picture of `facet serve` under load: plot_serve.py [--published FILE] [--title TEXT] LINES.jsonl ... > picture.svg
Or of rates side by side:               plot_serve.py --bars FILE [--title TEXT] > picture.svg

LINES: of tools/bench_server.py; several files are several curves. Left tokens a second, right the 99th percentile of
the time between two tokens of a stream, both over the number of clients. --published: JSON lines of what others have
published (engine, what, clients, tok_s, source), drawn as single points: other hardware, types and prompts, so no
comparison. --bars: JSON lines (what, engine, tok_s); a group of bars for every `what`. Needs matplotlib from PyPI. The
pictures have the colours of a light page, and of a dark one where the reader prefers that.
"""
import argparse
import io
import json
import os
import re
import sys

COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df")
# Placeholders that become CSS variables: ink, faint ink.
INK, FAINT = "#010203", "#010204"
STYLE = ("<style>:root{--ink:#1f2328;--faint:#8c959f}"
         "@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--faint:#6e7681}}</style>")

def read(path, needs):
    out = []
    with open(path) as f:
        for number, text in enumerate(f, 1):
            if not text.strip():
                continue
            try:
                line = json.loads(text)
                if line.get("phase", "serve") == "serve":
                    out.append({k: line[k] for k in needs} | line)
            except (ValueError, KeyError, AttributeError) as e:
                sys.exit(f"{path}:{number}: expected a line with {', '.join(needs)}, found {type(e).__name__} {e}; "
                         "write it with tools/bench_server.py")
    if not out:
        sys.exit(f"{path}: expected lines of the phase serve, found none; write them with tools/bench_server.py")
    return out


def curves(paths):
    """(name, [(clients, tok_s, gap)]) of each file; the last of several lines for one number of clients counts."""
    for path in paths:
        lines = read(path, ("clients", "tok_s", "itl_ms_p99"))
        of = {l["clients"]: (l["clients"], l["tok_s"], l["itl_ms_p99"]) for l in lines}
        about = lines[-1]
        cpu = about.get("machine", {}).get("cpu", "")
        what = f"{about.get('prompt', '?')} + {about.get('generated', '?')} tokens"
        options = " ".join(about.get("options", []))
        parts = (os.path.basename(about.get("model", path)), what, about.get("backend", ""), cpu, about.get("commit", "")[:7])
        name = ", ".join(x for x in (*parts, options) if x)
        yield name, [of[n] for n in sorted(of)]


def begin(width, height):
    """Of matplotlib: a figure in the colours of the page, with text that stays text, the same on every run."""
    try:
        import matplotlib
    except ImportError:
        sys.exit("plot_serve.py: expected matplotlib, found none; pip install matplotlib")
    matplotlib.use("svg")
    matplotlib.rcParams.update({
        "svg.fonttype": "none", "svg.hashsalt": "facet", "font.family": "sans-serif", "font.size": 10,
        "text.color": INK, "axes.edgecolor": FAINT, "axes.labelcolor": INK, "axes.titlecolor": INK, "xtick.color": INK,
        "ytick.color": INK, "grid.color": FAINT, "grid.alpha": .35, "axes.grid": True, "axes.axisbelow": True,
        "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False})
    from matplotlib import pyplot
    return pyplot.figure(figsize=(width, height), layout="constrained")


def end(figure):
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = out.getvalue()
    svg = svg.replace(INK, "var(--ink)").replace(FAINT, "var(--faint)")
    svg = re.sub(r"(<svg [^>]*>)", lambda m: m[1] + STYLE, svg, count=1)
    svg = re.sub(r"font-family: '[^;]*, sans-serif;", "font-family: sans-serif;", svg)
    return re.sub(r"[ \t]+\n", "\n", svg)


def picture(measured, published, title):
    figure = begin(10, 4.4 + .2 * max(len(measured), len(published)))
    from matplotlib.ticker import LogLocator
    figure.suptitle(title)
    rates, gaps = figure.subplots(1, 2)
    for (name, points), colour in zip(measured, COLOURS * len(measured)):
        clients = [n for n, _, _ in points]
        rates.plot(clients, [t for _, t, _ in points], color=colour, marker="o", label=name, gid="curve")
        gaps.plot(clients, [max(g, .1) for _, _, g in points], color=colour, marker="o", gid="curve")
    for number, p in enumerate(published, 1):
        label = f"{number}: {p['engine']}, {p['what']} (published: {p['source']})"
        rates.plot([p["clients"]], [p["tok_s"]], color=FAINT, marker="x", linestyle="none", label=label, gid="published")
        rates.annotate(str(number), (p["clients"], p["tok_s"]), textcoords="offset points", xytext=(5, 4), color=INK)
    every = sorted({n for _, points in measured for n, _, _ in points} | {p["clients"] for p in published})
    for axes, what in ((rates, "tokens a second"), (gaps, "time between tokens, 99th percentile, ms")):
        axes.set_title(what, fontsize=10)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(every, [str(n) for n in every])
        axes.minorticks_off()
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.set_xlabel("clients")
        axes.yaxis.set_major_formatter("{x:g}")
    figure.legend(loc="outside lower left", fontsize=8)
    return end(figure)


def bars(lines, title):
    """A group of bars for every `what`, each group scaled to its own largest rate, which is written on every bar."""
    groups, engines = list(dict.fromkeys(l["what"] for l in lines)), list(dict.fromkeys(l["engine"] for l in lines))
    of = {(l["what"], l["engine"]): l["tok_s"] for l in lines}
    figure = begin(10, .6 + .28 * len(groups) * len(engines))
    figure.suptitle(title, fontsize=11)
    axes = figure.subplots()
    for e, engine in enumerate(engines):
        for g, group in enumerate(groups):
            if (group, engine) not in of:
                continue
            rate, y = of[group, engine], g + (e + .5) / len(engines) * .8 - .4
            share = rate / max(of.get((group, x), 0) for x in engines)
            axes.barh(y, share, height=.8 / len(engines), color=COLOURS[e] if e == 0 else FAINT,
                      label=engine if g == 0 else None, gid="bar")
            axes.text(share + .006, y, f"{rate:,.0f}", va="center", fontsize=9)
    axes.set_yticks(range(len(groups)), groups)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.09)
    axes.set_xticks([])
    axes.grid(False)
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.legend(loc="outside upper right", ncols=len(engines), fontsize=9)
    return end(figure)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("lines", nargs="*")
    ap.add_argument("--published")
    ap.add_argument("--bars", metavar="FILE")
    ap.add_argument("--title", default="facet serve under load")
    a = ap.parse_args()
    if bool(a.bars) == bool(a.lines):
        ap.error("expected either files of tools/bench_server.py or --bars FILE")
    if a.bars:
        sys.stdout.write(bars(read(a.bars, ("what", "engine", "tok_s")), a.title))
        return
    published = read(a.published, ("engine", "what", "clients", "tok_s", "source")) if a.published else []
    sys.stdout.write(picture(list(curves(a.lines)), published, a.title))


if __name__ == "__main__":
    main()
