#!/usr/bin/env python3
"""What machines of facet serve under load, simulated from measured times of steps (docs/capacity.md).

  capacity.py STEPS [--clients 1,8,64 | --rate 10,20] [--prompt P] [--answer N] [--machines M] [--router least|cache|turns]

STEPS: JSON lines as `facet bench --json` and `bench_server.py --steps` write them: phases batch and decode (n sequences, depth),
prefill (n tokens), with ms_mean, or else ms_median. A JSON line for each load goes to stdout. Standard library only.
"""
import argparse
import bisect
import collections
import heapq
import itertools
import json
import math
import random
import sys


def interpolate(points, x):
    """Through sorted (x, y), by the last two points beyond the ends."""
    if len(points) == 1:
        return points[0][1]
    at = min(max(bisect.bisect_right(points, (x, math.inf)), 1), len(points) - 1)
    (x0, y0), (x1, y1) = points[at - 1], points[at]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def square_part(points):
    """c of a + b n + c n^2 through (n, seconds), least squares of relative errors; 0 where fewer than three points tell, or where
    the rest would not grow with n."""
    if len(points) < 3:
        return 0.0
    rows = [(1 / t, n / t, n * n / t, 1.0) for n, t in points]
    a = [[math.fsum(r[i] * r[j] for r in rows) for j in range(4)] for i in range(3)]
    for i in range(3):
        a[i] = [x / a[i][i] for x in a[i]]
        for k in range(3):
            if k != i:
                a[k] = [x - a[k][i] * y for x, y in zip(a[k], a[i])]
    most = min((t1 - t0) / (n1 * n1 - n0 * n0) for (n0, t0), (n1, t1) in zip(points, points[1:]))
    return min(max(a[2][3], 0.0), max(most, 0.0))


class StepTimes:
    """Seconds of a step. Products: by all rows of the step, whatever they are of. Attention of decoding sequences: what a step
    of so many takes longer at a depth than on an empty cache. Attention of prompts: the part of their times that grows with
    the square of their length, by the pairs of a row and one before it."""

    def __init__(self, lines):
        batches, prefill = {}, {}
        for line in lines:
            seconds = line.get("ms_mean", line["ms_median"]) / 1e3 if line["phase"] in ("batch", "decode", "prefill") else 0
            if line["phase"] in ("batch", "decode"):
                batches.setdefault(line["depth"], {})[line["n"]] = seconds
            elif line["phase"] == "prefill" and line["depth"] == 0:
                prefill[line["n"]] = seconds
        if not batches:
            raise ValueError("expected lines of the phases batch or decode, found none")
        depths = sorted(batches)
        by_rows = {d: sorted(batches[d].items()) for d in depths}
        self.pair = square_part(sorted(prefill.items()))
        rows = {n: t - self.pair * n * n for n, t in prefill.items()}
        rows.update(batches[depths[0]])
        self.products = sorted(rows.items())
        for (n0, t0), (n1, t1) in zip(self.products, self.products[1:]):
            if t1 < t0 * (1 - 1e-9):
                raise ValueError(f"a step of {n1} rows takes {1e3 * t1:.3f} ms, one of {n0} rows {1e3 * t0:.3f} ms: measure again")
        self.depths, self.by_rows = depths, by_rows
        self.kept = {}

    def rows(self, n):
        """The products of n rows."""
        t = self.kept.get(n)
        if t is None:
            t = self.kept[n] = interpolate(self.products, n)
        return t

    def step(self, decoding, depth, prompt, squares=None):
        """prompt: tokens of prompts. squares: what the squares of the lengths that prompts have reached grow by; omitted: they begin."""
        seconds = self.rows(decoding + prompt) + self.pair * (prompt * prompt if squares is None else squares)
        if decoding == 0 or len(self.depths) == 1:
            return seconds
        at = [(d, interpolate(self.by_rows[d], decoding)) for d in self.depths]
        return seconds + max(0, interpolate(at, depth) - at[0][1])


class PromptTimes:
    """As in src/engine/scheduler.cpp."""

    def __init__(self):
        self.w = self.n = self.nn = self.t = self.nt = 0
        self.newest = 0

    def observe(self, n, seconds):
        if n <= 0 or seconds <= 0:
            return
        if self.w > 0:
            seconds = min(seconds, 4 * self.t / self.w * max(1, n * self.w / self.n))
        self.w, self.n, self.nn = .9 * self.w + 1, .9 * self.n + n, .9 * self.nn + n * n
        self.t, self.nt = .9 * self.t + seconds, .9 * self.nt + n * seconds
        self.newest = n

    def fit(self, seconds):
        if self.w == 0:
            return 0
        mean_n, mean_t = self.n / self.w, self.t / self.w
        spread = self.nn / self.w - mean_n * mean_n
        slope = mean_t / mean_n
        if spread > .02 * mean_n * mean_n:
            slope = min(max((self.nt / self.w - mean_n * mean_t) / spread, slope / 16), slope)
        return int(min(max(mean_n + (seconds - mean_t) / slope, 1), 2 * self.newest))


class Request:
    __slots__ = ("arrival", "number", "prompt", "answer", "group", "shared", "pending", "depth", "made", "first", "last", "passed", "client", "cached")

    def __init__(self, number, arrival, prompt, answer, group=None, shared=0, client=None):
        self.number, self.arrival, self.prompt, self.answer = number, arrival, prompt, answer
        self.group, self.shared, self.client = group, shared, client
        self.pending, self.depth, self.made, self.passed, self.cached = prompt, 0, 0, 0, 0
        self.first = self.last = None


class Machine:
    """One engine: steps of decoding sequences and prompts, as src/engine/scheduler.h says."""

    def __init__(self, number, times, slots, chunk, max_stall, cache_tokens=0):
        self.number, self.times, self.slots, self.chunk, self.max_stall = number, times, slots, chunk, max_stall
        self.waiting, self.running = collections.deque(), []
        self.prompt_times = PromptTimes()
        self.cache, self.cache_tokens, self.cached = collections.OrderedDict(), cache_tokens, 0
        self.start = self.until = 0.0
        self.steps, self.dt, self.grants, self.busy, self.version = 0, 0.0, [], 0.0, 0

    def load(self):
        return len(self.waiting) + len(self.running)

    def admit(self):
        while self.waiting and len(self.running) < self.slots:
            r = self.waiting.popleft()
            if r.group is not None and r.group in self.cache:
                self.cache.move_to_end(r.group)
                r.cached = min(r.shared, r.prompt - 1)
            r.pending, r.depth = r.prompt - r.cached, r.cached
            self.running.append(r)

    def plan(self, now):
        """The next step, or, where nothing but decoding runs, all steps until an answer ends or the depth is one that was measured. False:
        nothing to do."""
        self.admit()
        if not self.running:
            self.steps = 0
            return False
        decoding = [r for r in self.running if r.pending == 0][:self.chunk]
        prompts = sorted((r for r in self.running if r.pending > 0), key=lambda r: (r.pending - r.passed, r.number))
        room = max(0, self.chunk - len(decoding))
        if decoding and self.max_stall > 0:
            fit = self.prompt_times.fit(self.max_stall)
            room = min(room, max(fit or 64, 16))
        self.grants, prompt = [], 0
        for r in prompts:
            n = min(r.pending, room - prompt)
            if n == 0:
                break
            self.grants.append((r, n))
            prompt += n
            for other in prompts:
                if other.number < r.number:
                    other.passed += n
        self.decoding, self.prompt = decoding, prompt
        self.depth = sum(r.depth for r in decoding) / len(decoding) if decoding else 0
        self.steps = min(r.answer - r.made for r in decoding) if decoding and not prompts else 1
        for d in self.times.depths:  # between measured depths times are a straight line
            if self.depth < d:
                self.steps = min(self.steps, int(d - self.depth) + 1)
                break
        squares = sum((r.depth + n) ** 2 - r.depth ** 2 for r, n in self.grants)
        self.dt = self.times.step(len(decoding), self.depth + (self.steps - 1) / 2, prompt, squares)
        self.start, self.until = now, now + self.steps * self.dt
        self.version += 1
        return True

    def interrupt(self, now):
        """A request came: steps end at the next one's end. True: sooner than planned."""
        if self.steps <= 1:
            return False
        steps, dt = min(self.steps, max(1, math.ceil((now - self.start) / self.dt))), 0.0
        while steps < self.steps:
            dt = self.times.step(len(self.decoding), self.depth + (steps - 1) / 2, 0)  # of these steps alone
            if self.start + steps * dt >= now:
                break
            steps += 1
        if steps == self.steps:
            return False
        self.steps, self.dt, self.until = steps, dt, self.start + steps * dt
        self.version += 1
        return True

    def complete(self, stats):
        """What the planned steps gave; the requests that ended."""
        ended, k, dt, end = [], self.steps, self.dt, self.until
        self.busy += k * dt
        for r in self.decoding:
            r.made += k
            r.depth += k
            gap = end - (k - 1) * dt - r.last
            stats.gaps[gap] += 1
            if k > 1:
                stats.gaps[dt] += k - 1
            r.last = end
        for r, n in self.grants:
            r.pending -= n
            r.depth += n
            if r.pending == 0:
                r.made, r.first, r.last = 1, end, end
                self.keep(r)
        if self.prompt:
            self.prompt_times.observe(self.prompt, dt)
        for r in self.running:
            if r.pending == 0 and r.made >= r.answer:
                ended.append(r)
        if ended:
            self.running = [r for r in self.running if r.pending > 0 or r.made < r.answer]
        return ended

    def keep(self, r):
        if r.group is None or self.cache_tokens == 0:
            return
        if r.group not in self.cache:
            self.cached += r.shared
        self.cache[r.group] = r.shared
        self.cache.move_to_end(r.group)
        while self.cached > self.cache_tokens:
            self.cached -= self.cache.popitem(last=False)[1]


class Router:
    """least: fewest requests. cache: a machine that has the prefix, unless it has `more` requests more than the least. turns."""

    def __init__(self, kind, machines, more=8):
        self.kind, self.machines, self.more = kind, machines, more
        self.loads, self.next, self.homes = [0] * len(machines), 0, {}

    def choose(self, r):
        if self.kind == "turns":
            at, self.next = self.next, (self.next + 1) % len(self.machines)
        else:
            least = min(self.loads)
            at = self.loads.index(least, self.next) if least in self.loads[self.next:] else self.loads.index(least)
            if self.kind == "cache" and r.group is not None:
                homes = self.homes.setdefault(r.group, [])
                best = min(homes, key=lambda m: self.loads[m], default=None)
                if best is not None and self.loads[best] <= least + self.more:
                    at = best
                elif at not in homes:
                    homes.append(at)
            self.next = (at + 1) % len(self.machines)
        self.loads[at] += 1
        return self.machines[at]

    def ended(self, machine):
        self.loads[machine.number] -= 1


class Stats:
    def __init__(self):
        self.gaps, self.done = collections.Counter(), []


def share(values, p):
    """Nearest rank; values sorted."""
    return values[min(len(values) - 1, max(0, math.ceil(p * len(values)) - 1))] if values else None


def weighted_share(counter, p):
    total, seen = sum(counter.values()), 0
    for value in sorted(counter):
        seen += counter[value]
        if seen >= p * total:
            return value
    return None


def simulate(times, *, clients=0, rate=0, requests=1000, prompt=512, answer=128, machines=1, slots=8, chunk=4096, max_stall=.05,
             router="least", groups=0, shared=0, cache_tokens=0, vary=False, seed=1, warm=.1, machine=Machine):
    """A closed loop of `clients`, each with one request at a time, or an open one with `rate` requests a second (Poisson). The
    first `warm` of the requests are not counted in latencies. Returns a dict."""
    rng = random.Random(seed)
    fleet = [machine(i, times, slots, chunk, max_stall, cache_tokens) for i in range(machines)]
    route, stats, events, order = Router(router, fleet), Stats(), [], itertools.count()
    weights = list(itertools.accumulate(1 / (g + 1) for g in range(groups)))  # Zipf
    made = 0

    def request(now, client):
        nonlocal made
        made += 1
        n = max(1, round(rng.expovariate(1 / answer))) if vary else answer
        group = bisect.bisect(weights, rng.random() * weights[-1]) if groups else None
        heapq.heappush(events, (now, next(order), None, Request(made, now, prompt, n, group, shared, client)))

    def schedule(m, now):
        if m.plan(now):
            heapq.heappush(events, (m.until, next(order), m, m.version))

    if clients:
        for c in range(min(clients, requests)):
            request(0.0, c)
    else:
        request(rng.expovariate(rate), None)
    end = 0.0
    while events:
        now, _, m, what = heapq.heappop(events)
        if m is None:
            chosen = route.choose(what)
            chosen.waiting.append(what)
            if chosen.steps == 0:
                schedule(chosen, now)
            elif chosen.interrupt(now):
                heapq.heappush(events, (chosen.until, next(order), chosen, chosen.version))
            if not clients and made < requests:
                request(now + rng.expovariate(rate), None)
            continue
        if what != m.version:
            continue
        for r in m.complete(stats):
            route.ended(m)
            stats.done.append(r)
            if clients and made < requests:
                request(now, r.client)
        end = now
        schedule(m, now)
    counted = [r for r in stats.done if r.number > warm * requests]
    ttft = sorted(r.first - r.arrival for r in counted)
    tokens = sum(r.made for r in stats.done)
    return {"clients": clients, "rate": rate, "machines": machines, "router": router, "slots": slots, "prompt": prompt, "answer": answer,
            "requests": len(stats.done), "seconds": end, "tok_s": tokens / end, "requests_s": len(stats.done) / end,
            "busy": sum(m.busy for m in fleet) / end / machines,
            "cached_ratio": sum(r.cached for r in stats.done) / sum(r.prompt for r in stats.done),
            "ttft_ms_mean": 1e3 * sum(ttft) / len(ttft), "ttft_ms_p50": 1e3 * share(ttft, .5), "ttft_ms_p99": 1e3 * share(ttft, .99),
            "itl_ms_p50": 1e3 * (weighted_share(stats.gaps, .5) or 0), "itl_ms_p99": 1e3 * (weighted_share(stats.gaps, .99) or 0)}


def read_lines(path):
    lines = []
    with open(path) as f:
        for number, text in enumerate(f, 1):
            if not text.strip():
                continue
            try:
                line = json.loads(text)
            except ValueError as e:
                sys.exit(f"{path}:{number}: expected a JSON object on a line, found something else ({e})")
            if not isinstance(line, dict) or "phase" not in line:
                sys.exit(f"{path}:{number}: phase: expected a text, found none")
            lines.append(line)
    return lines


def numbers(kind):
    def read(text):
        values = [kind(x) for x in text.split(",")]
        if not values or min(values) <= 0:
            raise argparse.ArgumentTypeError(f"expected numbers above 0, found {text!r}")
        return values
    return read


def compare(times, lines, a):
    """Simulates the loads of measured lines (bench_server.py) and says how far off each is. The worst deviation of tok_s."""
    worst = 0
    for m in (x for x in lines if x["phase"] == "serve"):
        s = simulate(times, clients=m["clients"], requests=m["requests"], prompt=m["prompt"], answer=m["generated"],
                     slots=m.get("slots", a.slots), chunk=a.chunk, max_stall=a.max_stall / 1e3, warm=0)
        off = s["tok_s"] / m["tok_s"] - 1
        worst = max(worst, abs(off))
        print(json.dumps({"clients": m["clients"], "tok_s_measured": m["tok_s"], "tok_s_simulated": s["tok_s"], "off": off,
                          "ttft_ms_p50_measured": m["ttft_ms_p50"], "ttft_ms_p50_simulated": s["ttft_ms_p50"],
                          "itl_ms_p50_measured": m["itl_ms_p50"], "itl_ms_p50_simulated": s["itl_ms_p50"]}))
    return worst


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("steps", help="measured times of steps, JSON lines")
    load = ap.add_mutually_exclusive_group()
    load.add_argument("--clients", type=numbers(int), help="closed loops: each client sends its next request when it has its answer")
    load.add_argument("--rate", type=numbers(float), help="open loops: requests a second, whatever the answers take")
    load.add_argument("--measured", help="lines of bench_server.py: simulate their loads; exit code 1 beyond --within")
    ap.add_argument("--within", type=float, default=10, help="percent [10]")
    ap.add_argument("--prompt", type=int, default=512, help="tokens [512]")
    ap.add_argument("--answer", type=int, default=128, help="tokens [128]")
    ap.add_argument("--vary", action="store_true", help="lengths of answers are drawn (exponential), --answer on average")
    ap.add_argument("--requests", type=int, default=2000, help="in all, for each load [2000]")
    ap.add_argument("--machines", type=numbers(int), default=[1], help="[1]")
    ap.add_argument("--router", choices=("least", "cache", "turns"), default="least", help="[least]")
    ap.add_argument("--slots", type=int, default=64, help="--parallel of each machine [64]")
    ap.add_argument("--chunk", type=int, default=4096, help="--chunk of each machine [4096]")
    ap.add_argument("--max-stall", type=float, default=50, help="--max-stall of each machine, milliseconds [50]")
    ap.add_argument("--groups", type=int, default=0, help="kinds of prompts that begin alike, the k-th 1/k as frequent as the first [0]")
    ap.add_argument("--shared", type=int, default=0, help="tokens that prompts of a kind share [0]")
    ap.add_argument("--cache-tokens", type=int, default=0, help="tokens of shared beginnings that a machine keeps [0]")
    ap.add_argument("--seed", type=int, default=1)
    a = ap.parse_args()
    lines = read_lines(a.steps)
    try:
        times = StepTimes(lines)
    except ValueError as e:
        sys.exit(f"{a.steps}: {e}")
    if min(a.prompt, a.answer, a.requests, a.slots, a.chunk) < 1 or not 0 <= a.shared <= a.prompt or min(a.groups, a.cache_tokens) < 0:
        ap.error("expected --prompt, --answer, --requests, --slots and --chunk of 1 or more, and --shared of at most --prompt")
    if a.measured:
        worst = compare(times, read_lines(a.measured), a)
        print(f"at most {100 * worst:.1f} % off", file=sys.stderr)
        return 0 if worst <= a.within / 100 else 1
    for machines in a.machines:
        for kind, loads in (("clients", a.clients or ([] if a.rate else [1, 8, 64])), ("rate", a.rate or [])):
            for load_of in loads:
                print(json.dumps(simulate(times, **{kind: load_of}, requests=a.requests, prompt=a.prompt, answer=a.answer, machines=machines,
                                          slots=a.slots, chunk=a.chunk, max_stall=a.max_stall / 1e3, router=a.router, groups=a.groups,
                                          shared=a.shared, cache_tokens=a.cache_tokens, vary=a.vary, seed=a.seed)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
