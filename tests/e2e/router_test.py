#!/usr/bin/env python3
"""`facet serve` with several models: router_test.py PROGRAM [unittest arguments]. Faults: router_faults_test.py.

Only Python's standard library. FACET_TEST_FULL=1: 600 requests of mixed load instead of 60, and a larger third model.
"""
import concurrent.futures
import http.client
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import threading
import time
import unittest

from router_common import FULL, Router, RouterCase, children, solo
from serving import PROGRAM, SLOW


class RouterTest(RouterCase):
    def test_mixed_load(self):
        prompts, tokens = ["Hello", "One two three", "The sky"], 12
        right = {n: solo(self.paths[p], prompts, tokens)
                 for n, p in (("nano", "facet-nano-Q8_0"), ("moe", "facet-nano-moe-Q4_K_M"), ("tiny", "tiny"))}
        self.assertNotEqual(right["nano"], right["moe"])
        r = self.router(*self.named(), "--models-max", 2)
        rnd = random.Random(1)
        jobs = [(rnd.choice(list(right)), rnd.choice(prompts)) for _ in range(600 if FULL else 60)]
        seen = []

        def one(job):
            status, body = r.complete(job[0], job[1], tokens)
            return job, status, body
        watching = threading.Event()

        def watch():
            while not watching.is_set():
                seen.append(len(children(r.process.pid)))
                time.sleep(.01)
        watcher = threading.Thread(target=watch)
        watcher.start()
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            done = list(pool.map(one, jobs))
        watching.set()
        watcher.join()
        self.assertEqual(len(done), len(jobs))
        for (model, prompt), status, body in done:
            self.assertEqual(status, 200, body)
            self.assertEqual(body["model"], model)
            self.assertEqual(body["choices"][0]["text"], right[model][prompt], (model, prompt))
        self.assertEqual(len({body["id"] for _, _, body in done}), len(jobs))
        self.assertLessEqual(max(seen), 2)
        loads = sum(r.entry(n)["loads"] for n in right)
        unloads = sum(r.entry(n)["unloads"] for n in right)
        print(f"{len(jobs)} requests to three models, two in memory: {loads} loads, {unloads} unloads, no answer lost or wrong", file=sys.stderr)
        self.assertGreaterEqual(loads, 3)
        self.assertEqual(loads - unloads, sum(r.status(n) == "loaded" for n in right))
        self.assertEqual(sum(r.metric("facet_router_loads_total", model=n) for n in right), loads)
        self.assertEqual(sum(r.metric("facet_router_requests_total", model=n, status=200) or 0 for n in right), len(jobs))
        self.assertEqual(r.stop(), 0)

    def test_any_and_the_list(self):
        r = self.router("--models-dir", self.dir)
        status, body = r.ask("GET", "/v1/models")
        self.assertEqual([m["id"] for m in body["data"]], ["facet-nano-Q8_0", "facet-nano-moe-Q4_K_M", "tiny"])  # no drafter
        for m in body["data"]:
            self.assertEqual((m["last_used_ms"], m["status"]["value"], m["plan"]), (0, "unloaded", None))
            self.assertIn("not been loaded", m["plan_reason"])
            self.assertEqual(m["size"], self.paths[m["id"]].stat().st_size)
        status, body = r.complete("any")
        self.assertEqual(status, 400)
        self.assertEqual(body["error"]["message"], "no model is currently resident in memory")
        status, body = r.ask("GET", "/props")  # of the router itself
        self.assertEqual((status, body["role"], body["is_sleeping"]), (200, "router", False))
        r.text_of("tiny")
        before = r.entry("tiny")["last_used_ms"]
        self.assertLess(abs(before / 1e3 - time.time()), 30)
        self.assertGreater(r.entry("tiny")["plan"]["bytes"], 0)
        self.assertNotIn("plan_reason", r.entry("tiny"))
        r.text_of("facet-nano-Q8_0")
        self.assertEqual(r.complete("any")[1]["model"], "facet-nano-Q8_0")
        r.text_of("tiny")
        self.assertGreater(r.entry("tiny")["last_used_ms"], before)
        self.assertEqual(r.complete("any")[1]["model"], "tiny")
        self.assertEqual(r.complete("")[1]["model"], "tiny")
        status, body = r.complete("nothing")
        self.assertEqual((status, body["error"]["code"]), (404, "model_not_found"))
        status, body = r.ask("POST", "/v1/completions", '{"model": ')
        self.assertEqual(status, 400)
        status, body = r.ask("POST", "/v1/completions", '{"model": 7, "prompt": "x"}')
        self.assertEqual(status, 400)
        status, body = r.ask("POST", "/v1/messages", {"model": "tiny", "max_tokens": 0, "messages": []})
        self.assertEqual((status, body["type"]), (400, "error"))  # the process's answer, in its dialect
        self.assertEqual(r.ask("GET", "/props?model=tiny")[1]["model_alias"], "tiny")
        self.assertEqual(r.ask("GET", "/props?model=facet-nano-moe-Q4_K_M")[0], 400)
        self.assertEqual(r.status("facet-nano-moe-Q4_K_M"), "unloaded")
        # Unloading and loading on request, and of what is named.
        for body in ("", {}, {"model": ""}, {"wait": True}):
            for path in ("/models/load", "/models/unload"):
                status, answer = r.ask("POST", path, body)
                self.assertEqual((status, answer["error"]["param"]), (400, "model"), (path, body))
        self.assertEqual(r.status("tiny"), "loaded")
        self.assertEqual(r.ask("POST", "/models/unload", {"model": "tiny", "wait": True})[1], {"success": True})
        self.assertEqual(r.status("tiny"), "unloaded")
        self.assertEqual(r.ask("POST", "/models/load", {"model": "tiny", "wait": True})[1], {"success": True})
        self.assertEqual(r.status("tiny"), "loaded")
        text = r.ask("GET", "/metrics")[1]
        self.assertEqual(text.count("# TYPE facet_requests_running gauge"), 1)
        self.assertRegex(text, r'facet_requests_running\{model="tiny"\} 0')
        self.assertRegex(text, r'facet_step_seconds_bucket\{model="facet-nano-Q8_0",le="0.001"\} ')
        names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
        self.assertEqual(len(names), len(set(names)))

    def test_a_model_named_any(self):
        r = self.router("-m", f"any={self.paths['tiny']}", "-m", f"nano={self.paths['facet-nano-Q8_0']},alias=other")
        r.text_of("other")
        self.assertEqual(r.complete("any")[1]["model"], "any")

    def test_streams_and_disconnects(self):
        r = self.router(*self.named(), "--models-max", 2)
        whole = r.text_of("nano", tokens=200)

        def stream(fields, drop_after=None):
            c = http.client.HTTPConnection("127.0.0.1", r.port, timeout=SLOW)
            c.request("POST", "/v1/completions", json.dumps({"prompt": "Hello", "temperature": 0, "ignore_eos": True, "stream": True, **fields}))
            a = c.getresponse()
            self.assertEqual(a.status, 200)
            text = a.read(drop_after).decode() if drop_after else a.read().decode()
            c.close()
            return [json.loads(e[6:]) for e in text.split("\n\n") if e.startswith("data: {") and e.endswith("}")]
        got = stream({"model": "nano", "max_tokens": 200})
        self.assertEqual("".join(c["choices"][0]["text"] for c in got if c["choices"]), whole)
        for n in range(1, 20):
            stream({"model": "nano", "max_tokens": 900}, drop_after=40 * n)
        end = time.time() + 30  # the process stops computing for them
        while r.metric("facet_requests_running", model="nano") != 0 or r.metric("facet_router_requests_running", model="nano") != 0:
            self.assertLess(time.time(), end)
            time.sleep(.05)
        self.assertEqual(r.status("nano"), "loaded")
        got = stream({"model": "moe", "max_tokens": 4, "return_progress": True})  # has to be loaded first
        self.assertTrue(any(c.get("object") == "load_progress" for c in got) or r.entry("moe")["loads"] == 1)
        self.assertTrue(any(c.get("choices") for c in got))

    def test_sleep_and_pins(self):
        r = self.router("--sleep-idle", 1, "--models-max", 2, "-m", f"nano={self.paths['facet-nano-Q8_0']},pinned",
                        "-m", f"tiny={self.paths['tiny']}", "-m", f"moe={self.paths['facet-nano-moe-Q4_K_M']}")
        r.wait_status("nano", "loaded")
        r.text_of("tiny")
        r.wait_status("tiny", "sleeping")
        self.assertEqual(r.status("nano"), "loaded")
        self.assertEqual(r.complete("any")[1]["model"], "nano")  # loaded before sleeping
        r.ask("POST", "/models/unload", {"model": "nano", "wait": True})
        self.assertEqual(r.complete("any")[1]["model"], "tiny")  # woken
        r.text_of("nano")
        r.text_of("moe")  # tiny goes, nano is pinned
        self.assertEqual(r.status("nano"), "loaded")
        self.assertEqual(r.status("moe"), "loaded")
        self.assertNotEqual(r.status("tiny"), "loaded")

    def test_no_room_in_memory(self):
        """A model that does not fit beside another one: that one goes."""
        r = self.router("-m", f"nano={self.paths['facet-nano-Q8_0']}", "-m", f"big={self.paths['tiny']},memory=1MB")
        r.text_of("nano")
        status, body = r.complete("big")  # fits nowhere: nano went in vain, and the error says what is needed
        self.assertEqual((status, body["error"]["code"]), (503, "model_failed"))
        self.assertIn("available", body["error"]["message"])
        self.assertEqual(r.entry("nano")["unloads"], 1)
        self.assertEqual(r.complete("nano")[0], 200)

    def test_presets_and_options(self):
        preset = self.dir / "models.ini"
        preset.write_text(f"""
version = 1
; for every model
[*]
LLAMA_ARG_CTX_SIZE = 512
n-gpu-layers = 99
[first]
model = {self.paths['tiny']}   ; a path
np = 3
load-on-startup = true
["second"]
m = "{self.paths['facet-nano-Q8_0']}"
c = 256
""")
        r = Router("--models-preset", preset)
        self.addCleanup(lambda: r.process.poll() is None and r.stop())
        self.assertIn("n-gpu-layers: has no effect here", r.log_text())
        r.wait_status("first", "loaded")
        self.assertEqual(r.entry("first")["meta"]["n_ctx"], 512)
        self.assertEqual(r.entry("first")["meta"]["n_seq"], 3)
        r.text_of("second")
        self.assertEqual(r.entry("second")["meta"]["n_ctx"], 256)
        for text, message in ((b"[a]\nno-such-thing = 1\n", "line 2: no-such-thing: expected an option of facet serve"),
                              (b"[a]\nport = 80\n", "one of the router"), (b"[a]\nc = many\n", "--ctx-size"),
                              (b"[a\n", "line 1: expected [NAME]"), (b"words\n", "line 1: expected KEY = VALUE"),
                              (b"[a]\nc = 5\n", "expected the path of a model"), (b"[a]\nm = \"x\n", "quote")):
            preset.write_bytes(text)
            done = subprocess.run([PROGRAM, "serve", "--models-preset", str(preset), "--port", "0"], capture_output=True, text=True, timeout=60)
            self.assertEqual((done.returncode, done.stdout), (1, ""), text)
            self.assertIn(message, done.stderr)
            self.assertEqual(done.stderr.count("facet:"), 1, done.stderr)

    def test_keys(self):
        key = self.dir / "keys"
        key.write_text("secret anna\n")
        r = self.router(*self.named(), "--api-key-file", key)
        self.assertEqual(r.complete("tiny")[0], 401)
        self.assertEqual(r.ask("POST", "/models/load", {"model": "tiny"})[0], 401)
        self.assertNotIn("models", r.ask("GET", "/health")[1])
        status, body = r.ask("POST", "/v1/completions", {"model": "tiny", "prompt": "x", "max_tokens": 2}, {"Authorization": "Bearer secret"})
        self.assertEqual(status, 200, body)
        r.wait_log("key=anna")
        # Nobody else can reach the process: it listens nowhere.
        pid = children(r.process.pid)["tiny"]
        links = [os.readlink(f"/proc/{pid}/fd/{f}") for f in os.listdir(f"/proc/{pid}/fd")]
        inodes = {m[1] for m in (re.fullmatch(r"socket:\[(\d+)\]", x) for x in links) if m}
        listening = {line.split()[9] for name in ("tcp", "tcp6") for line in pathlib.Path(f"/proc/net/{name}").read_text().splitlines()[1:] if line.split()[3] == "0A"}
        self.assertFalse(inodes & listening)


if __name__ == "__main__":
    unittest.main(verbosity=2)
