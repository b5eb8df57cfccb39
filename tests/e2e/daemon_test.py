#!/usr/bin/env python3
"""facet daemon: daemon_test.py PROGRAM. Both protocols, against what `facet run` says; with FACET_TEST_FULL longer."""
import base64
import json
import os
import pathlib
import random
import re
import select
import struct
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = sys.argv.pop(1) if len(sys.argv) > 1 else "build/release/facet"
FULL = bool(os.environ.get("FACET_TEST_FULL"))
ROOT = pathlib.Path(__file__).resolve().parents[2]
PROMPTS = ["The capital of France is", "Write one sentence about the sea.", "1 2 3 4 5", "Hello"]


def ids_file(path, ids, counted=False):
    head = struct.pack("<I", len(ids)) if counted else b""
    path.write_bytes(head + struct.pack(f"<{len(ids)}i", *ids))
    return path


class Daemon:
    """A running daemon, with the read end of its stream."""

    def __init__(self, *options, stream=True):
        self.read, write = os.pipe() if stream else (None, None)
        fd = [f"--stream-fd={write}"] if stream else []
        self.process = subprocess.Popen([PROGRAM, "daemon", "--backend", "cpu", "-t", "1", "-c", "2048", "--quiet", *fd, *options],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        pass_fds=[write] if stream else [])
        if stream:
            os.close(write)
        assert self.line() == "[daemon] ready"

    def line(self, seconds=60):
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            raise TimeoutError("no line")
        return self._readline()

    def _readline(self):
        text = b""
        while not text.endswith(b"\n"):  # unbuffered, so that select() knows what is there
            c = os.read(self.process.stdout.fileno(), 1)
            if not c:
                break
            text += c
        return text.decode().rstrip("\n")

    def say(self, text):
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def ids(self):
        """Of one result, up to its -1."""
        out = []
        while True:
            data = b""
            while len(data) < 4:
                if not select.select([self.read], [], [], 60)[0]:
                    raise TimeoutError("no ids")
                data += os.read(self.read, 4 - len(data))
            n = struct.unpack("<i", data)[0]
            if n == -1:
                return out
            out.append(n)

    def end(self):
        try:
            _, err = self.process.communicate(b"quit\n", timeout=60)
        except BrokenPipeError:
            _, err = self.process.communicate(timeout=60)
        if self.read is not None:
            os.close(self.read)
        return self.process.returncode, err.decode()


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.dir = pathlib.Path(cls.folder.name)
        cls.prompts = []
        for i, text in enumerate(PROMPTS):
            out = subprocess.run([PROGRAM, "tokenize"], input=text, capture_output=True, text=True, check=True).stdout
            ids = json.loads(out)["ids"]
            cls.prompts.append(ids)
            ids_file(cls.dir / f"p{i}", ids)
        cls.want = [cls.run_ids(cls.dir / f"p{i}", 24) for i in range(len(PROMPTS))]

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def run_ids(cls, path, n):
        out = cls.dir / "out"
        subprocess.run([PROGRAM, "run", "--backend", "cpu", "-t", "1", "--quiet", "--tokens", path, "-n", str(n), "--temp", "0",
                        "--out-tokens", out], check=True, capture_output=True)
        data = out.read_bytes()
        return list(struct.unpack(f"<{len(data) // 4}i", data))


class Transcript:
    """A file of tests/data/daemon: prompts as "file NAME ids" ("counted": behind their number), then a conversation. > what the daemon is told, < the line that it answers,
    = the ids that come before it (on the stream up to -1, or as events). What a clock, a folder or the speed of drafts decides
    is a *."""

    def __init__(self, path):
        self.path, self.steps, self.files = path, [], {}
        for line in path.read_text().splitlines():
            if line.startswith(("file ", "counted ")):
                kind, name, *ids = line.split()
                self.files[name] = [int(i) for i in ids], kind == "counted"
            elif line[:1] in ("<", "=", ">"):
                self.steps.append((line[0], line[2:]))

    @staticmethod
    def masked(line):
        line = re.sub(r'([a-z_]+_s=|stream_fd=|"[a-z]+_s":|"accepted":|"drafted":)[\d.e-]+', r"\1*", line)
        return re.sub(r'"model":"[^"]*/', '"model":"*/', re.sub(r"below /[^)]*", "below *", line))

    def play(self, folder):
        """The steps as they come: for each ">", what follows it."""
        for name, (ids, counted) in self.files.items():
            ids_file(folder / name, ids, counted)
        json_lines = any(kind == ">" and text.startswith("{") for kind, text in self.steps)
        d, got = Daemon("--root", str(folder), stream=not json_lines), []
        for i, (kind, text) in enumerate(self.steps):
            if kind == ">":
                d.say(text)
                got.append((kind, text))
                ids = []
            elif json_lines:
                if kind == "<":
                    while '"event":"tokens"' in (line := d.line()):
                        ids += json.loads(line)["ids"]
                    if ids:
                        got.append(("=", " ".join(map(str, ids))))
                    got.append(("<", self.masked(line)))
            elif kind == "=":
                got.append((kind, " ".join(map(str, d.ids()))))
            else:
                got.append((kind, self.masked(d.line())))
        if select.select([d.process.stdout], [], [], .1)[0]:
            got.append(("<", self.masked(d.line())))
        return got, d.end()


class Transcripts(Case):
    def test_transcripts(self):
        """Ids and lines as they were recorded, on every instruction set."""
        exchanges = 0
        paths = sorted((ROOT / "tests/data/daemon").glob("*.txt"))
        self.assertGreaterEqual(len(paths), 6)
        for path in paths:
            with tempfile.TemporaryDirectory() as folder, self.subTest(path.name):
                t = Transcript(path)
                got, end = t.play(pathlib.Path(folder))
                self.assertEqual(got, t.steps)
                self.assertEqual(end[0], 0, end)
                exchanges += sum(kind == ">" for kind, _ in t.steps)
        print(f"{len(paths)} transcripts, {exchanges} commands", file=sys.stderr)


class Lines(Case):
    def test_every_command(self):
        d = Daemon("--root", str(self.dir))
        for i, want in enumerate(self.want):
            d.say(f"{self.dir}/p{i} 24")
            self.assertEqual(d.ids(), want)
            self.assertRegex(d.line(), rf"^ok N={len(self.prompts[i])} gen={len(want)} prefill_s=[\d.]+ decode_s=[\d.]+ decode_tok_s=[\d.]+ stream_fd=\d+$")
        d.say("SNAPSHOT 3")
        self.assertEqual(d.ids(), [])
        self.assertRegex(d.line(), r"^\[snap\] inline slot=3 cur_pos=\d+$")
        d.say("./p1 4 samp=0 snap=5:7")
        self.assertEqual(d.ids(), self.want[1][:4])
        self.assertEqual(d.line(), "[snap] inline slot=7 cur_pos=5")
        d.line()
        d.say("LIST_SLOTS")
        d.ids()
        self.assertEqual(d.line(), "[snap] slots=3,7")
        d.say("RESTORE 7 ./p1 24")
        self.assertEqual(d.ids(), self.want[1])
        self.assertRegex(d.line(), rf"^ok N={len(self.prompts[1])} gen=\d+ prefix_len=\d+ \(RESTORE slot=7\) stream_fd=\d+$")
        d.say("FREE_SNAPSHOT 7")
        d.ids()
        self.assertEqual(d.line(), "[snap] freed slot=7")
        d.say("RESTORE 7 ./p1 24")
        d.ids()
        self.assertEqual(d.line(), "err empty_slot")

        ids_file(self.dir / "in", self.prompts[2], counted=True)
        d.say("generate ./in 24 ./answer")
        self.assertRegex(d.line(), r"^ok N=\d+ gen=\d+ .* out=\./answer$")
        data = (self.dir / "answer").read_bytes()
        self.assertEqual(data, struct.pack(f"<I{len(self.want[2])}i", len(self.want[2]), *self.want[2]))

        for line in ("park draft", "unpark draft", "free drafter", "park target"):
            d.say(line)
            self.assertEqual(d.ids(), [])
        d.say("./p0 4")
        self.assertEqual((d.ids(), d.line()), ([], "err target_parked"))
        d.say("unpark")
        self.assertEqual(d.ids(), [])
        d.say("./p0 24")
        self.assertEqual(d.ids(), self.want[0])
        d.line()
        code, err = d.end()
        self.assertEqual(code, 0, err)

    def test_what_is_wrong_is_told(self):
        (self.dir / "odd").write_bytes(b"12345")
        (self.dir / "none").write_bytes(b"")
        ids_file(self.dir / "foreign", [5, 1 << 30])
        ids_file(self.dir / "negative", [5, -7])
        ids_file(self.dir / "long", [5] * 3000)
        (self.dir / "count").write_bytes(struct.pack("<Ii", 0xFFFFFFFF, 5))
        link = self.dir / "link"
        if not link.is_symlink():
            link.symlink_to("/etc/passwd")
        d = Daemon("--root", str(self.dir))
        for line, answer in [("./odd 4", "expected int32"), ("./none 4", "err empty_prompt"), ("./foreign 4", "expected token ids"),
                             ("./negative 4", "expected token ids"), ("./long 4", "err "), ("./absent 4", "err "), ("/etc/passwd 4", "lies outside"),
                             ("./link 4", "lies outside"), ("../../etc/passwd 4", "err "), ("./p0", "err bad_args"), ("./p0 -1", "err bad_args"),
                             ("./p0 99999999999", "err bad_args"), ("./p0 4 samp=nan", "err bad_args"), ("./p0 4 samp=1,2", "err bad_args"),
                             ("./p0 4 snap=0:1", "err bad_args"), ("./p0 4 snap=1:64", "err bad_args"), ("./p0 4 snap=1000:1", "err bad_args"),
                             ("RESTORE 64 ./p0 4", "err bad_args"), ("SNAPSHOT", "err bad_args"), ("parking", "err unknown_command"),
                             ("park it", "err bad_args"), ("", "err unknown_command"), ("compress a 5 b", "compress is not supported"),
                             ("x" * 70000, "err bad_args")]:
            d.say(line)
            self.assertEqual(d.ids(), [], line)
            self.assertIn(answer, d.line(), line)
        for line in ("generate ./count 4 ./answer2", "generate ./p0 4 ./answer2", "generate ./in 4 /etc/x"):
            d.say(line)
            self.assertTrue(d.line().startswith("err "), line)
        self.assertFalse((self.dir / "answer2").exists())
        d.say("./p0 24")  # and nothing is lost
        self.assertEqual(d.ids(), self.want[0])
        self.assertEqual(d.end()[0], 0)

    def test_without_a_stream(self):
        d = Daemon(stream=False)
        d.say(f"{self.dir}/p0 4")
        self.assertEqual(d.line(), "err no_stream_fd")
        self.assertEqual(d.end()[0], 0)

    def test_a_reader_that_closes(self):
        d = Daemon()
        d.say(f"{self.dir}/p0 1500 samp=100,1,0,1,2")  # hot: the answer would go on for seconds; the likeliest has three tokens
        os.read(d.read, 4)
        os.close(d.read)
        d.read = None
        self.assertEqual(d.line(), "err stream_closed")
        d.say(f"{self.dir}/p0 4")
        self.assertEqual(d.line(), "err stream_closed")
        self.assertEqual(d.end()[0], 0)

    def test_random_lines(self):
        rng = random.Random(7)
        words = ["./p0", "RESTORE", "SNAPSHOT", "generate", "park", "unpark", "draft", "0", "3", "64", "-1", "samp=0", "samp=1,0.5", "snap=2:1",
                 "snap=", "LIST_SLOTS", "FREE_SNAPSHOT", "free", "drafter", "\x01", "é", "./odd", "./none", "./out2"]
        d = Daemon("--root", str(self.dir))
        for _ in range(1000 if FULL else 200):
            line = " ".join(rng.choice(words) for _ in range(rng.randint(1, 6)))
            d.say(line)
            if line.split()[0] not in ("park", "unpark", "free") or "\x01" in line:
                d.line()
            elif select.select([d.process.stdout], [], [], 0.05)[0]:
                d.line()
        d.say("quit")
        self.assertEqual(d.process.wait(timeout=120), 0)


class Json(Case):
    def start(self, *options):
        d = Daemon("--parallel", "4", *options, stream=False)
        d.say('{"protocol": "facet", "version": 1}')
        hello = json.loads(d.line())
        self.assertEqual(hello["version"], 1)
        self.assertEqual(hello["sequences"], 4)
        return d

    def event(self, d):
        return json.loads(d.line())

    def test_several_at_once(self):
        d = self.start()
        for i, p in enumerate(self.prompts):
            d.say(json.dumps({"id": f"r{i}", "op": "generate", "prompt": p, "n_predict": 24, "temperature": 0}))
        got, done = {}, {}
        while len(done) < len(self.prompts):
            e = self.event(d)
            if e["event"] == "tokens":
                got.setdefault(e["id"], []).extend(e["ids"])
            else:
                self.assertEqual(e["event"], "done", e)
                done[e["id"]] = e
        for i, want in enumerate(self.want):
            self.assertEqual(got.get(f"r{i}", []), want)
            self.assertEqual(done[f"r{i}"]["generated_tokens"], len(want))
        self.assertEqual(d.end()[0], 0)

    def test_cancels(self):
        d = self.start()
        rng = random.Random(3)
        left, n = set(), 100 if FULL else 20
        for i in range(n):
            d.say(json.dumps({"id": i, "op": "generate", "text": PROMPTS[i % 4], "n_predict": 500, "ignore_eos": True}))
            left.add(i)
            time.sleep(rng.random() * 0.02)
            d.say(json.dumps({"id": rng.choice(sorted(left)), "op": "cancel"}))
        for i in range(n):
            d.say(json.dumps({"id": i, "op": "cancel"}))
        while left:
            e = self.event(d)
            if e["event"] != "tokens":
                self.assertEqual(e["stop"], "cancelled")
                left.remove(e["id"])
        d.say('{"id": "last", "op": "generate", "text": "Hello", "n_predict": 2}')
        while self.event(d)["event"] != "done":
            pass
        self.assertEqual(d.end()[0], 0)

    def test_pictures_and_sounds(self):
        with tempfile.TemporaryDirectory() as folder:
            mmproj = pathlib.Path(folder) / "mmproj.gguf"
            subprocess.run([PROGRAM, "synth", "--mmproj", "nano", "--quant", "BF16", mmproj], check=True, capture_output=True)
            d = self.start("--mmproj", str(mmproj), "--image-tokens", "70")
            media = ROOT / "tests/data/media"
            b64 = {n: base64.b64encode((media / n).read_bytes()).decode() for n in ("kinds/grey.jpg", "kinds/lossy.webp", "tone.flac")}
            text = "<|turn>user\n<__media__>and<__media__>What?<turn|>\n<|turn>model\n"

            def ask(data, text=text, **more):
                d.say(json.dumps({"id": 1, "op": "generate", "text": text, "n_predict": 8, "temperature": 0, "multimodal_data": data, **more}))
                ids = []
                while (e := self.event(d))["event"] == "tokens":
                    ids += e["ids"]
                return (ids, e["prompt_tokens"], e["cached_tokens"]) if e["event"] == "done" else e["message"]
            first = ask([b64["kinds/grey.jpg"], b64["tone.flac"]])
            self.assertGreater(first[1], 80)
            again = ask(["data:image/jpeg;base64," + b64["kinds/grey.jpg"], b64["tone.flac"]])
            self.assertEqual(again[:2], first[:2])
            self.assertGreaterEqual(again[2], first[1] - 2)
            other = ask([b64["kinds/lossy.webp"], b64["tone.flac"]], cache=False)
            self.assertLess(ask([b64["kinds/lossy.webp"], b64["tone.flac"]])[2], other[1] // 2)  # of another picture nothing is taken
            # The command line says the same of one picture.
            ran = subprocess.run([PROGRAM, "run", "--backend", "cpu", "-p", "What?", "-n", "8", "--temp", "0", "--mmproj", mmproj, "--image-tokens",
                                  "70", "--image", media / "kinds/grey.jpg"], check=True, capture_output=True, text=True)
            one = ask([b64["kinds/grey.jpg"]], "<|turn>user\n<__media__>What?<turn|>\n<|turn>model\n<|channel>thought\n<channel|>")
            self.assertEqual(int(re.search(r"prompt (\d+) tokens", ran.stderr)[1]), one[1])
            for data, text, message in (([b64["kinds/grey.jpg"]], text, "expected one for each"), ([b64["tone.flac"]] * 3, text, "expected one for each"),
                                        (["!"], "<__media__>", "multimodal_data[0]"), (["AAAA"], "<__media__>", "multimodal_data[0]"),
                                        ([1], "<__media__>", "multimodal_data[0]"), ("x", "<__media__>", "an array"), (["AAAA"] * 33, "<__media__>", "at most 32"),
                                        ([b64["kinds/grey.jpg"][:400]], "<__media__>", "multimodal_data[0]"), ([], "<__media__>", "expected one for each")):
                self.assertIn(message, ask(data, text))
            self.assertEqual(ask([b64["kinds/grey.jpg"], b64["tone.flac"]])[:2], first[:2])
            self.assertEqual(d.end()[0], 0)
        d = self.start()
        d.say(json.dumps({"id": 1, "op": "generate", "text": "<__media__>", "multimodal_data": ["AAAA"]}))
        self.assertIn("--mmproj FILE", self.event(d)["message"])
        self.assertEqual(d.end()[0], 0)

    def test_what_is_wrong_is_told(self):
        d = Daemon(stream=False)
        d.say('{"protocol": "facet", "version": 2}')
        self.assertIn("version", self.event(d)["message"])
        d.say('{"protocol": "facet", "version": 1}')
        self.assertIn("model", self.event(d))
        for line, message in [("nonsense", "expected a JSON object"), ("[" * 100000, "expected a JSON object"), ('{"op": "generate"}', "id:"), ('{"id": 1}', "op:"),
                              ('{"id": 1, "op": "generate", "prompt": "x"}', "prompt:"), ('{"id": 1, "op": "generate", "prompt": []}', "prompt:"),
                              ('{"id": 1, "op": "generate", "prompt": [1], "text": "a"}', "prompt:"), ('{"id": 1, "op": "generate", "text": "a", "temperature": -1}', "temperature:"),
                              ('{"id": 1, "op": "generate", "text": "a", "n_predict": 1.5}', "n_predict:"), ('{"id": 1, "op": "generate", "text": "a", "what": 1}', "what:"),
                              ('{"id": 1, "op": "generate", "prompt": [99999999]}', "prompt:"), ('{"id": 1.5, "op": "generate"}', "id:")]:
            d.say(line)
            e = self.event(d)
            self.assertEqual(e["event"], "error", line)
            self.assertIn(message, e["message"], line)
        d.say('{"id": 1, "op": "generate", "text": "Hello", "n_predict": 2}')
        while self.event(d)["event"] != "done":
            pass
        self.assertEqual(d.end()[0], 0)


if __name__ == "__main__":
    unittest.main()
