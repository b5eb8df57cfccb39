"""What tests of several models share.

FACET_TEST_FULL=1: the third is `facet synth`'s, and 100 rounds of each fault; FACET_TEST_ROUNDS=N: N (3).
"""
import os
import pathlib
import re
import subprocess
import tempfile
import time
import unittest

from serving import MODELS, PROGRAM, Serving

FULL = bool(os.environ.get("FACET_TEST_FULL"))
ROUNDS = int(os.environ.get("FACET_TEST_ROUNDS", "100" if FULL else "3"))


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


class Router(Serving):
    def ask(self, *request):
        status, _, body = self.request(*request)
        return status, body.decode() if isinstance(body, bytes) else body

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
            assert time.time() < end, (model, wanted, self.entry(model), self.log_text())
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


class RouterCase(unittest.TestCase):
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
