#!/usr/bin/env python3
"""What goes wrong in one of several models, and leaves the others answering: router_faults_test.py PROGRAM. Processes that are killed,
files that are broken, memory that runs out, allocations that fail. Only Python's standard library and, for the last, a C compiler.
"""
import collections
import concurrent.futures
import http.client
import json
import mmap
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
import unittest

from router_common import ROUNDS, RouterCase, children, solo
from serving import PROGRAM, SLOW

SUPPORT = pathlib.Path(__file__).resolve().parents[1] / "support"


class RouterFaults(RouterCase):
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


class FailingAllocations:
    """tests/support/fail_alloc.c in the process of one model, and the numbers that it shares with this one."""

    def __init__(self, folder, model):
        library, numbers = folder / "fail_alloc.so", folder / "fail_alloc"
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, SUPPORT / "fail_alloc.c"], check=True)
        numbers.write_bytes(bytes(24))
        with numbers.open("r+b") as f:
            self.map = mmap.mmap(f.fileno(), 24)
        self.env = {"LD_PRELOAD": str(library), "FAIL_ALLOC_WORD": f"--alias={model}", "FAIL_ALLOC_FILE": str(numbers)}

    def arm(self, k, sticky=False):
        """Allocation k from now on fails; sticky: and all after it. 0: none does."""
        self.map[8:24] = struct.pack("<qq", sticky, 0)
        self.map[0:8] = struct.pack("<q", k)

    def numbers(self):
        """Allocations until one fails, and how many failed."""
        left, _, failed = struct.unpack("<qqq", self.map[:24])
        return left, failed


class FailingAllocationsTest(RouterCase):
    def test_allocation_k(self):
        """Allocation k of one engine fails, at work or while it loads: its own requests may fail, with a reason; it comes back, the others notice nothing."""
        if not shutil.which("cc"):
            self.skipTest("no C compiler")
        if b"__asan_init" in pathlib.Path(PROGRAM).read_bytes():
            self.skipTest("the sanitizer's allocator takes no other before it")
        fail = FailingAllocations(self.dir, "nano")
        r = self.router(*self.named(), env=fail.env)
        right = {m: r.text_of(m, tokens=40) for m in ("nano", "tiny")}
        tiny = children(r.process.pid)["tiny"]

        def counted(work):
            """How many allocations it takes."""
            fail.arm(1 << 40)
            work()
            return (1 << 40) - fail.numbers()[0]
        unload = lambda: r.ask("POST", "/models/unload", {"model": "nano", "wait": True})
        load = lambda: r.ask("POST", "/models/load", {"model": "nano", "wait": True})
        at_work = counted(lambda: r.text_of("nano", tokens=40))
        unload()
        loading = counted(load)
        self.assertGreater(at_work, 50)
        self.assertGreater(loading, 1000)
        rnd = random.Random(11)
        seen = collections.Counter()
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            for n in range(ROUNDS):
                kind = ("at work", "loading")[n % 3 == 2]
                if kind == "loading":
                    unload()
                pid = children(r.process.pid).get("nano")
                fail.arm(rnd.randint(1, loading if kind == "loading" else at_work), sticky=n % 3 == 0)
                jobs = [pool.submit(r.complete, "nano", "Hello", 40) for _ in range(2)]
                self.assertEqual(pool.submit(r.text_of, "tiny", "Hello", 40).result(), right["tiny"])
                for status, body in (j.result() for j in jobs):  # within SLOW: nothing hangs
                    if status == 200:
                        self.assertEqual(body["choices"][0]["text"], right["nano"])
                    else:
                        self.assertTrue(body["error"]["message"])
                    seen[kind, body["error"]["code"] if status != 200 else "right"] += 1
                self.assertGreater(fail.numbers()[1], 0)
                fail.arm(0)
                self.assertEqual(r.ask("GET", "/health")[0], 200)
                end = time.time() + 30
                while load()[1] != {"success": True}:  # what was started before may still be about to die
                    self.assertLess(time.time(), end)
                self.assertEqual(r.text_of("nano", tokens=40), right["nano"])
                seen[kind, "ended" if children(r.process.pid)["nano"] != pid else "went on"] += 1
        print(f"{ROUNDS} rounds of a failed allocation of {at_work} at work, {loading} while loading: {dict(seen)}; "
              f"deaths {r.entry('nano')['deaths']}, loads {r.entry('nano')['loads']}", file=sys.stderr)
        self.assertGreater(seen["at work", "ended"], 0)
        self.assertEqual((children(r.process.pid)["tiny"], r.entry("tiny")["deaths"]), (tiny, 0))
        self.assertEqual(r.stop(), 0)


class TrapTest(RouterCase):
    def test_a_kernel_that_traps(self):
        """A kernel of one engine traps on the GPU: its requests end with an error, it comes back, the others notice nothing. Also where a
        thread of the CPU and kernels wait for each other."""
        if not shutil.which("cc"):
            self.skipTest("no C compiler")
        if subprocess.run([PROGRAM, "run", "-m", self.paths["tiny"], "--backend", "cuda", "-p", "x", "-n", "1"], capture_output=True).returncode != 0:
            self.skipTest("no GPU")
        library, trigger = self.dir / "trap_kernel.so", self.dir / "trap"
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, SUPPORT / "trap_kernel.c"], check=True)
        for flags in ([], ["--ffn-on-cpu", "all"]):
            with self.subTest(flags=flags):
                self.trap(library, trigger, flags)

    def trap(self, library, trigger, flags):
        r = self.router(*self.named(), "--backend", "cuda", *flags, env={"LD_PRELOAD": str(library), "TRAP_WORD": "--alias=nano", "TRAP_FILE": str(trigger)})
        right = {m: r.text_of(m, tokens=40) for m in ("nano", "tiny")}
        tiny = children(r.process.pid)["tiny"]
        seen = collections.Counter()
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            for n in range(ROUNDS):
                pid = children(r.process.pid)["nano"]
                jobs = [pool.submit(r.complete, "nano", "Hello", 900) for _ in range(2)]
                time.sleep(.05)
                trigger.touch()
                self.assertEqual(pool.submit(r.text_of, "tiny", "Hello", 40).result(), right["tiny"])
                for status, body in (j.result() for j in jobs):
                    seen[status if status == 200 else body["error"]["code"]] += 1
                    self.assertTrue(status == 200 or body["error"]["message"])
                end = time.time() + 60
                while r.ask("POST", "/models/load", {"model": "nano", "wait": True})[1] != {"success": True}:
                    self.assertLess(time.time(), end)
                self.assertEqual(r.text_of("nano", tokens=40), right["nano"])
                self.assertNotEqual(children(r.process.pid)["nano"], pid)
        print(f"{ROUNDS} rounds of a kernel that traps: {dict(seen)}; {r.ask('GET', '/health')[1]['models']['nano']['last_death']}", file=sys.stderr)
        self.assertGreater(seen["model_died"], 0)
        self.assertEqual((children(r.process.pid)["tiny"], r.entry("tiny")["deaths"]), (tiny, 0))
        self.assertEqual(r.stop(), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
