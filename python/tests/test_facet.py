"""The package as it is installed: python -m unittest discover -s python/tests, with FACET_MODELS naming the folder of models."""
import os
import pathlib
import re
import threading
import unittest

import facet

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = pathlib.Path(os.environ.get("FACET_MODELS", ROOT / "models"))
NANO = MODELS / "facet-nano-Q8_0.gguf"


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
        import json
        schema = '{"type":"object","properties":{"n":{"enum":[1,2]}},"required":["n"],"additionalProperties":false}'
        self.assertIn(json.loads(self.model.chat("Pick a number", json_schema=schema, max_tokens=60).read())["n"], (1, 2))

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
        before = os.getcwd()
        os.chdir(MODELS.parent)
        try:
            exec(compile(code, "README.md", "exec"), {"__name__": "readme", "print": lambda *a, **k: None})
        finally:
            os.chdir(before)


if __name__ == "__main__":
    unittest.main()
