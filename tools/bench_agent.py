#!/usr/bin/env python3
"""Sessions of an agent, cold and warm: bench_agent.py PROGRAM MODEL [--sessions 4] [--turns 6] [-- OPTIONS OF serve] > lines.jsonl

Each session has a system block of its own (--system tokens), then turns: what a tool printed (--turn tokens) and an answer
(--generate). The sessions take turns. Every prompt is sent twice: warm, going on from what the server kept, and cold, with a salt of its own
and cache_prompt off. A line for each turn says the length of the prompt, the time to its first token both ways (median of the sessions), and which share of what was
computed before was cached. Prompts are token ids. Standard library only.
"""
import argparse
import json
import statistics
import sys
import time

from bench_server import Server, about


def first_token(server, prompt, n_answer, **fields):
    """(milliseconds to the first token, the answer's last event) of a stream."""
    begin, first, last = time.perf_counter(), None, None
    for event in server.events({"prompt": prompt, "temperature": 0, "n_predict": n_answer, "ignore_eos": True, "return_tokens": True, **fields}):
        first = first or time.perf_counter()
        last = event
    return 1e3 * (first - begin), last


def replay(server, a):
    texts = [server.prompt(i, a.system) for i in range(a.sessions)]
    asked = [0] * a.sessions
    for turn in range(a.turns):
        cold, warm, cached, before, length = [], [], 0, 0, 0
        for i in range(a.sessions):
            texts[i] = texts[i] + server.prompt(1000 * (turn + 1) + i, a.turn)
            ms, end = first_token(server, texts[i], a.generate)
            warm.append(ms)
            cached += end["timings"]["cache_n"]
            before += asked[i]
            asked[i] = length = len(texts[i])
            cold.append(first_token(server, texts[i], 1, cache_prompt=False)[0])
            texts[i] = texts[i] + server.prompt(2000 * (turn + 1) + i, a.generate)  # as if it had been rendered again: not what was drawn
        yield {"phase": "agent", "turn": turn, "sessions": a.sessions, "prompt": length, "generated": a.generate, "cold_ttft_ms_p50": statistics.median(cold),
               "warm_ttft_ms_p50": statistics.median(warm), "cached_of_before": cached / before if before else None}


def main():
    argv = sys.argv[1:]
    at = argv.index("--") if "--" in argv else len(argv)
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("program")
    ap.add_argument("model")
    ap.add_argument("--sessions", type=int, default=4)
    ap.add_argument("--turns", type=int, default=6)
    ap.add_argument("--system", type=int, default=1500, help="tokens of the system block and tools [1500]")
    ap.add_argument("--turn", type=int, default=300, help="tokens of a tool's output or a question [300]")
    ap.add_argument("--generate", type=int, default=64, help="tokens of an answer [64]")
    a = ap.parse_args(argv[:at])
    said = about(a.program, a.model, argv[at + 1:])
    server = Server(a.program, a.model, a.sessions, a.system + a.turns * (a.turn + a.generate) + 64, argv[at + 1:])
    try:
        first_token(server, server.prompt(999, a.system), a.generate, cache_prompt=False)
        for line in replay(server, a):
            print(json.dumps({**line, **said}), flush=True)
            print(f"turn {line['turn']}, {line['prompt']} tokens: first token {line['cold_ttft_ms_p50']:.1f} ms cold, {line['warm_ttft_ms_p50']:.1f} warm", file=sys.stderr)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
