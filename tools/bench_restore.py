#!/usr/bin/env python3
"""What readers notice of a conversation that comes back: bench_restore.py PROGRAM MODEL [--tokens 32768] [--readers 7] [SERVER OPTION...]

A prompt is computed, pushed out of the GPU's memory by others, and asked again while so many answers are being read. Prints a JSON line: the time to
its first token, where it came from and how long that took, and the gaps between the readers' tokens: median and longest, before it came and meanwhile.
With --log-slow-steps MS the server's lines of that time come first, on standard error: what the engine did between the tokens of slow steps.
Prompts are random token ids. Standard library only.
"""
import argparse
import http.client
import json
import random
import re
import statistics
import subprocess
import sys
import threading
import time


class Client:
    def __init__(self, port):
        self.port = port

    def complete(self, tokens, n, told=None):
        """The last event of an answer of n tokens; told(time) for each."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=900)
        c.request("POST", "/completion", json.dumps({"prompt": tokens, "n_predict": n, "temperature": 0, "ignore_eos": True, "stream": True}))
        r = c.getresponse()
        assert r.status == 200, r.read()
        last = None
        for line in r:
            if line.startswith(b"data: {"):
                last = json.loads(line[6:])
                if told:
                    told(time.perf_counter())
        c.close()
        return last


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("program")
    ap.add_argument("model")
    ap.add_argument("--tokens", type=int, default=32768, help="of the prompt that comes back")
    ap.add_argument("--readers", type=int, default=7)
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--vocab", type=int, default=260000, help="ids below it are drawn")
    a, options = ap.parse_known_args()
    rng = random.Random(1)
    ids = lambda n: [rng.randrange(300, a.vocab) for _ in range(n)]
    context = a.tokens + 4096
    # Room for the running ones and little more, so that a conversation that waits has to go.
    server = subprocess.Popen([a.program, "serve", "-m", a.model, "--port", "0", "--parallel", str(a.readers + 1), "--snapshots", "1", "-c", str(context), *options],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    said = []  # with the time of each line

    def listen():
        for line in server.stderr:
            said.append((time.perf_counter(), line))

    threading.Thread(target=listen, daemon=True).start()
    try:
        client = Client(int(re.search(r":(\d+)$", server.stdout.readline())[1]))
        prompt = ids(a.tokens)
        begin = time.perf_counter()
        client.complete(prompt, 1)
        cold = time.perf_counter() - begin
        for _ in range(a.rounds):
            # Others take every slot, and it goes.
            others = [threading.Thread(target=client.complete, args=(ids(600), 64)) for _ in range(2 * a.readers + 4)]
            for t in others:
                t.start()
            for t in others:
                t.join()
            stop, times = threading.Event(), [[] for _ in range(a.readers)]

            def read(k):
                while not stop.is_set():
                    client.complete(ids(64), 700, times[k].append)

            readers = [threading.Thread(target=read, args=(k,)) for k in range(a.readers)]
            for t in readers:
                t.start()
            time.sleep(3)
            came, first = time.perf_counter(), []
            last = client.complete(prompt + ids(8), 32, first.append)
            over = time.perf_counter()
            stop.set()
            for t in readers:
                t.join()
            gaps = [(x, 1e3 * (y - x)) for t in times for x, y in zip(t, t[1:])]
            before = [g for x, g in gaps if came - 1.5 < x < came - .1]
            beside = [g for x, g in gaps if came - .05 < x < first[0]]
            sys.stderr.write("".join(f"{1e3 * (t - came):8.1f} ms  {line}" for t, line in said if came < t < over and "to a step of" in line))
            cache = last["timings"]["cache"]
            print(json.dumps({"test": "restore", "tokens": a.tokens, "readers": a.readers, "cold_ms": round(1e3 * cold, 1), "first_token_ms": round(1e3 * (first[0] - came), 1),
                              "source": cache["source"], "hit_tokens": cache["hit_tokens"], "restore_ms": round(cache["restore_ms"], 1),
                              "gap_ms": {"before": [round(statistics.median(before), 2), round(max(before), 2)],
                                         "beside": [round(statistics.median(beside), 2), round(max(beside), 2)]}, "seconds": round(over - came, 2)}), flush=True)
    finally:
        server.terminate()
        server.wait(60)
        if server.returncode != 0:
            raise SystemExit("".join(line for _, line in said[-20:]))


if __name__ == "__main__":
    main()
