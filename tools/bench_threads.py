#!/usr/bin/env python3
"""What threads are worth beside other programs: bench_threads.py PROGRAM MODEL [MODEL ...] > lines.jsonl

For every model and number of busy programs (--busy; each keeps one core at work, at the same priority), `facet run` answers in turn with every
number of threads (--threads), --pairs times. The table on stderr has the median of tokens a second, and the median over the pairs of what an answer
has of the first number's in the same pair. --steps adds the longest and the median step of `facet bench`, in milliseconds; the longest one cannot be
shorter than the system keeps a thread waiting, which the first number's shows. --against PROGRAM measures a second program with the same options.
A JSON line for each case goes to stdout. To displace other work, run it under `nice -n -20`. Standard library only.
"""
import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys

BUSY = "while True: pass"


@contextlib.contextmanager
def busy(n):
    programs = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(n)]
    try:
        yield
    finally:
        for p in programs:
            p.kill()
        for p in programs:
            p.wait()


def answer(program, model, threads, a):
    """Tokens a second of one answer."""
    command = [program, "run", "-m", model, "--backend", "cpu", "--draft", "none", "-t", str(threads), "-c", "2048", "-n", str(a.tokens),
               "--ignore-eos", "--temp", "0", "-v"]
    command += ["--tokens", a.ids, "--out-tokens", a.ids + ".out"] if a.ids else ["-p", "Tell me a long story."]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    rate = re.search(r"answer \d+ tokens, ([0-9.]+) tok/s", done.stderr)
    if done.returncode != 0 or not rate:
        sys.exit(f"bench_threads: {' '.join(command)}: exit code {done.returncode}: {done.stderr.strip()[-500:]}")
    return float(rate[1])


def steps(program, model, threads, a):
    """(longest, median) milliseconds of a step; None of a program that does not tell."""
    command = [program, "bench", "-m", model, "--backend", "cpu", "-t", str(threads), "-c", "2048", "--prefill", "0", "--depths", "64", "--widths", "1", "--runs",
               str(a.tokens)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    line = json.loads(done.stdout.splitlines()[0])
    return line.get("ms_longest"), line["ms_median"]


def main():
    ints = lambda text: [int(x) for x in text.split(",")]
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("program")
    ap.add_argument("model", nargs="+")
    ap.add_argument("--threads", type=ints, default=[1, 2, 4], help="in turn [1,2,4]")
    ap.add_argument("--busy", type=ints, default=[0, 1, 2, 8], help="other programs [0,1,2,8]")
    ap.add_argument("--pairs", type=int, default=9, help="[9]")
    ap.add_argument("-n", "--tokens", type=int, default=400, help="of an answer, at most 1000 [400]")
    ap.add_argument("--ids", metavar="FILE", help="the prompt's token ids, int32, little endian: for models without a tokenizer")
    ap.add_argument("--steps", action="store_true", help="also the longest step")
    ap.add_argument("--against", metavar="PROGRAM", help="a second program, measured in the same turns")
    a = ap.parse_args()
    programs = [a.program] + ([a.against] if a.against else [])
    print(f"{'model':<28}{'busy':>5}{'-t':>4}  {'program':<22}{'tok/s':>9}{'of the first':>14}{'longest ms':>12}{'median ms':>11}", file=sys.stderr)
    for model in a.model:
        for n_busy in a.busy:
            with busy(n_busy):
                cases = [(p, t) for t in a.threads for p in programs]
                rates = {c: [] for c in cases}
                for _ in range(a.pairs):
                    for c in cases:
                        rates[c].append(answer(c[0], model, c[1], a))
                for p, t in cases:
                    longest, median = steps(p, model, t, a) if a.steps else (None, None)
                    of_first = statistics.median(r / f for r, f in zip(rates[p, t], rates[cases[0]]))
                    line = {"phase": "threads", "model": os.path.basename(model), "program": p, "busy": n_busy, "threads": t, "pairs": a.pairs, "tokens": a.tokens,
                            "tok_s": statistics.median(rates[p, t]), "of_first": of_first, "ms_longest": longest, "ms_median": median}
                    print(json.dumps(line), flush=True)
                    show = lambda x: "-" if x is None else f"{x:.2f}"
                    print(f"{line['model']:<28}{n_busy:>5}{t:>4}  {os.path.basename(p):<22}{line['tok_s']:>9.1f}{of_first:>14.2f}{show(longest):>12}{show(median):>11}",
                          file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
