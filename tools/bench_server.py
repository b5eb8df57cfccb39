#!/usr/bin/env python3
"""Latency of `facet serve` under load: bench_server.py PROGRAM MODEL [--clients 1,4,8] [--requests 24] [-- OPTIONS OF serve] > lines.jsonl

Starts a server, sends streams from so many clients at once, each prompt different from its first token on (nothing is cached), and
prints per number of clients the percentiles of the time to the first token and between tokens. Prompts are token ids, so that they
are exactly as long as --prompt says. --steps instead measures what steps take through the server, in the form that capacity.py
reads. --arriving N: what readers notice of a prompt of N tokens, the gaps between their tokens before it comes and until its first token. --pictures N: the same
of N pictures (768 x 512, noise, all different) that come one behind the other, each with a question. Standard library only.
"""
import argparse
import base64
import http.client
import json
import multiprocessing
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib


def percentile(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, int(p / 100 * len(values)))]


class Server:
    def __init__(self, program, model, slots, context, options):
        room = [] if "-c" in options else ["-c", str(context)]
        command = [program, "serve", "-m", model, *room, "--port", "0", "--parallel", str(slots), *options]
        said = tempfile.TemporaryFile(mode="w+", errors="replace")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True)
        line = self.process.stdout.readline()
        if ":" not in line:
            code = self.process.wait()
            said.seek(0)
            sys.exit(f"{' '.join(command)}: did not start (exit code {code}); it said:\n{said.read()[-4000:].strip()}")
        self.port = int(line.rsplit(":", 1)[1])
        text = "".join(f"{i} the quick brown fox jumps over a lazy dog and {i * i} other animals of the forest " for i in range(100, 200))
        self.words = sorted(set(self.post("/tokenize", {"content": text})["tokens"]))
        if len(self.words) < 16:
            sys.exit("/tokenize: expected some different tokens of a text, found few: the model has no vocabulary")

    def post(self, path, body):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        c.request("POST", path, json.dumps(body))
        r = c.getresponse()
        data = r.read()
        c.close()
        assert r.status == 200, data
        return json.loads(data)

    def prompt(self, number, n):
        """n token ids that no other number's prompt begins with."""
        rng = random.Random(number)
        return [rng.choice(self.words) for _ in range(n)]

    def answer(self, number, n_prompt, n_answer):
        """(start, [(time, tokens so far)], the server's own timings) of a stream."""
        body = {"prompt": self.prompt(number, n_prompt), "temperature": 0, "n_predict": n_answer, "ignore_eos": True}
        begin, times = time.perf_counter(), []
        for chunk in self.events(body):
            if not times or chunk["tokens_predicted"] > times[-1][1]:
                times.append((time.perf_counter(), chunk["tokens_predicted"]))
        assert chunk["tokens_evaluated"] == n_prompt and chunk["tokens_predicted"] == n_answer, chunk
        return begin, times, chunk.get("timings", {})

    def events(self, body):
        """Of a stream, as they come."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        c.request("POST", "/completion", json.dumps({**body, "stream": True}))
        r = c.getresponse()
        assert r.status == 200, r.read()
        for line in r:
            if line.startswith(b"data: {"):
                chunk = json.loads(line[6:])
                assert "error" not in chunk, chunk
                yield chunk
        c.close()

    def stop(self):
        self.process.terminate()
        self.process.wait()


def answers(server, clients, requests, n_prompt, n_answer, numbers):
    """What so many clients got, each with one request after another. Clients are threads of several processes: one would be slower than the server."""
    mine = [[next(numbers) for _ in range(requests // clients + (i < requests % clients))] for i in range(clients)]
    n_process = min(clients, os.cpu_count() or 1)

    def process(p, pipe):
        out = []
        threads = [threading.Thread(target=lambda i=i: out.extend(server.answer(n, n_prompt, n_answer) for n in mine[i])) for i in range(p, clients, n_process)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        pipe.send(out)

    fork = multiprocessing.get_context("fork")
    pipes = [fork.Pipe(False) for _ in range(n_process)]
    processes = [fork.Process(target=process, args=(p, pipes[p][1])) for p in range(n_process)]
    for p in processes:
        p.start()
    for _, end in pipes:
        end.close()  # so that a process that fails is seen
    out = [x for begin, _ in pipes for x in begin.recv()]
    for p in processes:
        p.join()
    if len(out) != requests:
        sys.exit(f"{requests} requests, {len(out)} answers")
    return out


def load(server, clients, a, numbers):
    """A closed loop of so many clients."""
    begin = time.perf_counter()
    out = answers(server, clients, a.requests, a.prompt, a.generate, numbers)
    wall = time.perf_counter() - begin
    ttft = [1e3 * (times[0][0] - begin) for begin, times, _ in out]
    gaps = []  # the tokens of one event arrive together: the first after a gap, the others after none
    for _, times, _ in out:
        for (t0, n0), (t1, n1) in zip(times, times[1:]):
            gaps += [1e3 * (t1 - t0)] + [0.0] * (n1 - n0 - 1)
    # What HTTP costs: from the first to the last token as clients see them, and as the engine does.
    seen, engine = sum(times[-1][0] - times[0][0] for _, times, _ in out), sum(own["predicted_ms"] for _, _, own in out) / 1e3
    decoded = sum(times[-1][1] - times[0][1] for _, times, _ in out)
    return {"phase": "serve", "clients": clients, "requests": len(out), "prompt": a.prompt, "generated": a.generate, "slots": a.slots,
            "ttft_ms_p50": percentile(ttft, 50), "ttft_ms_p99": percentile(ttft, 99), "itl_ms_p50": percentile(gaps, 50),
            "itl_ms_p99": percentile(gaps, 99), "tok_s": len(out) * a.generate / wall,
            "stream_tok_s": decoded / seen, "engine_tok_s": len(out) * (a.generate - 1) / engine}


def steps(server, a, numbers):
    """Lines of the phases batch and prefill, as `facet bench` writes them, seen by clients."""
    for n in a.prefill:
        ms = []
        for _ in range(a.runs):
            begin, times, _ = server.answer(next(numbers), n, 2)
            ms.append(1e3 * (times[0][0] - begin))
        yield {"phase": "prefill", "n": n, "depth": 0, "runs": a.runs, "ms_median": statistics.median(ms), "ms_mean": statistics.fmean(ms)}
    for depth in a.depths:
        for n in a.rows:
            gaps = []
            for _ in range(a.runs):
                out = answers(server, n, n, max(1, depth), a.generate, numbers)
                begin, end = max(times[0][0] for _, times, _ in out), min(times[-1][0] for _, times, _ in out)
                for _, times, _ in out:  # while all of them decode
                    inside = [t for t in times if begin <= t[0] <= end]
                    if len(inside) > 1:
                        gaps.append(1e3 * (inside[-1][0] - inside[0][0]) / (inside[-1][1] - inside[0][1]))
            if not gaps:
                sys.exit(f"{n} answers of {a.generate} tokens never decoded together: raise --generate")
            yield {"phase": "batch", "n": n, "depth": depth, "runs": a.runs, "ms_median": statistics.median(gaps), "ms_mean": statistics.fmean(gaps)}


def picture(number):
    """A PNG of noise, as a data URL."""
    width, height, rng = 768, 512, random.Random(number)
    rows = b"".join(b"\0" + rng.randbytes(3 * width) for _ in range(height))

    def part(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    png = b"\x89PNG\r\n\x1a\n" + part(b"IHDR", struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)) + part(b"IDAT", zlib.compress(rows, 1)) + part(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(png).decode()


def arriving(server, clients, a, numbers):
    """So many answers are being read when a long prompt comes, or pictures."""
    pictures = [picture(i) for i in range(a.pictures)]
    over, times = threading.Event(), [[] for _ in range(clients)]

    def read(i):
        while not over.is_set():
            for _ in server.events({"prompt": server.prompt(next(numbers), a.prompt), "temperature": 0, "n_predict": a.generate, "ignore_eos": True}):
                times[i].append(time.perf_counter())
                if over.is_set():
                    return

    readers = [threading.Thread(target=read, args=(i,)) for i in range(clients)]
    for t in readers:
        t.start()
    while min(map(len, times)) < 100:
        time.sleep(.05)
    quiet = time.perf_counter()
    time.sleep(2)
    if pictures:
        came = time.perf_counter()
        for url in pictures:
            ask = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "the fox"}]}]
            server.post("/v1/chat/completions", {"messages": ask, "temperature": 0, "max_tokens": 2})
        first = time.perf_counter()
    else:
        came, answer, _ = server.answer(next(numbers), a.arriving, 2)
        first = answer[0][0]
    over.set()
    for t in readers:
        t.join()

    def gaps(begin, end):
        return [1e3 * (y - x) for t in times for x, y in zip(t, t[1:]) if begin <= y <= end]

    before, beside = gaps(quiet, came), gaps(came, first)
    return {"phase": "arriving", "clients": clients, "prompt": a.prompt, "arriving": a.arriving, "pictures": a.pictures, "slots": a.slots, "ttft_ms": 1e3 * (first - came),
            "before_ms_p50": percentile(before, 50), "before_ms_p99": percentile(before, 99),
            "itl_ms_p50": percentile(beside, 50), "itl_ms_p99": percentile(beside, 99), "itl_ms_max": max(beside)}


def about(program, model, options):
    """What was measured, for every line."""
    bench = [program, "bench", "-m", model, "--prefill", "0", "--depths", "0", "--widths", "1", "--runs", "1"]
    done = subprocess.run(bench, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{program} did not start (exit code {done.returncode}); it said:\n{done.stderr.strip()}")
    line = json.loads(done.stdout.splitlines()[0])
    return {"model": str(model), **{k: line[k] for k in ("backend", "isa", "machine", "version", "commit")}, "options": options}


def whole(text):
    return [int(x) for x in text.split(",")]


def main():
    argv = sys.argv[1:]
    at = argv.index("--") if "--" in argv else len(argv)
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("program")
    ap.add_argument("model")
    ap.add_argument("--clients", type=whole, default=[1, 4, 8])
    ap.add_argument("--requests", type=int, default=24, help="per number of clients, after one that does not count [24]")
    ap.add_argument("--prompt", type=int, default=512, help="tokens of a prompt [512]")
    ap.add_argument("--generate", type=int, default=64, help="tokens of an answer [64]")
    ap.add_argument("--slots", type=int, help="--parallel of the server; omitted: as many as the most clients")
    ap.add_argument("--arriving", type=int, default=0, help="tokens of a prompt that comes while --clients read answers of --generate tokens")
    ap.add_argument("--pictures", type=int, default=0, help="pictures that come meanwhile instead of a prompt; the model needs --mmproj")
    ap.add_argument("--steps", action="store_true", help="measure steps: --rows sequences after --depths tokens, prompts of --prefill tokens")
    ap.add_argument("--rows", type=whole, default=[1, 2, 4, 8])
    ap.add_argument("--depths", type=whole, default=[16, 512])
    ap.add_argument("--prefill", type=whole, default=[64, 128, 256, 512])
    ap.add_argument("--runs", type=int, default=5, help="of each step [5]")
    a = ap.parse_args(argv[:at])
    a.slots = a.slots or max(a.rows if a.steps else a.clients) + (a.arriving > 0 or a.pictures > 0)
    longest = max(a.depths + a.prefill) if a.steps else max(a.prompt, a.arriving, 400 if a.pictures else 0)
    serve = arriving if a.arriving or a.pictures else load
    said = about(a.program, a.model, argv[at + 1:])
    server = Server(a.program, a.model, a.slots, longest + a.generate + 64, argv[at + 1:])
    try:
        numbers = iter(range(1000, 1 << 40))
        server.answer(next(numbers), longest, a.generate)
        for line in steps(server, a, numbers) if a.steps else (serve(server, clients, a, numbers) for clients in a.clients):
            print(json.dumps({**line, **said}), flush=True)
            if not a.steps and serve is load:
                print(f"{line['clients']} clients: first token {line['ttft_ms_p50']:.1f} / {line['ttft_ms_p99']:.1f} ms, between tokens "
                      f"{line['itl_ms_p50']:.2f} / {line['itl_ms_p99']:.2f} ms, {line['tok_s']:.0f} tokens/s", file=sys.stderr)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
