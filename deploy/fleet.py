#!/usr/bin/env python3
"""Three `facet serve` behind a router that exists, under load, one of them killed twice: what clients saw, and how much of
their prompts came from caches.

  deploy/fleet.py --program build/release/facet --router sglang|vllm [--policy cache_aware|round_robin]
                  [--clients 32] [--requests 2000] [--kills 2] [--json FILE]

The router is that of PyPI (pip install sglang-router, vllm-router) in the Python that runs this. Exit code 77: it is not
installed. 1: an error that the router's policy does not explain, that is one long after a kill, or no recovery.
"""
import argparse
import collections
import concurrent.futures
import http.client
import importlib.util
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODULES = {"sglang": "sglang_router", "vllm": "vllm_router"}
TOPICS = ("the sea", "old trains", "a small garden", "the night sky", "baking bread", "a mountain path", "clocks", "winter birds")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def ask(port, method, path, body=None, timeout=120, headers=None):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        c.request(method, path, json.dumps(body) if body is not None else None, {**({"Content-Type": "application/json"} if body else {}), **(headers or {})})
        r = c.getresponse()
        text = r.read()
        try:
            return r.status, json.loads(text)
        except ValueError:
            return r.status, text.decode(errors="replace")
    finally:
        c.close()


class Server:
    """One `facet serve`, which can be killed and started again on its port."""

    def __init__(self, program, model, folder, name):
        self.args, self.port, self.log = [program, "serve", "-m", model, "-a", "nano"], free_port(), open(folder / f"{name}.log", "ab")
        self.start()

    def start(self):
        self.process = subprocess.Popen([*self.args, "--port", str(self.port), "-c", "2048", "--parallel", "4", "--queue", "256",
                                         "--metrics-compat", "-t", "1"], stdout=self.log, stderr=self.log)

    def wait(self, seconds=120):
        end = time.time() + seconds
        while time.time() < end:
            try:
                if ask(self.port, "GET", "/health", timeout=5)[0] == 200:
                    return
            except OSError:
                pass
            if self.process.poll() is not None:
                raise SystemExit(f"a server ended with {self.process.returncode}; see its log")
            time.sleep(.05)
        raise SystemExit("a server did not become ready")

    def kill(self):
        self.process.kill()
        self.process.wait()


def start_router(kind, policy, ports, folder):
    """The router in front of the servers; what differs from its defaults is stated here."""
    port = free_port()
    command = [sys.executable, "-m", f"{MODULES[kind]}.launch_router", "--host", "127.0.0.1", "--port", str(port),
               "--prometheus-port", str(free_port()), "--policy", policy, "--worker-urls", *[f"http://127.0.0.1:{p}" for p in ports],
               "--health-check-interval-secs", "1", "--health-failure-threshold", "1", "--health-success-threshold", "1",
               "--cb-timeout-duration-secs", "2", "--worker-startup-check-interval", "1", "--max-concurrent-requests", "256"]
    log = open(folder / "router.log", "ab")
    process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    end = time.time() + 120
    while time.time() < end:
        if process.poll() is not None:
            raise SystemExit(f"the router ended with {process.returncode}:\n" + (folder / "router.log").read_text()[-2000:])
        try:
            if ask(port, "POST", "/v1/chat/completions", message("warm", 1), timeout=30)[0] == 200:
                return process, port
        except OSError:
            pass
        time.sleep(.2)
    os.killpg(process.pid, signal.SIGKILL)
    raise SystemExit("the router did not become ready:\n" + (folder / "router.log").read_text()[-2000:])


def message(text, tokens, system=None):
    messages = ([{"role": "system", "content": system}] if system else []) + [{"role": "user", "content": text}]
    return {"model": "nano", "messages": messages, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}


def load(port, servers, clients, requests, kills, seed=1):
    """Requests of conversations that share long beginnings; kills in the middle of them."""
    rnd = random.Random(seed)
    systems = [f"You tell about {t}. " + " ".join(rnd.choice("one two three red blue small large warm cold".split()) for _ in range(220))
               for t in TOPICS]
    jobs = [(rnd.choice(systems), f"Question {i}: what comes next?") for i in range(requests)]
    results, counter, lock, downs = [], [0], threading.Lock(), []
    marks = [requests * (k + 1) // (kills + 1) for k in range(kills)]

    def kill_and_restart(server):
        begun = time.time()
        server.kill()
        time.sleep(1)
        server.start()
        server.wait()
        downs.append((begun, time.time()))

    killers = []

    def one(job):
        with lock:
            counter[0] += 1
            if counter[0] in marks:
                killers.append(threading.Thread(target=kill_and_restart, args=(servers[0],)))
                killers[-1].start()
        begun = time.time()
        try:
            status, body = ask(port, "POST", "/v1/chat/completions", message(job[1], 6, job[0]))
        except (OSError, http.client.HTTPException) as e:
            status, body = 0, repr(e)
        usage = body.get("usage") if status == 200 and isinstance(body, dict) else None
        return begun, time.time(), status, usage, None if status == 200 else str(body)[:200]

    start = time.time()
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        results = list(pool.map(one, jobs))
    for k in killers:
        k.join()
    return results, downs, time.time() - start


def judge(results, downs):
    """Errors by status, and those of requests that were not in flight while a server was down (with 5 s to notice)."""
    errors = collections.Counter(r[2] for r in results if r[2] != 200)
    near = lambda r: any(r[0] <= up + 5 and r[1] >= down for down, up in downs)
    unexplained = [r for r in results if r[2] != 200 and not near(r)]
    usages = [r[3] for r in results if r[3]]
    prompt = sum(u["prompt_tokens"] for u in usages)
    cached = sum((u.get("prompt_tokens_details") or {}).get("cached_tokens", 0) for u in usages)
    return errors, unexplained, cached / prompt if prompt else 0.


def run(args, policy, kills, folder):
    servers = [Server(args.program, args.model, folder, f"server{i}") for i in range(3)]
    process = None
    try:
        for s in servers:
            s.wait()
        process, port = start_router(args.router, policy, [s.port for s in servers], folder)
        results, downs, seconds = load(port, servers, args.clients, args.requests, kills)
        after = [ask(port, "POST", "/v1/chat/completions", message(f"After {i}", 2))[0] for i in range(12)]
        errors, unexplained, cached = judge(results, downs)
        return {"router": args.router, "policy": policy, "clients": args.clients, "requests": args.requests, "kills": len(downs),
                "seconds": round(seconds, 1), "errors": {str(k): v for k, v in errors.items()}, "unexplained": len(unexplained),
                "first_errors": sorted({r[4] for r in results if r[4]})[:3], "after": {str(k): v for k, v in collections.Counter(after).items()},
                "cached_share": round(cached, 4)}
    finally:
        if process:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for s in servers:
            s.kill()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", default=str(ROOT / "build/release/facet"))
    p.add_argument("--model", default=str(ROOT / "models/facet-nano-Q8_0.gguf"))
    p.add_argument("--router", choices=sorted(MODULES), required=True)
    p.add_argument("--policy", default="both", choices=["cache_aware", "round_robin", "both"])
    p.add_argument("--clients", type=int, default=32)
    p.add_argument("--requests", type=int, default=2000)
    p.add_argument("--kills", type=int, default=2)
    p.add_argument("--json")
    args = p.parse_args()
    if not importlib.util.find_spec(MODULES[args.router]):
        print(f"skipped: {MODULES[args.router]} is not installed (pip install {args.router}-router)")
        return 77
    runs, bad = [], False
    for policy in ["cache_aware", "round_robin"] if args.policy == "both" else [args.policy]:
        with tempfile.TemporaryDirectory() as folder:
            r = run(args, policy, args.kills, pathlib.Path(folder))
        runs.append(r)
        print(json.dumps(r), flush=True)
        bad |= r["unexplained"] > 0 or r["after"] != {"200": 12} or r["kills"] != args.kills
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(runs, indent=1) + "\n")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
