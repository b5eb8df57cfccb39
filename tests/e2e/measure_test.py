#!/usr/bin/env python3
"""`facet bench matrix` and `facet quality` with the shipped models: measure_test.py PROGRAM. Only Python's standard library."""
import importlib.util
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree

from serving import MODELS, PROGRAM

NANO = MODELS / "facet-nano-Q8_0.gguf"
TOOLS = MODELS.parent / "tools"


def small(sets="chat,json", n=8, runs=2):
    return ("--backend", "cpu", "--draft", "none,dflash", "--kv", "f16,q8_0/q4_0", "--contexts", "0,200", "--sets", sets, "--count", "1", "-n", n,
            "--runs", runs, "--ignore-eos")


def matrix(*args, folder):
    return subprocess.run([PROGRAM, "bench", "matrix", *map(str, args)], capture_output=True, text=True, timeout=300, cwd=folder)


def lines_of(path):
    first, *runs = map(json.loads, path.read_text().splitlines())
    return first["matrix"], runs


def key(run):
    return tuple(run[k] for k in ("model", "drafter", "kv", "context", "set", "run"))


class Matrix(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.dir.name)

    def tearDown(self):
        self.dir.cleanup()

    def run_it(self, *args, code=0):
        p = matrix("-m", NANO, *args, folder=self.folder)
        self.assertEqual(p.returncode, code, p.stderr)
        return p

    def test_every_cell_in_turn(self):
        p = self.run_it(*small(), "--out", "m")
        settings, runs = lines_of(self.folder / "m.jsonl")
        self.assertEqual(len(runs), 2 * 2 * 2 * 2 * 2)
        self.assertEqual(len(set(map(key, runs))), len(runs))
        self.assertTrue(all(r["decoded"] == 7 and r["decode_tok_s"] > 0 for r in runs))
        self.assertTrue(all(r["prompt_tokens"] == 200 for r in runs if r["context"] == 200))
        self.assertEqual([r["run"] for r in runs], [0] * 16 + [1] * 16)
        configs = [(r["drafter"], r["kv"]) for r in runs]
        self.assertEqual(configs[:16:4], configs[:15:-4])  # backward the second time
        self.assertEqual(p.stdout, (self.folder / "m.md").read_text())
        self.assertIn("24 comparisons, each at", p.stdout)
        picture = xml.etree.ElementTree.parse(self.folder / "m.svg").getroot()
        bars = [e for e in picture.iter("{http://www.w3.org/2000/svg}rect") if e.get("class") == "bar"]
        self.assertEqual(len(bars), 16)
        # A second call measures nothing; more runs are added; other settings are refused.
        before = (self.folder / "m.jsonl").read_text()
        self.assertIn("32 of 32 measurements are there", self.run_it(*small(), "--out", "m").stderr)
        self.assertEqual(before, (self.folder / "m.jsonl").read_text())
        self.run_it(*small("chat", runs=3), "--out", "m")
        after = (self.folder / "m.jsonl").read_text()
        self.assertTrue(after.startswith(before) and len(after.splitlines()) == 1 + 32 + 8)
        p = self.run_it(*small(n=9), "--out", "m", code=1)
        self.assertIn("n_predict: expected 9, found 8", p.stderr)
        (self.folder / "p.jsonl").write_text('{"kind": "chat", "prompt": "Hello"}\n{"kind": "json", "prompt": "Hello"}\n')
        self.assertIn("chat is another than it was", self.run_it(*small(), "--prompts", "p.jsonl", "--out", "m", code=1).stderr)

    def test_interrupted_and_resumed(self):
        many = (*small(runs=60), "--out", "m")
        p = subprocess.Popen([PROGRAM, "bench", "matrix", "-m", str(NANO), *map(str, many)], cwd=self.folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        while not (self.folder / "m.jsonl").exists():
            if p.poll() is not None:
                self.fail(p.communicate()[1])
            time.sleep(.01)
        p.send_signal(signal.SIGINT)
        err = p.communicate(timeout=60)[1]
        self.assertEqual(p.returncode, 130, err)
        self.assertIn("the same command goes on", err)
        _, first = lines_of(self.folder / "m.jsonl")
        self.assertFalse((self.folder / "m.md").exists())
        self.run_it(*small(), "--out", "m")
        _, runs = lines_of(self.folder / "m.jsonl")
        self.assertEqual(runs[:len(first)], first)
        self.assertEqual(len(set(map(key, runs))), len(runs))

    def test_clear_errors(self):
        (self.folder / "foreign.jsonl").write_text('{"a": 1}\n')
        (self.folder / "bad.jsonl").write_text('{"kind": "chat"}\n')
        for args, says in ((("--kv", "q9_9"), "--kv: expected f16"), (("--kv", "f16,f16"), "found f16 twice"), (("--sets", "poems"), "expected some of chat, code, json"),
                           (("--contexts", "8"), "expected at least"), (("--draft", "no-such-file.gguf"), "no-such-file.gguf"), (("--draft", "none,none"), "none twice"),
                           (("--prompts", "bad.jsonl"), "bad.jsonl:1"), (("--prompts", "absent.jsonl"), "absent.jsonl"), (("--out", "foreign"), "expected measurements of facet bench matrix"),
                           (("--out", "no/such/folder/m"), "no/such/folder/m"), (("-m", NANO), "twice")):
            err = self.run_it("--backend", "cpu", *args, code=1).stderr
            self.assertIn(says, err, args)
            self.assertEqual(len(err.strip().splitlines()), 1, err)
        self.run_it("--runs", "1", code=2)


class Served(unittest.TestCase):
    """What is measured through HTTP, and its picture."""

    def tool(self, name, *args, code=0):
        p = subprocess.run([sys.executable, TOOLS / name, *map(str, args)], capture_output=True, text=True, timeout=300)
        self.assertEqual(p.returncode, code, p.stderr)
        return p

    def test_a_server_that_does_not_start(self):
        p = subprocess.run([sys.executable, TOOLS / "bench_server.py", PROGRAM, "/nowhere/x.gguf"], capture_output=True, text=True, timeout=60)
        self.assertNotEqual(p.returncode, 0)
        self.assertIn("did not start", p.stderr)
        self.assertIn("facet: /nowhere/x.gguf: ", p.stderr)  # what the program said

    def test_the_cost_of_http_and_its_picture(self):
        p = self.tool("bench_server.py", PROGRAM, NANO, "--clients", "1,4", "--requests", 8, "--prompt", 100, "--generate", 32, "--", "--draft", "none")
        lines = [json.loads(x) for x in p.stdout.splitlines()]
        self.assertEqual([x["clients"] for x in lines], [1, 4])
        for x in lines:  # HTTP takes something, and not most
            self.assertGreater(x["stream_tok_s"], .4 * x["engine_tok_s"])
            self.assertLess(x["stream_tok_s"], 1.2 * x["engine_tok_s"])
            self.assertGreater(x["itl_ms_p99"], 0)
        with tempfile.TemporaryDirectory() as d:
            d = pathlib.Path(d)
            (d / "a.jsonl").write_text(p.stdout)
            (d / "b.jsonl").write_text(p.stdout)
            (d / "p.jsonl").write_text('{"engine": "A<B", "what": "x", "clients": 2, "tok_s": 100, "source": "y"}\n')
            if importlib.util.find_spec("matplotlib"):
                svg = self.tool("plot_serve.py", "--published", d / "p.jsonl", d / "a.jsonl", d / "b.jsonl").stdout
                marks = [e.get("id") for e in xml.etree.ElementTree.fromstring(svg).iter()]
                self.assertEqual((marks.count("curve"), marks.count("published")), (4, 1))
                self.assertIn("A&lt;B, x (published: y)", svg)
            (d / "b.jsonl").write_text('{"phase": "serve", "clients": 1}\n')
            err = self.tool("plot_serve.py", d / "a.jsonl", d / "b.jsonl", code=1).stderr
            self.assertIn("b.jsonl:1: expected a line with clients, tok_s, itl_ms_p99", err)
            self.assertEqual(len(err.splitlines()), 1)

    def test_the_pictures_in_the_documents(self):
        """Every file of results that a picture is drawn from is named in it, by its commit."""
        docs, results = MODELS.parent / "docs", MODELS.parent / "bench/results"
        for picture, files in (("serve-nano.svg", ("cpu-serve-nano", "cpu-nano-capacity-1")),
                               ("serve-26b-a4b.svg", ("h200-26b-a4b-serve", "h200-26b-a4b-serve-stall-200"))):
            svg = (docs / picture).read_text()
            for file in files:
                lines = [json.loads(x) for x in (results / f"{file}.jsonl").read_text().splitlines() if x.strip()]
                self.assertIn(lines[-1]["commit"][:7], svg, f"{picture}: draw it again")
        rates = [json.loads(x)["tok_s"] for x in (results / "h200-llama.jsonl").read_text().splitlines()]
        for rate in rates:
            self.assertIn(f">{rate:,.0f}<", (docs / "speed.svg").read_text(), "speed.svg: draw it again")

    def test_agents_cold_and_warm(self):
        p = self.tool("bench_agent.py", PROGRAM, NANO, "--sessions", 2, "--turns", 3, "--system", 600, "--turn", 60, "--generate", 16, "--", "--draft", "none")
        lines = [json.loads(x) for x in p.stdout.splitlines()]
        self.assertEqual([x["prompt"] for x in lines], [660, 736, 812])
        self.assertIsNone(lines[0]["cached_of_before"])
        for x in lines[1:]:
            self.assertGreater(x["cached_of_before"], .95)
            self.assertLess(x["warm_ttft_ms_p50"], x["cold_ttft_ms_p50"])


class Quality(unittest.TestCase):
    def quality(self, *args, code=0):
        p = subprocess.run([PROGRAM, "quality", "--backend", "cpu", *map(str, args)], capture_output=True, text=True, timeout=600)
        self.assertEqual(p.returncode, code, p.stderr)
        return p

    def plan(self, model, *args):
        return subprocess.run([PROGRAM, "plan", "-m", str(model), "--backend", "cpu", *map(str, args)], capture_output=True, text=True, check=True).stdout

    def test_a_report_and_its_plan(self):
        with tempfile.TemporaryDirectory() as d:
            d = pathlib.Path(d)
            (d / "nano.gguf").symlink_to(NANO)
            sets = d / "sets"
            sets.mkdir()
            lines = (MODELS / "facet-nano-eval.jsonl").read_text().splitlines()
            of = {k: [x for x in lines if json.loads(x)["kind"] == k] for k in ("retrieval", "thinking")}
            short = [x for x in of["retrieval"] if json.loads(x)["length"] == 1024]
            (sets / "q.jsonl").write_text("\n".join(short[:3] + of["thinking"][:4]) + "\n")
            (sets / "t.txt").write_text("The lawyer described a pink shop and 16 pears. On Thursday the weather was dry. " * 200)
            p = self.quality("-m", d / "nano.gguf", "--sets", sets, "--kv", "f16,q8_0,q4_0/tq3_0", "--window", 128, "--places", 300)
            r = json.loads((d / "nano.gguf.quality.json").read_text())
            self.assertEqual([(t["k"], t["v"]) for t in r["types"]], [("f16", "f16"), ("q8_0", "q8_0"), ("q4_0", "tq3_0")])
            self.assertTrue(1000 < r["longest_question"] < 1200 and 200 < r["places"] <= 300)
            first, fine, coarse = r["types"]
            self.assertEqual((first["kl"]["max"], first["same_top"]), (0, 1))
            self.assertLess(fine["kl"]["p99"], coarse["kl"]["p99"])
            self.assertTrue(0 < fine["kl"]["p50"] <= fine["kl"]["p99"] <= fine["kl"]["max"])
            self.assertEqual({q["kind"]: q["of"] for q in fine["questions"]}, {"retrieval-1024": 3, "thinking": 4})
            self.assertIn("| q4_0/tq3_0 |", p.stdout)
            line = [x for x in self.plan(d / "nano.gguf", "-c", 1000, "--kv-k", "q8_0", "--kv-v", "q8_0").splitlines() if x.startswith("quality")]
            self.assertRegex(line[0], r"^quality of q8_0: [\d.]+ % of needles, .* against f16 \(.*quality.json\)$")
            self.assertIn("nothing beyond", self.plan(d / "nano.gguf", "-c", 4096))
            self.assertIn("has nothing of q4_0", self.plan(d / "nano.gguf", "-c", 1024, "--kv-k", "q4_0", "--kv-v", "q4_0"))
            auto = self.plan(d / "nano.gguf", "-c", 1024, "--kv", "auto")
            self.assertRegex(auto, r"note: --kv auto takes f16: .*; f16 has room for 1024 tokens; .*quality.json")
            wide, narrow = (int(re.search(r"total +([\d.]+) MiB", self.plan(d / "nano.gguf", "-c", 8192, "--kv", kv))[1].split(".")[0]) for kv in ("f16", "q8_0"))
            short = self.plan(d / "nano.gguf", "-c", 8192, "--kv", "auto", "--memory", f"{(wide + narrow) // 2}MB")
            self.assertRegex(short, r"note: --kv auto takes (q8_0: .*; f16 does not fit|f16: .*left out: q8_0)")
            (d / "moe.gguf").symlink_to(MODELS / "facet-nano-moe-Q4_K_M.gguf")
            (d / "moe.gguf.quality.json").write_text((d / "nano.gguf.quality.json").read_text())
            self.assertIn("of another model file", self.plan(d / "moe.gguf", "-c", 1024))
            self.assertIn("another model file, so the usual type", self.plan(d / "moe.gguf", "-c", 1024, "--kv", "auto"))
            (d / "moe.gguf.quality.json").write_text("{")
            self.assertIn("note: ", self.plan(d / "moe.gguf", "-c", 1024))

    def test_refusals(self):
        with tempfile.TemporaryDirectory() as d:
            self.assertIn("q9", self.quality("--kv", "f16,q9", code=1).stderr)
            self.assertIn("twice", self.quality("--kv", "f16,f16/f16", code=1).stderr)
            self.assertIn(".jsonl or .txt", self.quality("--sets", d, code=1).stderr)
            self.assertIn("expected", self.quality("--sets", d + "/gone", code=1).stderr)


if __name__ == "__main__":
    unittest.main(argv=["measure_test.py"], verbosity=2)
