#!/usr/bin/env python3
"""`facet serve` with several models: router_test.py PROGRAM [unittest arguments]. The two shipped models and one that
`facet synth` makes.

Only Python's standard library. FACET_TEST_ROUNDS=100: so many rounds of kills, reloads and broken files (default 3).
"""
import concurrent.futures
import http.client
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

PROGRAM = str(pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else "build/release/facet").resolve())
MODELS = pathlib.Path(__file__).resolve().parents[2] / "models"
ROUNDS = int(os.environ.get("FACET_TEST_ROUNDS", "3"))
FULL = bool(os.environ.get("FACET_TEST_FULL"))
SLOW = 120  # seconds


def children(pid):
    """Processes whose parent is pid, and the model each was started with."""
    found = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
            words = (stat.parent / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            name = [w[8:].decode() for w in words if w.startswith(b"--alias=")]
            if name:
                found[name[0]] = int(stat.parent.name)
    return found


class Router:
    def __init__(self, *flags, env=None):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([PROGRAM, "serve", "--port", "0", *map(str, flags)], stdout=subprocess.PIPE,
                                        stderr=self.log, text=True, env={**os.environ, **(env or {})})
        line = self.process.stdout.readline()
        found = re.fullmatch(r"listening on http://127\.0\.0\.1:(\d+)\n", line)
        if not found:
            self.process.kill()
            raise AssertionError(f"no address printed: {line!r}\n{self.text()}")
        self.port = int(found[1])

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def stop(self, seconds=60):
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        finally:
            self.process.kill()
            self.close()

    def close(self):
        self.process.stdout.close()
        self.log.close()

    def ask(self, method, path, body=None, headers=None, timeout=SLOW):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            c.request(method, path, body if body is None or isinstance(body, str) else json.dumps(body), headers or {})
            r = c.getresponse()
            text = r.read()
            try:
                return r.status, json.loads(text)
            except ValueError:
                return r.status, text.decode()
        finally:
            c.close()

    def complete(self, model, prompt="Hello", tokens=12, **fields):
        return self.ask("POST", "/v1/completions",
                        {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **fields})

    def text_of(self, model, prompt="Hello", tokens=12, **fields):
        status, body = self.complete(model, prompt, tokens, **fields)
        assert status == 200, (status, body)
        return body["choices"][0]["text"]

    def entry(self, model):
        status, body = self.ask("GET", f"/v1/models/{model}")
        assert status == 200, body
        return body

    def status(self, model):
        return self.entry(model)["status"]["value"]

    def wait_status(self, model, wanted, seconds=60):
        end = time.time() + seconds
        while self.status(model) != wanted:
            assert time.time() < end, (model, wanted, self.entry(model), self.text())
            time.sleep(.02)

    def metric(self, name, **labels):
        text = self.ask("GET", "/metrics")[1]
        want = ",".join(f'{k}="{v}"' for k, v in labels.items())
        found = re.search(rf"^{name}{{{re.escape(want)}}} (\S+)$", text, re.M)
        return float(found[1]) if found else None


def solo(path, prompts, tokens):
    """What a server of one model answers."""
    r = Router("-m", path, "-c", 1024, "--parallel", 2)
    try:
        return {p: r.text_of("x", p, tokens) for p in prompts}
    finally:
        assert r.stop() == 0


class RouterTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.dir = pathlib.Path(cls.folder.name)
        for name in ("facet-nano-Q8_0.gguf", "facet-nano-moe-Q4_K_M.gguf", "facet-nano-dflash-Q8_0.gguf"):
            (cls.dir / name).symlink_to(MODELS / name)
        # The synthetic model has 0.5 GB: in short runs a third one of the shipped model's size stands in for it.
        command = (["synth", "--preset", "tiny", "--quant", "Q8_0", "--vocab", "--seed", "7", cls.dir / "tiny.gguf"] if FULL else
                   ["quantize", "--allow-requantize", MODELS / "facet-nano-Q8_0.gguf", cls.dir / "tiny.gguf", "Q4_0"])
        made = subprocess.run([PROGRAM, *map(str, command)], capture_output=True, text=True)
        if made.returncode != 0:
            raise AssertionError(made.stderr)
        cls.paths = {p.stem: p for p in cls.dir.glob("*.gguf") if "dflash" not in p.name}

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def router(self, *flags, **kw):
        r = Router("-c", 1024, "--parallel", 2, *flags, **kw)
        self.addCleanup(lambda: r.process.poll() is None and r.stop())
        return r

    def named(self):
        return [f for n, p in (("nano", "facet-nano-Q8_0"), ("moe", "facet-nano-moe-Q4_K_M"), ("tiny", "tiny"))
                for f in ("-m", f"{n}={self.paths[p]}")]

    def test_mixed_load(self):
        prompts, tokens = ["Hello", "One two three", "The sky"], 12
        right = {n: solo(self.paths[p], prompts, tokens)
                 for n, p in (("nano", "facet-nano-Q8_0"), ("moe", "facet-nano-moe-Q4_K_M"), ("tiny", "tiny"))}
        self.assertNotEqual(right["nano"], right["moe"])
        r = self.router(*self.named(), "--models-max", 2)
        rnd = random.Random(1)
        jobs = [(rnd.choice(list(right)), rnd.choice(prompts)) for _ in range(60)]
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
        self.assertEqual(len(done), 60)
        for (model, prompt), status, body in done:
            self.assertEqual(status, 200, body)
            self.assertEqual(body["model"], model)
            self.assertEqual(body["choices"][0]["text"], right[model][prompt], (model, prompt))
        self.assertEqual(len({body["id"] for _, _, body in done}), 60)
        self.assertLessEqual(max(seen), 2)
        loads = sum(r.entry(n)["loads"] for n in right)
        unloads = sum(r.entry(n)["unloads"] for n in right)
        self.assertGreaterEqual(loads, 3)
        self.assertEqual(loads - unloads, sum(r.status(n) == "loaded" for n in right))
        self.assertEqual(sum(r.metric("facet_router_loads_total", model=n) for n in right), loads)
        self.assertEqual(sum(r.metric("facet_router_requests_total", model=n, status=200) or 0 for n in right), 60)
        self.assertEqual(r.stop(), 0)

    def test_any_and_the_list(self):
        r = self.router("--models-dir", self.dir)
        status, body = r.ask("GET", "/v1/models")
        self.assertEqual([m["id"] for m in body["data"]], ["facet-nano-Q8_0", "facet-nano-moe-Q4_K_M", "tiny"])  # no drafter
        for m in body["data"]:
            self.assertEqual((m["last_used_ms"], m["status"]["value"], m["plan"]), (0, "unloaded", None))
            self.assertEqual(m["size"], self.paths[m["id"]].stat().st_size)
        status, body = r.complete("any")
        self.assertEqual(status, 400)
        self.assertEqual(body["error"]["message"], "no model is currently resident in memory")
        r.text_of("tiny")
        before = r.entry("tiny")["last_used_ms"]
        self.assertLess(abs(before / 1e3 - time.time()), 30)
        self.assertGreater(r.entry("tiny")["plan"]["bytes"], 0)
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
        # Unloading and loading on request.
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

    def test_killed_processes(self):
        right = solo(self.paths["facet-nano-Q8_0"], ["Hello"], 12)["Hello"]
        r = self.router(*self.named(), "--models-max", 2)
        r.text_of("tiny")
        tiny = children(r.process.pid)["tiny"]
        for n in range(ROUNDS):
            self.assertEqual(r.text_of("nano"), right)
            with concurrent.futures.ThreadPoolExecutor(3) as pool:
                jobs = [pool.submit(r.complete, "nano", "Hello", 900) for _ in range(2)]
                other = pool.submit(r.complete, "tiny", "Hello", 12)
                end = time.time() + 30
                while r.metric("facet_requests_running", model="nano") != 2 and time.time() < end:
                    time.sleep(.01)
                os.kill(children(r.process.pid)["nano"], random.choice([signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT]))
                for j in jobs:
                    status, body = j.result()
                    if status != 200:  # it may have been just complete
                        self.assertEqual((status, body["error"]["code"]), (502, "model_died"), body)
                        self.assertIn("killed by signal", body["error"]["message"])
                self.assertEqual(other.result()[0], 200)
            self.assertEqual(r.text_of("nano"), right)
            status, health = r.ask("GET", "/health")
            self.assertEqual((status, health["status"], health["models"]["nano"]["deaths"]), (200, "ok", n + 1))
            self.assertIn("killed by signal", health["models"]["nano"]["last_death"])
        self.assertEqual(children(r.process.pid)["tiny"], tiny)
        self.assertEqual(r.metric("facet_router_restarts_total", model="nano"), ROUNDS)
        # A stream that has begun ends with an error.
        c = http.client.HTTPConnection("127.0.0.1", r.port, timeout=SLOW)
        c.request("POST", "/v1/completions", json.dumps({"model": "nano", "prompt": "Hello", "max_tokens": 900, "ignore_eos": True, "stream": True}))
        a = c.getresponse()
        a.read(200)
        os.kill(children(r.process.pid)["nano"], signal.SIGKILL)
        last = a.read().decode().strip().split("\n\n")[-1]
        c.close()
        self.assertEqual(json.loads(last[6:])["error"]["code"], "model_died")
        # The processes end with the router, whatever ends it.
        r.text_of("nano")
        pids = children(r.process.pid).values()
        self.assertEqual(len(pids), 2)
        r.process.kill()
        r.process.wait()
        end = time.time() + 10
        while any(pathlib.Path(f"/proc/{p}/exe").exists() and b"facet" in pathlib.Path(f"/proc/{p}/cmdline").read_bytes() for p in pids):
            self.assertLess(time.time(), end)
            time.sleep(.02)
        r.close()

    def test_a_model_that_keeps_dying(self):
        r = self.router(*self.named())
        r.text_of("nano")
        for deaths in (1, 2):  # the second time before it has answered anything
            os.kill(children(r.process.pid)["nano"], signal.SIGKILL)
            end = time.time() + 20
            while r.entry("nano")["deaths"] < deaths:
                self.assertLess(time.time(), end)
                time.sleep(.02)
            if deaths == 1:
                r.wait_status("nano", "loaded")
        self.assertTrue(r.entry("nano")["status"].get("failed"))
        status, body = r.ask("GET", "/health")
        self.assertEqual((status, body["status"]), (200, "degraded"))
        status, body = r.complete("nano")
        self.assertEqual((status, body["error"]["code"]), (503, "model_failed"))
        self.assertEqual(r.complete("tiny")[0], 200)
        end = time.time() + 20  # and a later request tries again
        while r.complete("nano")[0] != 200:
            self.assertLess(time.time(), end)
            time.sleep(.2)

    def test_broken_files(self):
        path = self.dir / "sub" / "broken.gguf"
        path.parent.mkdir(exist_ok=True)
        good = self.paths["facet-nano-Q8_0"].read_bytes()
        r = self.router("-m", f"broken={path}", "-m", f"tiny={self.paths['tiny']}")
        self.assertEqual(r.complete("broken")[0], 500)  # not there
        rnd = random.Random(5)
        for n in range(ROUNDS):
            kind = n % 3
            if kind == 0:
                path.write_bytes(good[:rnd.randrange(100, len(good))])
            elif kind == 1:
                path.write_bytes(b"GGUF" + bytes(rnd.randrange(256) for _ in range(400)))
            else:
                path.unlink()
            status, body = r.complete("broken")
            self.assertIn((status, body["error"]["code"]), ((500, "model_failed"), (503, "model_failed")), body)
            self.assertIn("broken", body["error"]["message"])
            status, body = r.complete("broken")  # not tried again at once
            self.assertEqual(body["error"]["code"], "model_failed")
            self.assertEqual(r.complete("tiny")[0], 200)
            self.assertEqual(r.ask("GET", "/health")[1]["status"], "degraded")
            path.write_bytes(good)  # mended: the next request loads it
            self.assertEqual(r.complete("broken")[0], 200)
            self.assertEqual(r.ask("GET", "/health")[1]["status"], "ok")
            r.ask("POST", "/models/unload", {"model": "broken", "wait": True})
        shutil.rmtree(path.parent)

    def test_memory_that_runs_out(self):
        """One engine's allocations fail from some point on; the others go on, and it comes back."""
        r = self.router(*self.named())
        for m in ("nano", "tiny"):
            r.text_of(m)
        tiny = children(r.process.pid)["tiny"]
        for _ in range(min(ROUNDS, 10)):
            pid = children(r.process.pid)["nano"]
            used = int(re.search(r"VmData:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1]) << 10
            resource.prlimit(pid, resource.RLIMIT_DATA, (used, used))
            status, body = r.ask("POST", "/v1/chat/completions", {"model": "nano", "max_tokens": 8, "messages": [
                {"role": "user", "content": "word " * 700}] * 8})
            self.assertGreaterEqual(status, 400)
            self.assertTrue(body["error"]["message"])
            self.assertEqual(r.complete("tiny")[0], 200)
            if children(r.process.pid).get("nano") == pid:  # it only refused the request
                os.kill(pid, signal.SIGKILL)
            end = time.time() + 20
            while children(r.process.pid).get("nano", pid) == pid:
                self.assertLess(time.time(), end)
                time.sleep(.02)
            self.assertEqual(r.complete("nano")[0], 200)
        self.assertEqual(children(r.process.pid)["tiny"], tiny)

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
        self.assertIn("n-gpu-layers: has no effect here", r.text())
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
        self.assertIn("key=anna", r.text())
        # Nobody else can reach the process: it listens nowhere.
        pid = children(r.process.pid)["tiny"]
        links = [os.readlink(f"/proc/{pid}/fd/{f}") for f in os.listdir(f"/proc/{pid}/fd")]
        inodes = {m[1] for m in (re.fullmatch(r"socket:\[(\d+)\]", x) for x in links) if m}
        listening = {line.split()[9] for name in ("tcp", "tcp6") for line in pathlib.Path(f"/proc/net/{name}").read_text().splitlines()[1:] if line.split()[3] == "0A"}
        self.assertFalse(inodes & listening)


if __name__ == "__main__":
    unittest.main(verbosity=2)
