#!/usr/bin/env python3
"""What block-sparse prefill costs in answers: sparse_recall.py FACET [MODEL] [--gamma 0.1,0.3] [-- OPTIONS OF serve]

Long texts of the shipped model's kind (tools/train/corpus.py; names and values that it was not trained on), each with several
facts asked for. `facet serve` reads every text exactly and at each GAMMA: the first question's prompt is read whole, the others go
on from the cached text. Prints per length how many of the answers that the exact reading gives right are right at GAMMA too, and the share
of blocks that was read, questions included. Exit code 0: at some GAMMA at most --most of the blocks were read and at least --least of the answers kept. Standard library only.
"""
import argparse
import http.client
import json
import random
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools/train"))
from corpus import PREFILL, Gen  # noqa: E402
from tokenizer import Tok  # noqa: E402

ROWS, TILE, QUESTION, CHUNK = 192, 32, 256, 512  # src/backend/select.h; tokens of a step


def text_with_questions(tok, length, number, questions, facts):
    """Prompts as token ids, of some `length` tokens, that differ in their question, and the answers."""
    gen = Gen(910001 + 1000 * length + number, held=True)
    while True:
        text, told = gen.notes(tok, length - 90, facts)
        asked = [gen.c(f["ask"]) for f in gen.some(told, questions)]
        start = f"<bos><|turn>user\nRead these notes.\n{text}\n\n"
        prompts = [tok(f"{start}{q}<turn|>\n<|turn>model\n{PREFILL}") for q, _ in asked]
        if abs(len(prompts[0]) - length) <= length // 100:
            return prompts, [a for _, a in asked]


def blocks_of(n):
    """Blocks that the tiles of n tokens see, and those of steps in which some token chooses: the server counts these alone."""
    seen = [(first, (first + TILE - 1) // ROWS + 1) for first in range(0, n, TILE)]
    return sum(b for _, b in seen), sum(b for first, b in seen if n - QUESTION > first // CHUNK * CHUNK)


class Server:
    def __init__(self, program, model, context, options):
        command = [program, "serve", "-m", model, "--port", "0", "--parallel", "1", "-c", str(context), "--chunk", str(CHUNK)]
        command += ["--draft", "none", "--snapshot-every", "512", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if ":" not in line:
            sys.exit(f"{' '.join(command)}: did not start")
        self.port = int(line.rsplit(":", 1)[1])

    def answer(self, prompt):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=3600)
        c.request("POST", "/completion", json.dumps({"prompt": prompt, "temperature": 0, "n_predict": 64}))
        r = c.getresponse()
        data = json.loads(r.read())
        c.close()
        if r.status != 200:
            sys.exit(f"/completion: {data}")
        return data["content"].strip(), data["timings"].get("sparse_prefill")

    def close(self):
        self.process.terminate()
        self.process.wait()


def main():
    args = argparse.ArgumentParser(usage=__doc__)
    args.add_argument("facet")
    args.add_argument("model", nargs="?", default=str(ROOT / "models/facet-nano-Q8_0.gguf"))
    args.add_argument("--gamma", default="0.1,0.2,0.3,0.5")
    args.add_argument("--lengths", default="8192,8192,12288,12288,16384")
    args.add_argument("--questions", type=int, default=16)
    args.add_argument("--facts", type=int, default=40)
    args.add_argument("--most", type=float, default=0.4)
    args.add_argument("--least", type=float, default=0.99)
    mine, _, options = " ".join(sys.argv[1:]).partition(" -- ")
    args = args.parse_args(mine.split())
    tok, lengths = Tok(), [int(x) for x in args.lengths.split(",")]
    texts = [(n, *text_with_questions(tok, n, i, args.questions, args.facts)) for i, n in enumerate(lengths)]
    exact, held = {}, False
    print(f"{'GAMMA':>6} {'tokens':>7} {'read':>7} {'recall':>7} {'right':>9} {'of exact':>9} {'same text':>9}")
    for gamma in ["off", *args.gamma.split(",")]:
        server = Server(args.facet, args.model, max(lengths) * 101 // 100 + 128, ["--sparse-prefill", gamma, *options.split()])
        total = {"all": [0] * 6}
        for i, (length, prompts, answers) in enumerate(texts):
            row = total.setdefault(length, [0] * 6)  # blocks read, seen, estimated recall of them, right, of those that are right exactly, same
            for k, (prompt, want) in enumerate(zip(prompts, answers)):
                got, sparse = server.answer(prompt)
                if gamma == "off":
                    exact[i, k] = got
                if k == 0:
                    seen, counted = blocks_of(len(prompt))
                    kept, recall = (sparse["blocks_kept"], sparse["estimated_recall"]) if sparse else (1, 1)
                    read = [seen - counted + kept * counted, seen, recall * seen]
                else:
                    read = [0, 0, 0]
                for to in (row, total["all"]):
                    for at, x in enumerate([*read, got == want, got == want and exact[i, k] == want, got == exact[i, k]]):
                        to[at] += x
        server.close()
        for length, (read, seen, recall, right, kept, same) in sorted(total.items(), key=lambda x: (x[0] == "all", str(x[0]).zfill(9))):
            of = [(i, k) for i, k in exact if length in ("all", texts[i][0])]
            good = sum(exact[i, k] == texts[i][2][k] for i, k in of)
            print(f"{gamma:>6} {length:>7} {100 * read / seen:6.1f}% {recall / seen:7.4f} {right:4}/{len(of):<4} {kept:4}/{good:<4} {same:4}/{len(of):<4}", flush=True)
        if gamma != "off":
            held |= good > 0 and read <= args.most * seen and kept >= args.least * good
    print("held" if held else f"not held: at most {args.most:.0%} of the blocks, at least {args.least:.0%} of the answers")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
