#!/usr/bin/env python3
"""The page of `facet serve` in headless Chromium: page_test.py PROGRAM [unittest arguments].

What the shipped model cannot say comes from a server of the test's own that has the same page (page_common.py).
"""
import json
import pathlib
import re
import time

from page_common import Facet, Fake, PageTest, TIMINGS, expect, main

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



class Page(PageTest):
    def test_it_talks(self):
        page = self.visit(self.facet.url)
        self.cold(page)
        self.ask(page, "Hello")
        expect(self.answers(page)).to_have_text([HELLO])
        self.settle(page)
        expect(page.get_by_role("status")).to_have_text("Answer: " + HELLO)
        panel = page.get_by_role("complementary", name="Speed of the answer")
        for text in ("tokens per second", "First token after", "From the cache", "Drafts"):
            expect(panel).to_contain_text(text)
        page.get_by_role("button", name="Regenerate").click()
        self.settle(page)
        expect(self.answers(page)).to_have_text([HELLO])
        page.locator(".message.user").get_by_role("button", name="Edit").click()
        page.get_by_label("Edit message").fill("What is 12 + 30?")
        page.keyboard.press("Enter")
        expect(self.answers(page)).to_contain_text(["42"])
        self.settle(page)
        page.reload()
        expect(page.locator(".message.user .body")).to_have_text("What is 12 + 30?")
        expect(self.answers(page)).to_contain_text(["42"])

    def test_a_thought_is_folded(self):
        page = self.visit(self.facet.url)
        self.cold(page)
        page.get_by_role("button", name="Settings").click()
        page.get_by_label("Thinking").select_option("on")
        page.keyboard.press("Escape")
        self.ask(page, "What is 12 + 30?")
        expect(self.answers(page)).to_contain_text(["42"])
        self.settle(page)
        text = page.locator(".thought .text")
        expect(text).to_be_hidden()
        page.get_by_text("Thought", exact=True).click()
        expect(text).to_be_visible()
        expect(text).not_to_be_empty()

    def choose(self, page, title, what):
        page.get_by_role("button", name="More for " + title).click()
        page.get_by_role("menuitem", name=what).click()

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
        page.locator("#chat-list .open", has_text="Hello").click()
        expect(page.locator(".message.user .body")).to_have_text("Hello")
        self.choose(page, "Hello", "Rename")
        page.get_by_label("Name of the conversation").fill("Greeting")
        page.keyboard.press("Enter")
        with page.expect_download() as download:
            self.choose(page, "Greeting", "Export")
        kept = json.loads(pathlib.Path(download.value.path()).read_text())
        self.assertEqual((download.value.suggested_filename, kept["title"], kept["messages"][0]["content"]), ("Greeting.json", "Greeting", "Hello"))
        page.on("dialog", lambda d: d.accept())
        self.choose(page, "Greeting", "Delete")
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
        expect(self.answers(page)).to_contain_text(["word5 "])
        page.reload()
        expect(self.answers(page)).to_contain_text(["word5 "])

    def test_a_long_answer(self):
        words = [f"This is sentence {i} of **many**, with `code`.{'  ' if i % 7 else chr(10) * 2}" for i in range(450)]
        self.assertGreater(sum(map(len, words)), 20000)
        Fake.script = words, .002, TIMINGS
        page = self.visit(self.fake_url)
        self.ask(page, "Tell me all")
        self.settle(page)
        expect(self.answers(page)).to_contain_text(["sentence 449"])
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
        for name, value in (("Temperature", "0.5"), ("Top p", "0.9"), ("Top k", "40"), ("Seed", "7"), ("Most tokens", "100"), ("System prompt", "Be brief."),
                            ("Min p", "0.05"), ("Repetition penalty", "1.1"), ("Presence penalty", "0.2"), ("Frequency penalty", "-0.3")):
            page.get_by_label(name, exact=True).fill(value)
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
        want = {"temperature": .5, "top_p": .9, "top_k": 40, "seed": 7, "max_tokens": 100, "min_p": .05, "repeat_penalty": 1.1, "presence_penalty": .2, "frequency_penalty": -.3, "enable_thinking": False}
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
                    for text in ("145tokens per second", "Tokens1245From the cache1200Computed45", "DFlash, MTP", "290 of 600", "3.23", "181\u00a0%264\u00a0%342\u00a0%430\u00a0%"):
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
    main()
