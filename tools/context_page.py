#!/usr/bin/env python3
"""Tables of docs/contexts.md from what `facet bench` and `facet bench spec` measured: tokens a second by context, K/V
type and drafter, and of prompts with all blocks read and with a share of them.

    tools/context_page.py bench/results/h200-contexts.jsonl.gz
    tools/context_page.py --svg bench/results/h200-contexts.jsonl.gz > docs/contexts.svg

Lines: those of `facet bench --json` (phases decode, step, prefill, sparse), and of drafts {"drafter", "model", "rows",
"tokens", "draft_ms"}: tokens a step at a forced acceptance, for steps of so many rows, with so much drafting. A rate
with drafts is tokens / (the step's time at that depth + drafting). {"missing": why, "model", "kv", "context"} says why a
cell is empty.
"""
import gzip
import json
import sys

CONTEXTS = [4096, 16384, 65536, 262144, 1048576]
TYPES = ["f16", "q8_0", "q4_0", "tq3_0"]


def lines_of(path):
    with (gzip.open if path.endswith(".gz") else open)(path, "rt") as f:
        return [json.loads(line) for line in f if line.startswith("{")]


def table(head, rows):
    print("| " + " | ".join(head) + " |")
    print("| --- |" + " ---: |" * (len(head) - 1))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def number(v):
    return f"{v:,.0f}" if v >= 100 else f"{v:.1f}"


class Cells:
    def __init__(self, lines):
        self.ms, self.rate, self.why = {}, {}, {}
        self.drafts = [l for l in lines if "drafter" in l]
        for l in lines:
            model = l["model"].split("/")[-1].removesuffix(".gguf")
            if "missing" in l:
                self.why[model, l["kv"], l["context"]] = l["missing"]
            elif l.get("phase") in ("decode", "step"):
                self.ms[model, l["kv_k"], l["depth"], l["n"]] = l["ms_median"]
            elif l.get("phase") in ("prefill", "sparse") and l["depth"] == 0:
                self.rate[model, l["kv_k"], l["n"], l["phase"]] = l["tok_s"]

    def models(self):
        return sorted({k[0] for k in self.ms}, reverse=True)

    def decode(self, model, kv, context, drafter):
        tokens, rows, extra = 1, 1, 0.0
        if drafter:
            tokens, rows, extra = drafter["tokens"], drafter["rows"], drafter["draft_ms"]
        ms = self.ms.get((model, kv, context, rows))
        if ms is None:
            return self.why.get((model, kv, context), "-")
        return number(1e3 * tokens / (ms + extra))

    def prompt(self, model, kv, context):
        whole, part = (self.rate.get((model, kv, context, p)) for p in ("prefill", "sparse"))
        if whole is None and part is None:
            return self.why.get((model, kv, context), "-")
        return " / ".join("-" if v is None else number(v) for v in (whole, part))


def name(context):
    return f"{context // 1024}K" if context < 1 << 20 else f"{context >> 20}M"


COLOURS = dict(zip(TYPES, ["#4269d0", "#3ca951", "#efb118", "#ff725c"]))


def picture(cells):
    """Decoding rates without drafts over the rows in the cache: a panel a model, a line a type."""
    wide, high, left, top = 330, 220, 50, 40
    models = cells.models()
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{len(models) * (wide + left) + 90}" height="{high + 90}" '
           'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>']
    for k, model in enumerate(models):
        x0 = left + k * (wide + left)
        points = {t: [(c, 1e3 / cells.ms[model, t, c, 1]) for c in CONTEXTS if (model, t, c, 1) in cells.ms] for t in TYPES}
        most = max(v for line in points.values() for _, v in line) * 1.1
        across = lambda c: x0 + CONTEXTS.index(c) * wide / (len(CONTEXTS) - 1)
        up = lambda v: top + high * (1 - v / most)
        out.append(f'<text x="{x0}" y="22">{model}: tokens a second over rows in the cache</text>')
        out.append(f'<path d="M{x0} {top}v{high}h{wide}" fill="none" stroke="#888"/>')
        out += [f'<text x="{across(c):.0f}" y="{top + high + 18}" text-anchor="middle">{name(c)}</text>' for c in CONTEXTS]
        step = 50 if most < 300 else 200
        out += [f'<text x="{x0 - 6}" y="{up(v) + 4:.0f}" text-anchor="end">{v}</text>' for v in range(0, int(most), step)]
        for t, line in points.items():
            path = "L".join(f"{across(c):.0f} {up(v):.1f}" for c, v in line)
            out.append(f'<path d="M{path}" fill="none" stroke="{COLOURS[t]}" stroke-width="2"/>')
    for i, t in enumerate(TYPES):
        x, y = len(models) * (wide + left) + 30, top + 20 * i
        out.append(f'<text x="{x}" y="{y + 4}" fill="{COLOURS[t]}">{t}</text>')
    print("\n".join(out) + "\n</svg>")


def main():
    svg = sys.argv[1:2] == ["--svg"]
    cells = Cells([l for path in sys.argv[1 + svg:] for l in lines_of(path)])
    if svg:
        return picture(cells)
    for model in cells.models():
        drafters = [None] + [d for d in cells.drafts if d["model"].split("/")[-1].removesuffix(".gguf") == model]
        print(f"**{model}, decoding**, tokens a second\n")
        head = ["rows", "drafts"] + TYPES
        table(head, [[name(c), d["drafter"] if d else "none"] + [cells.decode(model, t, c, d) for t in TYPES]
                     for c in CONTEXTS for d in drafters
                     if any((model, t, c, 1) in cells.ms for t in TYPES)])
        print(f"**{model}, prompts**, tokens a second, all blocks / a tenth\n")
        table(["tokens"] + TYPES, [[name(c)] + [cells.prompt(model, t, c) for t in TYPES] for c in CONTEXTS
                                  if any((model, t, c, p) in cells.rate for t in TYPES for p in ("prefill", "sparse"))])


if __name__ == "__main__":
    main()
