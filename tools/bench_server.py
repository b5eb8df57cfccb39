#!/usr/bin/env python3
"""Latency of `facet serve` under load: bench_server.py PROGRAM MODEL [--clients 1,4,8] [--requests 24] > lines.jsonl

Starts a server, sends streams from so many clients at once, each prompt different from its first word on (nothing is cached), and
prints per number of clients the percentiles of the time to the first token and between tokens. Standard library only.
"""
import argparse
import http.client
import json
import subprocess
import sys
import threading
import time


def percentile(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, int(p / 100 * len(values)))]


def one(port, number, words, generated, out):
    prompt = f"{number} is the number of this note. " + "The quick brown fox jumps over the lazy dog. " * (words // 9)
    body = {"messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": generated, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}}
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    begin = time.perf_counter()
    c.request("POST", "/v1/chat/completions", json.dumps(body))
    r = c.getresponse()
    assert r.status == 200, r.read()
    times, usage, timings = [], None, None
    for line in r:
        if not line.startswith(b"data: {"):
            continue
        now, chunk = time.perf_counter(), json.loads(line[6:])
        usage = chunk.get("usage") or usage
        timings = chunk.get("timings") or timings
        if chunk["choices"] and (chunk["choices"][0]["delta"].get("content") or chunk["choices"][0]["delta"].get("reasoning_content")):
            times.append(now)
    c.close()
    n = usage["completion_tokens"]
    out.append((1e3 * (times[0] - begin), [1e3 * (b - a) for a, b in zip(times, times[1:])], 1e3 * (times[-1] - times[0]) / max(1, n - 1), usage["prompt_tokens"], n))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("program")
    ap.add_argument("model")
    ap.add_argument("--clients", default="1,4,8")
    ap.add_argument("--requests", type=int, default=24, help="per number of clients, after one that does not count")
    ap.add_argument("--words", type=int, default=450, help="of a prompt")
    ap.add_argument("--generate", type=int, default=64, help="tokens of an answer")
    a = ap.parse_args()
    most = max(int(x) for x in a.clients.split(","))
    bench = [a.program, "bench", "-m", a.model, "--prefill", "0", "--depths", "0", "--widths", "1", "--runs", "1"]
    line = json.loads(subprocess.run(bench, capture_output=True, text=True, check=True).stdout.splitlines()[0])
    about = {k: line[k] for k in ("backend", "isa", "machine", "version", "commit")}
    server = subprocess.Popen([a.program, "serve", "-m", a.model, "-c", "4096", "--port", "0", "--parallel", str(most)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        port = int(server.stdout.readline().rsplit(":", 1)[1])
        number = 1000
        one(port, number, a.words, a.generate, [])
        for clients in (int(x) for x in a.clients.split(",")):
            out, left = [], list(range(a.requests))

            def client():
                nonlocal number
                while left:
                    left.pop()
                    number += 1
                    one(port, number, a.words, a.generate, out)

            begin = time.perf_counter()
            threads = [threading.Thread(target=client) for _ in range(clients)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            wall = time.perf_counter() - begin
            ttft, itl = [o[0] for o in out], [x for o in out for x in o[1]]
            tokens = sum(o[4] for o in out)
            line = {"phase": "serve", "clients": clients, "requests": len(out), "prompt": percentile([o[3] for o in out], 50), "generated": a.generate,
                    "ttft_ms_p50": percentile(ttft, 50), "ttft_ms_p99": percentile(ttft, 99), "itl_ms_p50": percentile(itl, 50), "itl_ms_p99": percentile(itl, 99),
                    "tok_s": tokens / wall, "model": a.model, **about}
            print(json.dumps(line), flush=True)
            print(f"{clients} clients: first token {line['ttft_ms_p50']:.1f} / {line['ttft_ms_p99']:.1f} ms, between tokens {line['itl_ms_p50']:.2f} / {line['itl_ms_p99']:.2f} ms, {line['tok_s']:.0f} tokens/s",
                  file=sys.stderr)
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
