#!/usr/bin/env python3
"""The page of `facet serve` in headless Chromium: page_test.py PROGRAM [unittest arguments].

Skipped without the package playwright or without Chromium. What the shipped model cannot say comes from a server of the
test's own that has the same page. FACET_PAGE_PICTURES=DIR: keeps pictures of it.
"""
import http.client
import http.server
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time
import unittest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
try:
    from playwright.sync_api import expect, sync_playwright
except ImportError:
    print("skipped: the package playwright is not installed (pip install playwright)")
    sys.exit(77)
if not CHROMIUM or CHROMIUM.startswith("/snap") or subprocess.run([CHROMIUM, "--version"], capture_output=True).returncode:
    print("skipped: there is no Chromium that runs (apt-get install chromium)")
    sys.exit(77)

PROGRAM = sys.argv.pop(1) if len(sys.argv) > 1 else "build/release/facet"
MODEL = pathlib.Path(__file__).resolve().parents[2] / "models" / "facet-nano-Q8_0.gguf"
PICTURES = os.environ.get("FACET_PAGE_PICTURES")
HELLO = "Hello! I am facet-nano. How can I help you?"
EVIL = "<img src=x onerror=\"document.title='evil'\"><script>document.title='evil'</script> [a](javascript:document.title='evil') <b>bold</b>"
SHOWCASE = """# A heading

A *quiet* page with **bold**, `code` and a [link](https://example.org/).

```python
def answer(question):
    return 42  # <b>not bold</b>
```

1. one
2. two
   - nested `item`

| place | share |
| --- | --- |
| 1 | 81 % |

> quoted ** text without an end
"""


class Facet:
    def __init__(self, *flags, port=0):
        self.process = subprocess.Popen([PROGRAM, "serve", "-m", str(MODEL), "-c", "4096", "--port", str(port), *flags],
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.url = self.process.stdout.readline().split()[-1]
        self.port = int(self.url.rsplit(":", 1)[1])

    def stop(self):
        self.process.terminate()
        self.process.wait(60)
        self.process.stdout.close()

    def page(self):
        c = http.client.HTTPConnection("127.0.0.1", self.port)
        c.request("GET", "/", headers={"Accept": "text/html"})
        r = c.getresponse()
        body = r.read()
        c.close()
        return body, r.headers["Content-Security-Policy"]


class Fake(http.server.BaseHTTPRequestHandler):
    """Has facet's page and answers what `script` says: (pieces, seconds between them, timings)."""
    body = policy = script = None
    asked, broken = [], threading.Event()

    def log_message(self, *_):
        pass

    def give(self, kind, body, **headers):
        self.send_response(200)
        for name, value in {"Content-Type": kind, "Content-Length": len(body), **headers}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/":
            return self.give("text/html; charset=utf-8", Fake.body, **{"Content-Security-Policy": Fake.policy})
        params = {"temperature": 1.0, "top_p": .95, "top_k": 64, "n_predict": -1}
        self.give("application/json", json.dumps({"status": "ok", "model_alias": "gemma-4-31b-it", "default_generation_settings": {"n_ctx": 131072, "params": params}}).encode())

    def do_POST(self):
        Fake.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        pieces, pause, timings = Fake.script
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        send = lambda x: self.wfile.write(b"data: " + json.dumps(x).encode() + b"\n\n")
        try:
            self.wfile.write(b": keep-alive\n\n")
            for p in pieces:
                send({"choices": [{"delta": p if isinstance(p, dict) else {"content": p}}]})
                time.sleep(pause)
            send({"choices": [{"delta": {}, "finish_reason": "stop"}], "timings": timings})
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            Fake.broken.set()


TIMINGS = {"cache_n": 1200, "prompt_n": 45, "prompt_ms": 80.5, "predicted_n": 420, "predicted_ms": 2900.0, "predicted_per_second": 144.8,
           "draft_n": 600, "draft_n_accepted": 290, "draft_rounds": 130, "draft_tokens_per_step": 3.231,
           "draft_accepted_at": [.81, .64, .42, .3], "draft_methods": [{"at": 0, "method": "dflash"}, {"at": 40, "method": "mtp"}]}


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.facet = Facet()
        cls.addClassCleanup(cls.facet.stop)
        Fake.body, Fake.policy = cls.facet.page()
        cls.fake = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Fake)
        cls.fake.daemon_threads = True
        threading.Thread(target=cls.fake.serve_forever, daemon=True).start()
        cls.addClassCleanup(cls.fake.shutdown)
        cls.fake_url = f"http://127.0.0.1:{cls.fake.server_port}"
        playwright = sync_playwright().start()
        cls.addClassCleanup(playwright.stop)
        cls.browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        cls.addClassCleanup(cls.browser.close)

    def visit(self, url, ready=True, **options):
        """A page with storage of its own. Afterwards: no error in its console, no request to another origin."""
        context = self.browser.new_context(**options)
        page = context.new_page()
        self.errors, requests = [], []
        page.on("console", lambda m: self.errors.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: self.errors.append(str(e)))
        page.on("request", lambda r: requests.append(r.url))

        def check():
            context.close()
            self.assertEqual(self.errors, [])
            self.assertEqual([r for r in requests if not r.startswith((url + "/", "data:image/svg", f"blob:{url}/"))], [])
        self.addCleanup(check)
        page.goto(url)
        if ready:
            expect(page.locator("#model")).not_to_be_empty()
        return page

    def ask(self, page, text):
        page.get_by_label("Message", exact=True).fill(text)
        page.keyboard.press("Enter")

    def settle(self, page):
        expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible(timeout=60000)

    def answers(self, page):
        return page.locator(".message.assistant .body")

    def picture(self, page, name):
        if PICTURES:
            page.screenshot(path=f"{PICTURES}/{name}.png")

    def expected(self, *patterns):
        """The browser reports failed requests itself: these were meant."""
        self.errors[:] = [e for e in self.errors if not any(re.search(p, e) for p in patterns)]

    def cold(self, page):
        page.get_by_role("button", name="Settings").click()
        page.get_by_label("Temperature").fill("0")
        page.get_by_role("button", name="Done").click()

    def test_it_talks(self):
        page = self.visit(self.facet.url)
        self.cold(page)
        self.ask(page, "Hello")
        expect(self.answers(page)).to_have_text(HELLO)
        self.settle(page)
        expect(page.get_by_role("status")).to_have_text("Answer: " + HELLO)
        panel = page.get_by_role("complementary", name="Speed of the answer")
        for text in ("tokens per second", "First token after", "From the cache", "Drafts"):
            expect(panel).to_contain_text(text)
        page.get_by_role("button", name="Regenerate").click()
        self.settle(page)
        expect(self.answers(page)).to_have_text(HELLO)
        page.locator(".message.user").get_by_role("button", name="Edit").click()
        page.get_by_label("Edit message").fill("What is 12 + 30?")
        page.keyboard.press("Enter")
        expect(self.answers(page)).to_contain_text("42")
        self.settle(page)
        page.reload()
        expect(page.locator(".message.user .body")).to_have_text("What is 12 + 30?")
        expect(self.answers(page)).to_contain_text("42")

    def test_a_thought_is_folded(self):
        page = self.visit(self.facet.url)
        self.cold(page)
        page.get_by_role("button", name="Settings").click()
        page.get_by_label("Thinking").select_option("on")
        page.keyboard.press("Escape")
        self.ask(page, "What is 12 + 30?")
        expect(self.answers(page)).to_contain_text("42")
        self.settle(page)
        text = page.locator(".thought .text")
        expect(text).to_be_hidden()
        page.get_by_text("Thought", exact=True).click()
        expect(text).to_be_visible()
        expect(text).not_to_be_empty()

    def test_conversations(self):
        page = self.visit(self.facet.url)
        for name in ("Hello", "What is 1 + 1?"):
            page.get_by_role("button", name="New conversation").click()
            self.ask(page, name)
            expect(page.locator(".message.user .body")).to_have_text(name)
            self.settle(page)
        page.reload()
        chats = page.locator("#chat-list li")
        expect(chats).to_have_count(2)
        page.get_by_role("button", name="Hello", exact=True).click()
        expect(page.locator(".message.user .body")).to_have_text("Hello")
        page.get_by_role("button", name="Rename: Hello").click()
        page.get_by_label("Name of the conversation").fill("Greeting")
        page.keyboard.press("Enter")
        with page.expect_download() as download:
            page.get_by_role("button", name="Export: Greeting").click()
        kept = json.loads(pathlib.Path(download.value.path()).read_text())
        self.assertEqual((download.value.suggested_filename, kept["title"], kept["messages"][0]["content"]), ("Greeting.json", "Greeting", "Hello"))
        page.on("dialog", lambda d: d.accept())
        page.get_by_role("button", name="Delete: Greeting").click()
        page.reload()
        expect(chats).to_have_count(1)

    def test_keys(self):
        locked = Facet("--api-key", "secret")
        self.addCleanup(locked.stop)
        page = self.visit(locked.url, ready=False)
        dialog = page.get_by_role("dialog", name="API key")
        expect(dialog).to_contain_text("needs an API key")
        for key in ("wrong", "secret"):
            dialog.get_by_label("Key").fill(key)
            page.keyboard.press("Enter")
            if key == "wrong":
                expect(dialog).to_contain_text("does not know this API key")
        expect(page.locator("#model")).to_contain_text("facet-nano")
        expect(page.get_by_role("alert")).to_be_hidden()
        self.ask(page, "Hello")
        self.settle(page)
        expect(self.answers(page)).not_to_be_empty()
        page.reload()  # the key is kept
        expect(page.locator("#model")).to_contain_text("facet-nano")
        expect(dialog).to_be_hidden()
        page.evaluate("localStorage.setItem('facet.key', '\"old\"'); state.key = 'old'")
        page.get_by_role("button", name="Regenerate").click()
        expect(page.locator(".failed")).to_contain_text("key was refused")
        expect(dialog).to_contain_text("does not know this API key")
        self.expected("status of 401")

    def test_the_server_goes_and_comes_back(self):
        first = Facet()
        page = self.visit(first.url)
        first.stop()
        self.ask(page, "Hello")
        expect(page.get_by_role("alert")).to_contain_text("does not answer")
        expect(page.locator(".failed")).to_contain_text("connection to the server was lost")
        self.picture(page, "gone")
        second = Facet(port=first.port)
        self.addCleanup(second.stop)
        expect(page.get_by_role("alert")).to_contain_text("is back", timeout=15000)
        page.get_by_role("button", name="Regenerate").click()
        self.settle(page)
        expect(page.locator(".failed")).to_have_count(0)
        expect(self.answers(page)).not_to_be_empty()
        self.expected("ERR_CONNECTION_REFUSED")

    def test_stop(self):
        Fake.script = [f"word{i} " for i in range(2000)], .02, TIMINGS
        page = self.visit(self.fake_url)
        for way in ("button", "key"):
            Fake.broken.clear()
            self.ask(page, "Go on")
            expect(self.answers(page).last).to_contain_text("word5 ")  # it streams
            if way == "key":
                page.keyboard.press("Escape")
            else:
                page.get_by_role("button", name="Stop").click()
            self.settle(page)
            self.assertTrue(Fake.broken.wait(10))  # the server is told
            expect(page.locator(".message.assistant").last).to_contain_text("stopped")
        self.assertEqual([m["role"] for m in Fake.asked[-1]["messages"]], ["user", "assistant", "user"])

    def test_a_reload_keeps_what_was_there(self):
        Fake.script = [f"word{i} " for i in range(2000)], .02, TIMINGS
        page = self.visit(self.fake_url)
        self.ask(page, "Go on")
        expect(self.answers(page)).to_contain_text("word5 ")
        page.reload()
        expect(self.answers(page)).to_contain_text("word5 ")

    def test_a_long_answer(self):
        words = [f"This is sentence {i} of **many**, with `code`.{'  ' if i % 7 else chr(10) * 2}" for i in range(450)]
        self.assertGreater(sum(map(len, words)), 20000)
        Fake.script = words, .002, TIMINGS
        page = self.visit(self.fake_url)
        self.ask(page, "Tell me all")
        self.settle(page)
        expect(self.answers(page)).to_contain_text("sentence 449")
        self.assertEqual(self.answers(page).locator("strong").count(), 450)
        for marks in ("*" * 20000, "[" * 20000, "`" * 3 + "x" * 20000, "**a " * 5000, "> " * 5000, "[](" * 7000, "# " * 10000 + "x", "a|b\n" + "-" * 20000 + "x", "- a\n" * 5000, "  " * 10000 + "x"):  # no text takes long
            Fake.script = [marks], 0, TIMINGS
            begin = time.time()
            page.get_by_role("button", name="New conversation").click()
            self.ask(page, "Marks")
            self.settle(page)
            self.assertLess(time.time() - begin, 5, marks[:9])

    def test_html_is_text(self):
        Fake.script = [{"reasoning_content": EVIL}, EVIL, "\n\n```html\n" + EVIL + "\n```\n"], 0, TIMINGS
        page = self.visit(self.fake_url)
        self.ask(page, EVIL)
        self.settle(page)
        for place in (".message.user .body", ".message.assistant .body pre", ".message.assistant .body p", ".thought .text", "#chat-list"):
            expect(page.locator(place)).to_contain_text("<img src=x")
        self.assertEqual(page.locator("#log :is(img, script, b, a)").count(), 0)
        page.reload()
        expect(page.locator(".message.user .body")).to_contain_text("<img src=x")
        self.assertEqual((page.title(), page.locator("#log :is(img, script, b, a)").count()), ("facet", 0))

    def test_settings_are_sent(self):
        Fake.script = ["ok"], 0, TIMINGS
        page = self.visit(self.fake_url)
        page.get_by_role("button", name="Settings").click()
        for name, value in (("Temperature", "0.5"), ("Top p", "0.9"), ("Top k", "40"), ("Seed", "7"), ("Most tokens", "100"), ("System prompt", "Be brief.")):
            page.get_by_label(name).fill(value)
        page.get_by_label("Thinking").select_option("off")
        self.picture(page, "settings")
        page.get_by_role("button", name="Done").click()
        page.reload()
        page.get_by_label("Message", exact=True).fill("one")
        page.keyboard.press("Shift+Enter")
        page.keyboard.type("two")
        page.keyboard.press("Enter")
        self.settle(page)
        sent = Fake.asked[-1]
        want = {"temperature": .5, "top_p": .9, "top_k": 40, "seed": 7, "max_tokens": 100, "enable_thinking": False}
        self.assertEqual({k: sent.get(k) for k in want}, want)
        self.assertEqual(sent["messages"], [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one\ntwo"}])

    def test_light_dark_and_narrow(self):
        Fake.script = [{"reasoning_content": "The user wants to see everything."}, *re.findall(r"\S+\s*", SHOWCASE)], 0, TIMINGS
        for name, options in (("light", {"color_scheme": "light"}), ("dark", {"color_scheme": "dark"}),
                              ("narrow", {"viewport": {"width": 360, "height": 740}})):
            with self.subTest(name):
                page = self.visit(self.fake_url, **options)
                self.ask(page, "Show me what you can write, please.")
                self.settle(page)
                for tag in ("h3", "strong", "em", "figure pre code", "ol li ul li", "table td", "blockquote", "a[rel]"):
                    expect(self.answers(page).locator(tag).first).to_be_visible()
                self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), page.viewport_size["width"])
                if name != "narrow":
                    panel = page.locator("#panel")
                    for text in ("145tokens per second", "Tokens1245From the cache1200Computed45", "DFlash, MTP", "290 of 600", "3.23", "181 %264 %342 %430 %"):
                        expect(panel).to_contain_text(text)
                self.picture(page, name)
                if name == "narrow":
                    for button, part in (("Conversations", "chats"), ("Speed", "panel")):
                        page.get_by_role("button", name=button).click()
                        expect(page.locator("#" + part)).to_be_visible()
                        self.picture(page, "narrow-" + part)
                    page.keyboard.press("Escape")
                    expect(page.locator("#panel")).to_be_hidden()
                else:
                    other = "dark" if name == "light" else "light"
                    page.get_by_role("button", name=f"Switch to {other}").click()
                    page.reload()
                    self.assertEqual(page.evaluate("document.documentElement.dataset.theme"), other)


if __name__ == "__main__":
    if not MODEL.exists():
        print(f"skipped: {MODEL} is missing")
        sys.exit(77)
    unittest.main()
