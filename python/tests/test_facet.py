"""The package as it is installed: python -m unittest discover -s python/tests, with FACET_MODELS naming the folder of models."""
import asyncio
import json
import math
import os
import pathlib
import re
import subprocess
import tempfile
import threading
import time
import unittest

import facet

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = pathlib.Path(os.environ.get("FACET_MODELS", ROOT / "models"))
NANO = MODELS / "facet-nano-Q8_0.gguf"
PROGRAM = os.environ.get("FACET_PROGRAM")
WEATHER = [{"type": "function", "function": {"name": "get_weather", "description": "The weather of a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]


class Facet(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.notes = []
        cls.model = facet.Model(NANO, context=2048, sequences=2, threads=1, backend="cpu", on_note=cls.notes.append)

    @classmethod
    def tearDownClass(cls):
        cls.model.close()

    def test_chat_streams_what_it_reads(self):
        answer = self.model.chat("What is the capital of France?", temperature=0)
        self.assertEqual("".join(answer), answer.text)
        self.assertIn("Paris", answer.text)
        self.assertEqual(answer.stop, "end")
        self.assertEqual(answer.stats.generated, len(answer.tokens))
        # A reader that comes late gets what was written so far in one piece: this one cannot come too late.
        long = self.model.chat("Hello", temperature=0, max_tokens=1500, ignore_eos=True)
        self.assertGreater(len(list(long)), 1)
        self.assertEqual(answer.text, self.model.chat([{"role": "user", "content": "What is the capital of France?"}],
                                                      temperature=0, cache=False).read())

    def test_a_session_computes_what_is_new(self):
        talk = self.model.session(system="Be brief.")
        talk.ask("What is the capital of Italy?", temperature=0).read()
        second = talk.ask("And of Spain?", temperature=0)
        second.read()
        self.assertGreater(second.stats.cached, 20)
        self.assertLess(second.stats.cached, second.stats.prompt)

    def test_drafts_change_no_text(self):
        with facet.Model(NANO, context=1024, threads=1, backend="cpu",
                         drafters=[MODELS / "facet-nano-dflash-Q8_0.gguf"]) as drafting:
            for seed in range(3):
                plain = self.model.chat("Tell me a story", max_tokens=40, seed=seed)
                drafted = drafting.chat("Tell me a story", max_tokens=40, seed=seed, temperature=0)
                self.assertEqual(drafted.read(), self.model.chat("Tell me a story", max_tokens=40, temperature=0).read())
                self.assertLessEqual(drafted.stats.accepted, drafted.stats.drafted)  # none where drafts do not pay
                self.assertEqual(plain.read(), self.model.chat("Tell me a story", max_tokens=40, seed=seed).read())

    def test_tokens_and_logits(self):
        ids = self.model.tokenize("The capital of France is", add_bos=True)
        self.assertEqual(self.model.detokenize(ids[1:]), "The capital of France is")
        rows = self.model.score(ids, len(ids) - 2)
        self.assertEqual((len(rows), len(rows[0])), (2, self.model.n_vocab))
        best = max(range(self.model.n_vocab), key=rows[-1].__getitem__)
        answer = self.model.generate(ids, max_tokens=1, temperature=0, ignore_eos=True)
        answer.read()
        self.assertEqual((answer.tokens, answer.stop), ([best], "length"))

    def test_a_schema_is_followed(self):
        schema = '{"type":"object","properties":{"n":{"enum":[1,2]}},"required":["n"],"additionalProperties":false}'
        self.assertIn(json.loads(self.model.chat("Pick a number", json_schema=schema, max_tokens=60).read())["n"], (1, 2))

    def test_a_schema_is_a_dict_or_a_pydantic_model(self):
        schema = {"type": "object", "properties": {"n": {"enum": [7, 8]}}, "required": ["n"], "additionalProperties": False}

        class Pick:  # as pydantic's models say it
            @staticmethod
            def model_json_schema():
                return schema

        for given in (schema, Pick):
            self.assertIn(json.loads(str(self.model.chat("Pick a number", json_schema=given, max_tokens=60)))["n"], (7, 8))

    def test_stop_and_logprobs(self):
        answer = self.model.chat("What is the capital of France?", temperature=0, stop="Paris", logprobs=3)
        text = str(answer)
        self.assertTrue(text and "Paris" not in text, text)
        self.assertEqual((answer.stop, len(answer.logprobs)), ("stop", len(answer.tokens)))
        for token, said in zip(answer.tokens, answer.logprobs):
            self.assertEqual((said.token, said.top[0]), (token, (token, said.logprob)))
            self.assertEqual(len(said.top), 3)
            self.assertLessEqual(sum(math.exp(p) for _, p in said.top), 1.0001)
        plain = self.model.chat("Hello", temperature=0, logprobs=True)
        plain.read()
        self.assertEqual([p.top for p in plain.logprobs], [()] * len(plain.tokens))
        raw = self.model.generate("The capital of France is", temperature=0, stop=[" Paris", "."], max_tokens=30)
        self.assertNotIn("Paris", raw.read())
        self.assertRaisesRegex(facet.FacetError, "top_logprobs", self.model.chat, "x", logprobs=21)
        self.assertRaisesRegex(facet.FacetError, "stop", self.model.chat, "x", stop=[""])

    def test_nothing_of_a_draft_beyond_the_stop_is_told(self):
        """In a model of its own: one that has answered much may draft no more."""
        with facet.Model(NANO, context=512, threads=1, backend="cpu") as drafting:
            answer = drafting.chat("Write a Python function total(a, b) that returns the sum of a and b.", temperature=0,
                                   stop="def")
            answer.read()
            self.assertGreater(answer.stats.accepted, 0)
            self.assertEqual((answer.stop, drafting.detokenize(answer.tokens[-1:])), ("stop", "def"))

    def test_tools_are_called_and_answered(self):
        talk = self.model.session(tools=WEATHER)
        answer = talk.ask("What is the weather in Paris?", temperature=0)
        answer.read()
        self.assertEqual(len(answer.tool_calls), 1, answer.text)
        call = answer.tool_calls[0]
        self.assertEqual(call["function"]["name"], "get_weather")
        self.assertEqual(json.loads(call["function"]["arguments"])["city"], "Paris")
        talk.add_messages([{"role": "tool", "tool_call_id": call["id"], "content": '{"weather": "sunny", "degrees": 21}'}])
        self.assertIn("21", str(talk.ask(temperature=0)))
        self.assertRaises(facet.FacetError, self.model.session, tools=[{"type": "function"}])

    def test_async_iteration(self):
        async def read(question):
            return "".join([piece async for piece in self.model.chat(question, temperature=0)])

        async def both():
            return await asyncio.gather(read("What is the capital of France?"), read("What is the capital of Italy?"))

        france, italy = asyncio.run(both())
        self.assertEqual(france, str(self.model.chat("What is the capital of France?", temperature=0)))
        self.assertIn("Rome", italy)

        async def dropped():
            answer = self.model.chat("Once", temperature=0, ignore_eos=True)
            task = asyncio.ensure_future(answer.aread())
            await asyncio.sleep(0.05)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            return answer

        answer = asyncio.run(dropped())
        answer.read()
        self.assertEqual(answer.stop, "cancelled")

    def test_drafters_beside_the_model_are_found(self):
        with facet.Model(NANO, context=512, threads=1, backend="cpu") as found, \
                facet.Model(NANO, context=512, threads=1, backend="cpu", drafters=[]) as without:
            long = dict(temperature=0, max_tokens=100, ignore_eos=True)
            answers = [m.chat("Hello", **long) for m in (found, without)]
            self.assertEqual(*(a.read() for a in answers))
            self.assertGreater(answers[0].stats.drafted, 0)
            self.assertEqual(answers[1].stats.drafted, 0)

    def test_names_of_the_hub(self):
        with tempfile.TemporaryDirectory() as cache:
            os.environ["FACET_CACHE"] = cache
            self.addCleanup(os.environ.pop, "FACET_CACHE")
            with self.assertRaisesRegex(facet.FacetError, "someone/something"):
                facet.Model("hf:someone/something", offline=True)
            folder = pathlib.Path(cache, "someone/nano-GGUF")
            folder.mkdir(parents=True)
            (folder / "nano-Q8_0.gguf").symlink_to(NANO.resolve())
            self.assertRaisesRegex(facet.FacetError, "Q4_K_M", facet.Model, "hf:someone/nano-GGUF:Q4_K_M", offline=True)

    def test_pictures_and_sounds_need_encoders(self):
        self.assertFalse(self.model.sees or self.model.hears)
        for call in (lambda: self.model.chat("What is it?", images=[b"no picture"]),
                     lambda: self.model.chat([{"role": "user", "content": [{"type": "image", "image": b"x"}]}])):
            self.assertRaisesRegex(facet.FacetError, "mmproj", call)
        self.assertRaises(TypeError, self.model.chat, "x", images=[3])
        self.assertRaises(ValueError, self.model.chat, [{"role": "user", "content": "x"}], images=[b"x"])

    @unittest.skipUnless(PROGRAM, "FACET_PROGRAM, which makes the encoders, is not set")
    def test_pictures_and_sounds(self):
        data = ROOT / "tests/data/media"
        with tempfile.TemporaryDirectory() as folder:
            mmproj = pathlib.Path(folder, "mmproj.gguf")
            subprocess.run([PROGRAM, "synth", "--mmproj", "nano", "--quant", "BF16", mmproj], check=True, capture_output=True)
            with facet.Model(NANO, context=2048, threads=1, backend="cpu", mmproj=mmproj, drafters=[]) as model:
                self.assertTrue(model.sees and model.hears)
                jpeg, png = data / "kinds/baseline-420.jpg", data / "kinds/interlaced.png"
                talk = model.session()
                n = talk.add("user", "What is it?", images=[jpeg, png.read_bytes()], sounds=[data / "tone.flac"])
                self.assertGreater(n, 2)
                answer = talk.ask(temperature=0, max_tokens=8)
                answer.read()
                self.assertEqual(answer.stats.media, n)
                self.assertGreater(answer.stats.prompt, n)
                again = talk.ask("And now?", temperature=0, max_tokens=8)
                again.read()
                self.assertGreater(again.stats.cached, n)
                # The same picture, as a path, bytes or a part of a message, gives the same answer; another gives another.
                ways = [model.chat("What?", images=[jpeg], temperature=0, max_tokens=8, logprobs=True),
                        model.chat("What?", images=[jpeg.read_bytes()], temperature=0, max_tokens=8, logprobs=True),
                        model.chat([{"role": "user", "content": [{"type": "image", "image": jpeg},
                                                                 {"type": "text", "text": "What?"}]}],
                                   temperature=0, max_tokens=8, logprobs=True)]
                texts = [(w.read(), w.logprobs) for w in ways]
                self.assertEqual(texts, [texts[0]] * 3)
                behind = model.chat([{"role": "user", "content": [{"type": "text", "text": "What?"},
                                                                  {"type": "image", "image": jpeg}]}],
                                    temperature=0, max_tokens=8, logprobs=True)
                behind.read()
                self.assertNotEqual(behind.logprobs, texts[0][1])
                other = model.chat("What?", images=[png], temperature=0, max_tokens=8, logprobs=True)
                other.read()
                self.assertNotEqual(other.logprobs, texts[0][1])
                self.assertRaisesRegex(facet.FacetError, "picture", model.chat, "x", images=[b"no picture"])
                # What was not taken takes no room: forty of these do not fit.
                talk = model.session()
                broken = [{"role": "user", "content": [{"type": "image", "image": jpeg}, {"type": "image", "image": b"x"}]}]
                for _ in range(40):
                    self.assertRaises(facet.FacetError, talk.add_messages, broken)
                talk.add("user", "What is it?", images=[jpeg])
                self.assertRaisesRegex(facet.FacetError, "context", model.chat, "x", images=[jpeg] * 40)

    def test_cancel_and_drop(self):
        answer = self.model.generate("Once", max_tokens=100000, temperature=0, ignore_eos=True)
        next(answer)
        threading.Thread(target=answer.cancel).start()
        answer.read()
        self.assertEqual(answer.stop, "cancelled")
        self.model.generate("Once", ignore_eos=True).close()  # not read at all
        half = self.model.chat("Tell me a story", max_tokens=50)
        next(half)
        del half
        self.assertIn("Paris", self.model.chat("What is the capital of France?", temperature=0).read())

    def test_two_at_once(self):
        alone = [self.model.chat(f"Count to {i}", max_tokens=20, temperature=0, cache=False).read() for i in (3, 4)]
        both = [self.model.chat(f"Count to {i}", max_tokens=20, temperature=0, cache=False) for i in (3, 4)]
        self.assertEqual([b.read() for b in both], alone)

    def test_errors_say_what_to_do(self):
        with self.assertRaisesRegex(facet.FacetError, "no/such.gguf") as raised:
            facet.Model("no/such.gguf")
        self.assertEqual(raised.exception.where, "no/such.gguf")
        for call, message in ((lambda: facet.Model(NANO, drafters=["no/drafter.gguf"]), "no/drafter.gguf"),
                              (lambda: facet.Model(NANO, kv_type="q7"), "kv_type"),
                              (lambda: self.model.generate([1 << 30]), r"in \[0, "),
                              (lambda: self.model.generate([]), "at least one token"),
                              (lambda: self.model.detokenize([-1]), "found -1"),
                              (lambda: self.model.chat("x", temperature=float("nan")), "finite"),
                              (lambda: self.model.chat("x", json_schema="{"), ""),
                              (lambda: self.model.session().add("nobody", "x"), "role")):
            self.assertRaisesRegex(facet.FacetError, message, call)
        closed = facet.Model(NANO, context=256, threads=1)
        closed.close()
        self.assertRaises(ValueError, closed.tokenize, "x")

    def test_the_example_of_the_readme(self):
        code = re.search(r"```python\n(.*?)```", (ROOT / "python/README.md").read_text(), re.S)[1]
        before, started = os.getcwd(), time.monotonic()
        os.chdir(MODELS.parent)
        try:
            said = []
            exec(compile(code, "README.md", "exec"), {"__name__": "readme", "print": lambda *a, **k: said.append(" ".join(map(str, a)))})
            self.assertLess(time.monotonic() - started, 20)
            self.assertTrue(any(line.startswith("get_weather") for line in said), said)
        finally:
            os.chdir(before)


if __name__ == "__main__":
    unittest.main()
