#!/usr/bin/env python3
"""Greedy text with drafts against plain text: check_drafting.py PROGRAM [--backend cuda] [--prompts 4] [--kv f16,q8_0,q4_0,tq3_0] [--ways chain,tree,auto] [--jobs 1]

Runs `facet run` on prompts of the shipped questions, for both shipped models, each K/V type, each drafter beside the model, and
drafts as chains, as trees and with lengths chosen as it goes, and compares the bytes of every answer with plain decoding's.
Exit code 1 on any difference, on a run that fails, or when no draft was right or none was wrong. Standard library only.
"""
import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys

MODELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "models")
SHIPPED = {"facet-nano-Q8_0.gguf": "facet-nano", "facet-nano-moe-Q4_K_M.gguf": "facet-nano-moe"}
WAYS = {"chain": ["--draft-max", "7", "--draft-min", "7"], "tree": ["--draft-max", "7", "--draft-min", "1", "--draft-tree", "15"], "auto": []}


def prompts(n):
    """The first question of each kind, in turn, without its <bos>: --raw adds one."""
    kinds = {}
    with open(os.path.join(MODELS, "facet-nano-eval.jsonl")) as f:
        for line in f:
            j = json.loads(line)
            kinds.setdefault(j["kind"].split("-")[0], []).append(j["context"].removeprefix("<bos>"))
    rounds = max(map(len, kinds.values()))
    return [(k, q[i]) for i in range(rounds) for k, q in kinds.items() if i < len(q)][:n]


def run(program, backend, model, kv, prompt, n, extra):
    r = subprocess.run([program, "run", "-m", os.path.join(MODELS, model), "--backend", backend, "--kv-k", kv, "--kv-v", kv, "-c", "8192", "--raw", "-p", prompt,
                        "--temp", "0", "-n", str(n), "--ignore-eos", "-v", *extra], capture_output=True)
    err = r.stderr.decode(errors="replace")
    drafts = re.search(r"drafts (\d+) of (\d+) right", err)
    return r.returncode, r.stdout, err, tuple(map(int, drafts.groups())) if drafts else (0, 0)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("program")
    p.add_argument("--backend", default="auto")
    p.add_argument("--prompts", type=int, default=4)
    p.add_argument("--kv", default="f16,q8_0,q4_0,tq3_0")
    p.add_argument("--ways", default="chain,tree,auto")
    p.add_argument("-n", type=int, default=64, help="tokens of an answer")
    p.add_argument("--jobs", type=int, default=1)
    a = p.parse_args()
    questions = prompts(a.prompts)
    cases = [(m, kv, q) for m in SHIPPED for kv in a.kv.split(",") for q in range(len(questions))]
    ways = [(d, w) for d in ("dflash", "mtp") for w in a.ways.split(",")]
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        def start(m, kv, q, extra):
            return pool.submit(run, a.program, a.backend, m, kv, questions[q][1], a.n, extra)
        plain = {c: start(*c, ["--draft", "none"]) for c in cases}
        drafted = {(c, d, w): start(*c, ["--draft", os.path.join(MODELS, f"{SHIPPED[c[0]]}-{d}-Q8_0.gguf"), *WAYS[w]]) for c in cases for d, w in ways}
        differ = idle = 0
        print(f"{'model':<28} {'drafter':<8} {'way':<6} {'equal':>9} {'drafts right':>16}")
        for m in SHIPPED:
            for d, w in ways:
                equal = of = right = made = 0
                for c in cases:
                    if c[0] != m:
                        continue
                    want, got = plain[c].result(), drafted[c, d, w].result()
                    what = f"{m} {d} {w} {c[1]} {questions[c[2]][0]}"
                    for r in (want, got):
                        if r[0] != 0:
                            print(f"{what}: exit code {r[0]}: {r[2].strip().splitlines()[-1:]}", file=sys.stderr)
                    same = want[0] == got[0] == 0 and want[1] == got[1]
                    if want[0] == got[0] == 0 and not same:
                        print(f"{what}: plain {want[1]!r}, drafted {got[1]!r}", file=sys.stderr)
                    equal, of, right, made = equal + same, of + 1, right + got[3][0], made + got[3][1]
                differ += of - equal
                if w != "auto" and not 0 < right < made:  # comparing plain with plain, or nothing was ever rejected
                    print(f"{m} {d} {w}: expected drafts both right and wrong, found {right} of {made}", file=sys.stderr)
                    idle += 1
                print(f"{m:<28} {d:<8} {w:<6} {f'{equal}/{of}':>9} {f'{right}/{made}':>16}", flush=True)
    total = len(cases) * len(ways)
    print(f"{total - differ} of {total} answers with drafts are plain decoding's, {len(cases)} of those, {a.n} tokens each")
    return 1 if differ or idle else 0


if __name__ == "__main__":
    sys.exit(main())
