#!/usr/bin/env python3
"""What a K/V type costs, with rows of K and V apart and shared: kv_divergence.py FACET [DIR] [-- OPTIONS]

The shipped models: `facet eval` on a text, against f32 rows. Golden files, DIR/{dense,moe,edge} (tests/data/fixtures if DIR is left out): `facet logits` on
the reference backend against the official implementation's logits, golden.safetensors (`ids` int32, `logits` f32 [T, V]). Prints a
table: mean and 99th percentile of KL(wanted || got) in nats, rows of K and V apart; shared. Standard library only.
"""
import array
import json
import math
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TYPES, LAYOUTS = ("f32", "f16", "q8_0", "q4_0", "tq3_0"), ("split", "shared")


def tensors(path):
    data = path.read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    for name, t in json.loads(data[8 : 8 + n]).items():
        if name in ("ids", "logits"):
            begin, end = t["data_offsets"]
            yield name, array.array({"F32": "f", "I32": "i"}[t["dtype"]], data[8 + n + begin : 8 + n + end]), t["shape"]


def log_shares(row):
    top = max(row)
    total = top + math.log(sum(math.exp(x - top) for x in row))
    return [x - total for x in row]


def divergence(want, got, vocab):
    kl = []
    for at in range(0, len(want), vocab):
        a, b = log_shares(want[at : at + vocab]), log_shares(got[at : at + vocab])
        kl.append(max(0.0, sum(math.exp(x) * (x - y) for x, y in zip(a, b))))
    kl.sort()
    return sum(kl) / len(kl), kl[int((len(kl) - 1) * 0.99)]


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout


def of_golden(facet, model, options):
    golden = {name: (x, shape) for name, x, shape in tensors(model.parent / "golden.safetensors")}
    with tempfile.TemporaryDirectory() as scratch:
        ids, out = Path(scratch) / "ids", Path(scratch) / "out"
        ids.write_bytes(golden["ids"][0].tobytes())
        run([facet, "logits", "-m", str(model), "--backend", "ref", "--tokens", str(ids), "--out", str(out), *options])
        return divergence(golden["logits"][0], array.array("f", out.read_bytes()), golden["logits"][1][1])


def of_text(facet, model, options):
    with tempfile.NamedTemporaryFile() as text:
        text.write((ROOT / "models/facet-nano-eval.jsonl").read_bytes()[:50000])
        text.flush()
        said = run([facet, "eval", "-m", str(model), "--text", text.name, "--against-kv", "f32", *options])
    return [float(x) for x in re.search(r"KL mean (\S+), p99 (\S+), ", said).groups()]


def main():
    mine, _, options = "\n".join(sys.argv[1:]).partition("\n--\n")
    facet, *folder = mine.split("\n")
    golden = Path(folder[0]) if folder else ROOT / "tests/data/fixtures"
    models = [(m, of_text) for m in sorted((ROOT / "models").glob("facet-nano*.gguf")) if not re.search("mtp|dflash", m.name)]
    models += [(m, of_golden) for m in sorted(golden.glob("*/model-BF16.gguf")) or sorted(golden.glob("*/model.gguf"))]
    print("| | " + " | ".join(m.parent.name if f is of_golden else m.stem for m, f in models) + " |")
    print("| --- " * (1 + len(models)) + "|")
    for kind in TYPES:
        cells = []
        for model, measure in models:
            pair = []
            for layout in LAYOUTS:
                if measure is of_text and kind == "f32":
                    continue
                mean, tail = measure(facet, model, ["--kv", kind, "--kv-layout", layout, *options.split()])
                pair.append(f"{mean:.2g}, {tail:.2g}")
            cells.append("; ".join(pair))
        print(f"| {kind} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
