#!/usr/bin/env python3
"""tools/capacity.py against what queueing theory knows exactly: capacity_test.py [PROGRAM]. Only Python's standard library.

FACET_QUIET=1 also compares it with `facet serve` on this machine, which has to do nothing else.
"""
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tools"))
import capacity  # noqa: E402

PROGRAM = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build/release/facet").resolve()
STEPS = ROOT / "bench/results/h200-26b-a4b-steps.jsonl"


def times(*points):
    """(phase, n, depth, ms)"""
    return capacity.StepTimes([{"phase": p, "n": n, "depth": d, "ms_median": ms} for p, n, d, ms in points])


CONSTANT = times(("decode", 1, 0, 10), ("batch", 1000, 0, 10))  # a step takes 10 ms, whatever is in it
H200 = capacity.StepTimes(capacity.read_lines(STEPS))


class OneSlotMore(capacity.Machine):
    """A planted bug: it runs one request more than it has slots."""

    def __init__(self, number, times, slots, *rest):
        super().__init__(number, times, slots + 1, *rest)


class ForgetsWaiting(capacity.Machine):
    """A planted bug: a request's first token counts from when it had a slot."""

    def plan(self, now):
        before = set(map(id, self.running))
        busy = super().plan(now)
        for r in self.running:
            if id(r) not in before:
                r.arrival = now
        return busy


class StepByStep(capacity.Machine):
    """The definition: no steps are taken together."""

    def plan(self, now):
        busy = super().plan(now)
        if busy and self.steps > 1:
            self.steps, self.dt = 1, self.times.step(len(self.decoding), self.depth, 0)
            self.until = now + self.dt
        return busy


class InterruptsLate(capacity.Machine):
    """A planted bug: who comes waits until an answer ends, though a slot is free."""

    def interrupt(self, now):
        return False


class Formulas(unittest.TestCase):
    def wait_in_m_d_1(self, rho, machine=capacity.Machine):
        """Mean seconds from arrival to the end of a service of 10 ms; requests arrive at random."""
        return capacity.simulate(CONSTANT, rate=rho / .01, requests=60000, prompt=1, answer=1, slots=1, seed=5, machine=machine)["ttft_ms_mean"] / 1e3

    def test_m_d_1(self):
        for rho in (.3, .6, .8):
            exact = .01 + rho * .01 / (2 * (1 - rho))  # Pollaczek and Khinchine, deterministic service
            self.assertAlmostEqual(self.wait_in_m_d_1(rho) / exact, 1, delta=.03)
            for bug in (OneSlotMore, ForgetsWaiting):
                self.assertGreater(abs(self.wait_in_m_d_1(rho, bug) / exact - 1), .05, f"{bug.__name__} at {rho}")

    def test_one_client_is_a_sum(self):
        s = capacity.simulate(H200, clients=1, requests=10, prompt=512, answer=65, warm=0)
        decode = sum(H200.step(1, 512 + i, 0) for i in range(64))
        self.assertAlmostEqual(s["seconds"], 10 * (.02134 + decode), places=9)
        self.assertAlmostEqual(s["ttft_ms_p50"], 21.34, places=6)

    def test_prompts_that_are_cut(self):
        """A prompt in two steps costs what a step costs beside its tokens, no more and no less; that a step forgets what lies before it is seen."""
        t = times(("decode", 1, 0, 1), *(("prefill", n, 0, 2 + .05 * n + 1e-4 * n * n) for n in (64, 128, 256, 512)))
        self.assertAlmostEqual(t.pair * 1e7, 1, places=6)
        whole, half = t.step(0, 0, 512), t.step(0, 0, 256)
        self.assertAlmostEqual(half + t.step(0, 0, 256, 512 ** 2 - 256 ** 2) - whole, .002, places=9)
        self.assertLess(2 * half - whole, -.01)
        self.assertEqual(times(("decode", 1, 0, 1), ("prefill", 64, 0, 5), ("prefill", 128, 0, 9), ("prefill", 256, 0, 16)).pair, 0)  # it grows less
        s = capacity.simulate(t, clients=1, requests=8, prompt=512, answer=1, chunk=256, warm=0)
        self.assertAlmostEqual(s["ttft_ms_p50"], 1e3 * whole + 2, places=6)

    def test_clients_that_fill_a_step(self):
        """Prompts of one token and long answers: nearly all steps have all clients."""
        for clients in (1, 8, 64):
            s = capacity.simulate(times(("decode", 1, 0, 1.33), ("batch", 8, 0, 3.21), ("batch", 64, 0, 10.97)), clients=clients,
                                  requests=clients * 4, prompt=1, answer=4000, slots=64)
            exact = clients / {1: .00133, 8: .00321, 64: .01097}[clients]
            self.assertAlmostEqual(s["tok_s"] / exact, 1, delta=.01)

    def test_measured_points_are_met(self):
        for line in capacity.read_lines(STEPS):
            t = H200.step(0, 0, line["n"]) if line["phase"] == "prefill" else H200.step(line["n"], line["depth"], 0)
            self.assertAlmostEqual(1e3 * t, line["ms_median"], places=9)


class Recorded(unittest.TestCase):
    """Three measurements of `facet serve` with the shipped model on two cores of a Sapphire Rapids server (bench_server.py --steps, then 1, 4
    and 8 clients; a virtual machine whose speed moved meanwhile). docs/capacity.md says how far off the simulator is."""

    def test_as_far_off_as_the_page_says(self):
        off = []
        for path in sorted((ROOT / "bench/results").glob("cpu-nano-capacity-*.jsonl")):
            lines = capacity.read_lines(path)
            for m in (x for x in lines if x["phase"] == "serve"):
                s = capacity.simulate(capacity.StepTimes(lines), clients=m["clients"], requests=m["requests"], prompt=m["prompt"],
                                      answer=m["generated"], slots=m["slots"], chunk=512, warm=0)
                off.append(round(100 * (s["tok_s"] / m["tok_s"] - 1)))
        self.assertLessEqual(max(map(abs, off)), 10)
        page = (ROOT / "docs/capacity.md").read_text()
        self.assertIn("| off | " + " | ".join(f"{x:+d} %" for x in off) + " |", page)


class Steps(unittest.TestCase):
    def same(self, machine, seed):
        rng = random.Random(seed)
        load = dict(prompt=rng.randrange(1, 2000), answer=rng.randrange(1, 300), slots=rng.randrange(1, 33), machines=rng.randrange(1, 4),
                    requests=200, vary=rng.random() < .5, seed=seed, **({"clients": rng.randrange(1, 50)} if rng.random() < .5 else {"rate": rng.uniform(1, 30)}))
        a, b = capacity.simulate(H200, **load), capacity.simulate(H200, machine=machine, **load)
        return all(abs(a[k] / b[k] - 1) < .001 for k in ("tok_s", "ttft_ms_mean"))

    def test_steps_taken_together_are_steps(self):
        self.assertTrue(all(self.same(StepByStep, seed) for seed in range(30)))
        self.assertFalse(all(self.same(InterruptsLate, seed) for seed in range(30)))

    def test_nothing_is_lost(self):
        for seed in range(20):
            rng = random.Random(seed)
            s = capacity.simulate(H200, rate=rng.uniform(1, 200), requests=300, prompt=rng.randrange(1, 5000), answer=rng.randrange(1, 200),
                                  slots=rng.randrange(1, 65), machines=rng.randrange(1, 9), chunk=rng.choice((64, 512, 4096)), seed=seed)
            self.assertEqual(s["requests"], 300)
            self.assertLessEqual(s["busy"], 1 + 1e-9)

    def test_readers_are_not_kept_waiting(self):
        """Beside answers a step is as long as --max-stall lets it be, by what was measured before."""
        s = capacity.simulate(H200, clients=16, requests=400, prompt=4096, answer=200, slots=16, max_stall=.03)
        self.assertLess(s["itl_ms_p99"], 36)
        s = capacity.simulate(H200, clients=16, requests=400, prompt=4096, answer=200, slots=16, max_stall=0)
        self.assertGreater(s["itl_ms_p99"], 60)

    def test_prompt_times_are_the_engine_s(self):
        """The constants of the rule are those of src/engine."""
        source = (ROOT / "src/engine/scheduler.cpp").read_text() + (ROOT / "src/engine/scheduler.h").read_text()
        for constant in ("kForget = .9", "kOutlier = 4", "kSpread = .02", "kLeastPrompt = 16", "kFirstPrompt = 64", "2. * newest_", "slope / 16"):
            self.assertIn(constant, source)


class Routers(unittest.TestCase):
    LOAD = dict(rate=60, requests=6000, prompt=2048, answer=64, vary=True, machines=8, groups=40, shared=1536, cache_tokens=12 * 1536, slots=64)

    def test_cache_aware(self):
        s = {kind: capacity.simulate(H200, router=kind, **self.LOAD) for kind in ("turns", "least", "cache")}
        self.assertGreater(s["cache"]["cached_ratio"], s["turns"]["cached_ratio"] + .1)
        self.assertLess(s["cache"]["ttft_ms_p50"], s["turns"]["ttft_ms_p50"])

    def test_many_machines_are_as_one(self):
        """As much load for each machine: as many tokens from each, and no longer waits, for more machines even out."""
        one = capacity.simulate(H200, rate=6, requests=1500, prompt=1024, answer=200, vary=True)
        many = capacity.simulate(H200, rate=6 * 50, requests=1500 * 5, prompt=1024, answer=200, vary=True, machines=50)
        self.assertLess(many["ttft_ms_p99"], one["ttft_ms_p99"] * 1.1)


class Command(unittest.TestCase):
    def run_it(self, *args):
        p = subprocess.run([sys.executable, ROOT / "tools/capacity.py", *map(str, args)], capture_output=True, text=True)
        self.assertNotIn("Traceback", p.stderr)
        return p.returncode, p.stdout, p.stderr

    def test_errors_are_one_line(self):
        with tempfile.TemporaryDirectory() as folder:
            bad = pathlib.Path(folder) / "bad.jsonl"
            for text, says in (("{", "bad.jsonl:1: expected a JSON object"), ('{"a": 1}', "phase: expected"), ("", "expected lines"),
                               ('{"phase": "batch", "n": 1, "depth": 0, "ms_median": 5}\n{"phase": "batch", "n": 2, "depth": 0, "ms_median": 4}', "measure again")):
                bad.write_text(text)
                code, _, err = self.run_it(bad)
                self.assertEqual(code, 1)
                self.assertIn(says, err)
        self.assertIn("above 0", self.run_it(STEPS, "--clients", "0")[2])

    def test_a_line_for_each_load(self):
        code, out, _ = self.run_it(STEPS, "--clients", "1,8", "--requests", 50)
        self.assertEqual((code, [json.loads(x)["clients"] for x in out.splitlines()]), (0, [1, 8]))


@unittest.skipUnless(os.environ.get("FACET_QUIET"), "FACET_QUIET=1: only on a machine that does nothing else")
class Live(unittest.TestCase):
    def test_the_server_is_as_simulated(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, args in (("steps", ["--steps"]), ("serve", ["--requests", "24"])):
                with open(f"{folder}/{name}.jsonl", "w") as f:
                    subprocess.run([sys.executable, ROOT / "tools/bench_server.py", PROGRAM, ROOT / "models/facet-nano-Q8_0.gguf", *args, "--",
                                    "--draft", "none"], stdout=f, check=True)
            code, out, err = Command.run_it(self, f"{folder}/steps.jsonl", "--measured", f"{folder}/serve.jsonl", "--chunk", 512)
            self.assertEqual(code, 0, out + err)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
