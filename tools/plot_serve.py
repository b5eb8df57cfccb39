#!/usr/bin/env python3
"""A picture of `facet serve` under load: plot_serve.py [--published FILE] [--title TEXT] LINES.jsonl ... > picture.svg

LINES: of tools/bench_server.py; several files are several curves. Left tokens a second, right the 99th percentile of the time between
two tokens of a stream, both over the number of clients. --published: JSON lines of what others have published (engine, what, clients,
tok_s, source), drawn as single points with their names: other hardware, types and prompts, so no comparison. Standard library only.
"""
import argparse
import json
import math
import os
import sys
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, TOP, BOTTOM, GAP = 1000, 380, 70, 56, 110, 90
PANEL = (WIDTH - LEFT - GAP - 30) / 2
COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df")


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
                sys.exit(f"{path}:{number}: expected a line with {', '.join(needs)}, found {type(e).__name__} {e}; write it with tools/bench_server.py")
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
        name = ", ".join(x for x in (os.path.basename(about.get("model", path)), what, about.get("backend", ""), cpu, about.get("commit", "")[:7], " ".join(about.get("options", []))) if x)
        yield name, [of[n] for n in sorted(of)]


class Panel:
    def __init__(self, x, title, unit, points):
        self.x, self.title, self.unit = x, title, unit
        clients, values = [p[0] for p in points], [p[1] for p in points]
        self.c0, self.c1 = min(clients), max(max(clients), 2 * min(clients))
        low, high = min(v for v in values if v > 0), max(values)
        self.v0, self.v1 = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high * 1.001))

    def at(self, clients, value):
        u = math.log(clients / self.c0) / math.log(self.c1 / self.c0)
        v = math.log(max(value, self.v0) / self.v0) / math.log(self.v1 / self.v0)
        return self.x + u * PANEL, TOP + (1 - v) * (HEIGHT - TOP - BOTTOM)

    def axes(self):
        bottom = HEIGHT - BOTTOM
        yield f'<rect x="{self.x}" y="{TOP}" width="{PANEL:.0f}" height="{bottom - TOP}" fill="none" stroke="#999"/>'
        yield f'<text x="{self.x}" y="{TOP - 10}" font-weight="bold">{self.title}</text>'
        n = self.c0
        while n <= self.c1:
            x, _ = self.at(n, self.v0)
            yield f'<path d="M{x:.1f} {bottom}v4" stroke="#999"/><text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{n}</text>'
            n *= 2
        yield f'<text x="{self.x + PANEL / 2:.0f}" y="{bottom + 36}" text-anchor="middle">clients</text>'
        v = self.v0
        while v <= self.v1:
            _, y = self.at(self.c0, v)
            yield f'<path d="M{self.x} {y:.1f}h{PANEL:.0f}" stroke="#ddd"/><text x="{self.x - 6}" y="{y + 4:.1f}" text-anchor="end">{v:g}{self.unit}</text>'
            v *= 10

    def curve(self, points, colour):
        places = [self.at(*p) for p in points]
        yield f'<polyline class="curve" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}" fill="none" stroke="{colour}" stroke-width="2"/>'
        for (x, y), (n, v) in zip(places, points):
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"><title>{n} clients: {v:.4g}{self.unit}</title></circle>'


def picture(measured, published, title):
    rates = Panel(LEFT, "tokens a second", "", [(n, t) for _, c in measured for n, t, _ in c] + [(p["clients"], p["tok_s"]) for p in published])
    gaps = Panel(LEFT + PANEL + GAP, "time between tokens, 99th percentile", " ms", [(n, max(g, .1)) for _, c in measured for n, _, g in c])
    parts = [*rates.axes(), *gaps.axes()]
    for i, (name, points) in enumerate(measured):
        colour = COLOURS[i % len(COLOURS)]
        parts += rates.curve([(n, t) for n, t, _ in points], colour)
        parts += gaps.curve([(n, g) for n, _, g in points], colour)
        parts.append(f'<text x="{LEFT}" y="{HEIGHT - BOTTOM + 56 + 15 * i}" fill="{colour}">{escape(name)}</text>')
    for i, p in enumerate(published):
        x, y = rates.at(p["clients"], p["tok_s"])
        label = f"{p['engine']}, {p['what']} (published: {p['source']})"
        parts.append(f'<path class="published" d="M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8" stroke="#555" stroke-width="2"><title>{escape(label)}</title></path>')
        parts.append(f'<text x="{x + (-7 if x > LEFT + PANEL / 2 else 7):.1f}" y="{y - 5:.1f}" text-anchor="{"end" if x > LEFT + PANEL / 2 else "start"}" fill="#555">{i + 1}</text>')
        parts.append(f'<text x="{LEFT + PANEL + GAP}" y="{HEIGHT - BOTTOM + 56 + 13 * i}" fill="#555" font-size="10">{i + 1}: {escape(label)}</text>')
    height = max(HEIGHT, HEIGHT - BOTTOM + 66 + max(15 * len(measured), 13 * len(published)))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">\n'
            f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>\n<text x="{LEFT}" y="22" font-size="15">{escape(title)}</text>\n' + "\n".join(parts) + "\n</svg>\n")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("lines", nargs="+")
    ap.add_argument("--published")
    ap.add_argument("--title", default="facet serve under load")
    a = ap.parse_args()
    published = read(a.published, ("engine", "what", "clients", "tok_s", "source")) if a.published else []
    sys.stdout.write(picture(list(curves(a.lines)), published, a.title))


if __name__ == "__main__":
    main()
