"""Answers about pictures by the tower that ships with facet-nano: of twenty drawn here at least eighteen are right, every dialect gives the same
answer, a conversation goes on about its picture, and no model takes the tower unasked."""
import base64
import random
import subprocess
import unittest

import drawing
from serving import MODELS, PROGRAM, Serving

NANO = MODELS / "facet-nano-Q8_0.gguf"
TOWER = MODELS / "vision/facet-nano-mmproj-Q8_0.gguf"
CIRCLES = MODELS / "vision/circles.png"
WHAT = "What is in the picture?"
THREE = "There are 3 red circles."


def url(file):
    return "data:image/png;base64," + base64.b64encode(file).decode()


def drawn(seed):
    """A picture and what is in it."""
    rng = random.Random(seed)
    color = rng.choice(list(drawing.INKS))
    a = "an" if color == "orange" else "a"
    if rng.random() < .3:
        digit = str(rng.randrange(10))
        return drawing.picture(160, [(digit, color, rng.uniform(.3, .7), rng.uniform(.3, .7), rng.uniform(.15, .25))]), f"There is {a} {color} {digit}."
    shape, n = rng.choice(list(drawing.SHAPES)), rng.randint(1, 5)
    things = [(shape, color, (c % 4 + .5) / 4, (c // 4 + .5) / 4, rng.uniform(.07, .1)) for c in rng.sample(range(16), n)]
    many = shape + ("es" if shape == "cross" else "s")
    return drawing.picture(160, things), f"There is {a} {color} {shape}." if n == 1 else f"There are {n} {color} {many}."


def run(*args):
    return subprocess.run([PROGRAM, "run", "-m", NANO, "-c", "512", "--temp", "0", "--draft", "none", "-n", "24", *map(str, args)],
                          capture_output=True, text=True, timeout=120)


class Vision(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Serving("-m", NANO, "--mmproj", TOWER, "--image-tokens", 70, "-c", 2048)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def post(self, path, body):
        status, _, answer = self.server.request("POST", path, body)
        self.assertEqual(status, 200, answer)
        return answer

    def chat(self, messages):
        return self.post("/v1/chat/completions", {"messages": messages, "max_tokens": 24, "temperature": 0})

    def ask(self, file, question=WHAT):
        parts = [{"type": "image_url", "image_url": {"url": url(file)}}, {"type": "text", "text": question}]
        return self.chat([{"role": "user", "content": parts}])["choices"][0]["message"]["content"]

    def test_eighteen_of_twenty(self):
        wrong = []
        for seed in range(20):
            file, want = drawn(seed)
            if (got := self.ask(file)) != want:
                wrong.append((seed, want, got))
        self.assertLessEqual(len(wrong), 2, wrong)

    def test_what_is_asked_is_answered(self):
        file = drawing.picture(160, [("square", "blue", .3, .3, .1), ("square", "blue", .7, .6, .1)])
        for question, answer in ((WHAT, "There are 2 blue squares."), ("What color are they?", "The color is blue."),
                                 ("What shape are they?", "The shape is a square."), ("How many shapes are there?", "There are 2 squares.")):
            self.assertEqual(self.ask(file, question), answer)
        self.assertEqual(self.ask(drawing.picture(160, [("7", "green", .5, .5, .2)]), "Which digit is it?"), "The digit is 7.")

    def test_every_dialect_says_the_same(self):
        file = CIRCLES.read_bytes()
        data = base64.b64encode(file).decode()
        self.assertEqual(self.ask(file), THREE)
        a = self.post("/v1/messages", {"max_tokens": 24, "temperature": 0, "messages": [{"role": "user", "content": [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}, {"type": "text", "text": WHAT}]}]})
        self.assertEqual(a["content"][0]["text"], THREE)
        r = self.post("/v1/responses", {"max_output_tokens": 24, "temperature": 0, "input": [{"role": "user", "content": [
            {"type": "input_image", "image_url": url(file)}, {"type": "input_text", "text": WHAT}]}]})
        self.assertEqual(r["output"][-1]["content"][0]["text"], THREE)
        o = self.post("/api/chat", {"model": "any", "stream": False, "options": {"temperature": 0, "num_predict": 24},
                                    "messages": [{"role": "user", "content": WHAT, "images": [data]}]})
        self.assertEqual(o["message"]["content"], THREE)

    def test_a_conversation_about_a_picture(self):
        messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url(CIRCLES.read_bytes())}}, {"type": "text", "text": WHAT}]},
                    {"role": "assistant", "content": THREE}, {"role": "user", "content": "What color are they?"}]
        self.assertEqual(self.chat(messages)["choices"][0]["message"]["content"], "The color is red.")

    def test_run_at_both_budgets(self):
        for tokens in (70, 280):
            r = run("--mmproj", TOWER, "--image-tokens", tokens, "--image", CIRCLES, "-p", WHAT)
            self.assertEqual((r.returncode, r.stdout), (0, THREE + "\n"), r.stderr)

    def test_no_model_takes_it_unasked(self):
        """It is no tower of facet-nano-moe, which has the same width."""
        r = run("--image", CIRCLES, "-p", WHAT)
        self.assertNotEqual(r.returncode, 0)
        self.assertIn("this model has no encoder", r.stderr)


if __name__ == "__main__":
    unittest.main()
