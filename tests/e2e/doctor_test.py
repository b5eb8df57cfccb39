#!/usr/bin/env python3
"""`facet doctor` on what is healthy and on what is not: doctor_test.py PROGRAM. Only Python's standard library."""
import http.server
import json
import pathlib
import random
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

from serving import MODELS, PROGRAM, Serving

NANO, DFLASH = MODELS / "facet-nano-Q8_0.gguf", MODELS / "facet-nano-dflash-Q8_0.gguf"


def doctor(*args, **kw):
    p = subprocess.run([PROGRAM, "doctor", "--json", *map(str, args)], capture_output=True, text=True, timeout=300, **kw)
    report = json.loads(p.stdout)
    assert p.returncode == (0 if report["healthy"] else 1), (p.returncode, p.stdout, p.stderr)
    return report


def at(report, check):
    return [f for f in report["findings"] if f["check"] == check]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Fake(http.server.BaseHTTPRequestHandler):
    """A server with a defect, by the first part of the path."""
    protocol_version = "HTTP/1.1"
    defect = ""

    def log_message(self, *_):
        pass

    def answer(self, body, kind="application/json"):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if self.path == "/health":
            return self.answer({"status": "ok"})
        self.answer({"data": [{"id": "m", "last_used_ms": 5 if self.defect == "stuck" else random.randrange(6, 1 << 40)}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body.get("stream"):
            events = [b"data: {\"choices\":[]}\n\n"] * 20 + ([] if self.defect == "cut" else [b"data: [DONE]\n\n"])
            return self.answer(b"".join(events), "text/event-stream")  # all at once
        call = {"tool_calls": [{"function": {"name": "get_weather", "arguments": "{\"city\":\"London\"}"}}]}
        message = call if body.get("tools") and self.defect != "toolless" else {"content": "" if self.defect == "empty" else "Hello"}
        drafts = {"draft_n": 40, "draft_n_accepted": 0 if self.defect == "wrong" else 20}
        self.answer({"choices": [{"message": message}], "usage": {"completion_tokens": 5}, "timings": drafts})


class DoctorTest(unittest.TestCase):
    broken = 0

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.dir = pathlib.Path(cls.folder.name)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()
        print(f"{cls.broken} broken set-ups named", file=sys.stderr)

    def fails(self, report, check, *words):
        self.assertFalse(report["healthy"], report)
        found = [f for f in at(report, check) if f["level"] == "fail"]
        self.assertEqual(len(found), 1, report)
        DoctorTest.broken += 1
        for w in words:
            self.assertIn(w, found[0]["found"] + " " + found[0]["do"])

    def test_healthy(self):
        r = doctor("-m", NANO, "-c", 1024, "--backend", "cpu", "--port", free_port(), "--cache-disk", self.dir / "cache")
        self.assertTrue(r["healthy"], r)
        for check in ("cpu", "memory", "open files", "gpu", "model file", "model", "read speed", "tokenizer", "instruct", "drafter", "plan", "load",
                      "answers", "drafting", "cache folder", "port"):
            self.assertTrue(at(r, check), check)
            self.assertNotEqual(at(r, check)[0]["level"], "fail")
        self.assertFalse((self.dir / "cache").exists())  # it leaves nothing
        text = subprocess.run([PROGRAM, "doctor", "--quick", "-m", str(NANO), "-c", "1024", "--port", str(free_port())], capture_output=True, text=True).stdout
        self.assertRegex(text, r"(?m)^ok    model file    .*complete")
        self.assertRegex(text, r"\d+ checks: 0 failed, \d+ warnings\n$")

    def quick(self, *args, **kw):
        return doctor("--quick", "-c", 1024, *([] if "--port" in args else ["--port", free_port()]), *args, **kw)

    def test_files(self):
        good = NANO.read_bytes()
        p = self.dir / "x.gguf"
        p.write_bytes(good[:len(good) // 2])
        self.fails(self.quick("-m", p, "--draft", "none"), "model file", "bytes short", "download it again")
        p.write_bytes(b"PK\3\4" + good[4:])
        self.fails(self.quick("-m", p, "--draft", "none"), "model file")
        self.fails(self.quick("-m", self.dir / "gone.gguf"), "model file", "gone.gguf")
        part = self.dir / "y-00001-of-00002.gguf"
        part.write_bytes(good)
        self.fails(self.quick("-m", part, "--draft", "none"), "model file", "00002-of-00002")
        self.assertEqual(good.count(b"tokenizer.chat_template"), 1)
        p.write_bytes(good.replace(b"tokenizer.chat_template", b"tokenizer.chat_templatX"))
        self.fails(self.quick("-m", p, "--draft", "none"), "instruct", "base model", "-it")
        self.fails(self.quick("-m", DFLASH), "model")  # a drafter in the model's place

    def test_drafters(self):
        other = self.dir / "broken-dflash.gguf"
        data = bytearray(DFLASH.read_bytes())
        other.write_bytes(data[:1000])
        self.fails(self.quick("-m", NANO, "--draft", other), "drafter")
        rnd = random.Random(1)
        data[len(data) // 2:] = rnd.randbytes(len(data) - len(data) // 2)
        other.write_bytes(data)
        r = doctor("-m", NANO, "-c", 1024, "--backend", "cpu", "--port", free_port(), "--draft", other)
        self.fails(r, "drafting")

    def test_surroundings(self):
        self.fails(self.quick("-m", NANO, "--memory", "1MB"), "plan", "available")
        (self.dir / "file").write_text("x")
        self.fails(self.quick("-m", NANO, "--cache-disk", self.dir / "file"), "cache folder")
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            self.fails(self.quick("-m", NANO, "--port", s.getsockname()[1]), "port", "in use")
        self.fails(self.quick("-m", NANO, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))), "open files", "ulimit -n")
        if not pathlib.Path("/proc/driver/nvidia/version").exists():
            self.fails(self.quick("-m", NANO, "--backend", "cuda"), "gpu")
        locked = self.dir / "locked"
        locked.mkdir(mode=0o700)
        holder = subprocess.Popen([sys.executable, "-c", "import fcntl,sys,time\nf=open(sys.argv[1],'w')\nfcntl.flock(f,fcntl.LOCK_EX)\nprint(1,flush=True)\ntime.sleep(100)",
                                   str(locked / "lock")], stdout=subprocess.PIPE)
        holder.stdout.readline()
        self.fails(self.quick("-m", NANO, "--cache-disk", locked), "cache folder", "another process")
        holder.kill()
        holder.wait()
        holder.stdout.close()

    def test_urls(self):
        self.fails(doctor("--url", f"http://127.0.0.1:{free_port()}"), "url", "refused")
        self.fails(doctor("--url", "https://127.0.0.1"), "url", "http://")
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Fake)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        for defect, check, word in (("stuck", "last used", "stays 5"), ("cut", "streaming", "[DONE]"), ("toolless", "tools", "did not come"),
                                    ("empty", "answer", "empty"), ("wrong", "drafting", "none of 40")):
            Fake.defect = defect
            self.fails(doctor("--url", url), check, word)
        server.shutdown()
        server.server_close()

    def test_a_server(self):
        key = self.dir / "key"
        key.write_text("secret\n")
        for flags in (["-m", str(NANO)], ["-m", f"nano={NANO}", "--api-key-file", str(key)]):
            s = Serving("-c", "4096", *flags)
            try:
                if "--api-key-file" in flags:
                    self.fails(doctor("--url", s.url), "models", "--api-key")
                r = doctor("--url", s.url, "--api-key", "secret")
                self.assertTrue(r["healthy"], r)
                for check in ("health", "models", "answer", "streaming", "tools", "last used", "disconnects"):
                    self.assertEqual(at(r, check)[0]["level"], "ok", r)
            finally:
                s.stop()


if __name__ == "__main__":
    unittest.main(verbosity=2)
