#!/usr/bin/env python3
"""What the page of `facet serve` has around its answers, in headless Chromium: page_features_test.py PROGRAM [unittest arguments].
Conversations and their versions, files, tools, models of a router, keys, phones. FACET_PAGE_PICTURES=DIR keeps pictures.

Long: a list of what a person may do, over the same few helpers."""
import base64
import gzip
import http.client
import io
import json
import pathlib
import re
import struct
import subprocess
import tempfile
import wave
import zlib

from page_common import Facet, Fake, MODEL, PROGRAM, PageTest, TIMINGS, expect, main

DFLASH = MODEL.parent / "facet-nano-dflash-Q8_0.gguf"
DAY = 86400 * 1000
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}
CALL = {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\": \"London\"}"}}]}


def png(width, height):
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + bytes([200, 80, 40]) * width for _ in range(height))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


class Features(PageTest):
    def say(self, page, text, answer):
        Fake.script = [answer], 0, TIMINGS
        self.ask(page, text)
        self.settle(page)

    def drop(self, page, files, event="drop", target="#log"):
        """Files as they come from a drag or the clipboard: [(name, type, bytes)]."""
        page.evaluate("""([files, event, target]) => {
          const data = new DataTransfer();
          for (const [name, type, bytes] of files) data.items.add(new File([Uint8Array.from(atob(bytes), c => c.charCodeAt(0))], name, {type}));
          const options = {bubbles: true, cancelable: true, [event === "paste" ? "clipboardData" : "dataTransfer"]: data};
          document.querySelector(target).dispatchEvent(event === "paste" ? new ClipboardEvent("paste", options) : new DragEvent(event, options));
        }""", [[(n, t, base64.b64encode(b).decode()) for n, t, b in files], event, target])

    # --- versions

    def test_versions(self):
        page = self.visit(self.fake_url)
        self.say(page, "One", "first")
        for text in ("second", "third"):
            Fake.script = [text], 0, TIMINGS
            page.get_by_role("button", name="Regenerate").click()
            self.settle(page)
        answer, mine = page.locator(".message.assistant").first, page.locator(".message.user").first
        expect(answer.locator(".versions")).to_have_text("3/3")
        answer.get_by_role("button", name="Earlier version").click()
        expect(answer.locator(".body")).to_have_text("second")
        expect(answer.locator(".versions")).to_have_text("2/3")
        self.picture(page, "versions")
        self.say(page, "Go on", "after the second")
        self.assertEqual([m["content"] for m in Fake.asked[-1]["messages"]], ["One", "second", "Go on"])
        answer.get_by_role("button", name="Later version").click()
        expect(page.locator(".message")).to_have_count(2)
        expect(answer.locator(".body")).to_have_text("third")
        answer.get_by_role("button", name="Earlier version").press("Enter")
        page.keyboard.press("Enter")  # the focus stays where it was
        expect(answer.locator(".versions")).to_have_text("1/3")
        answer.get_by_role("button", name="Later version").click()
        answer.get_by_role("button", name="Later version").click()
        # An edited message is a version as well, and what followed the old one comes back with it.
        mine.get_by_role("button", name="Edit").click()
        page.get_by_label("Edit message").fill("Two")
        Fake.script = ["of two"], 0, TIMINGS
        page.keyboard.press("Enter")
        self.settle(page)
        expect(mine.locator(".versions")).to_have_text("2/2")
        mine.get_by_role("button", name="Earlier version").click()
        expect(answer.locator(".body")).to_have_text("third")
        page.reload()
        expect(answer.locator(".body")).to_have_text("third")
        answer.get_by_role("button", name="Earlier version").click()
        expect(page.locator(".message")).to_have_count(4)
        expect(page.locator(".message").last).to_contain_text("after the second")
        mine.get_by_role("button", name="Later version").click()
        expect(self.answers(page)).to_have_text(["of two"])

    # --- the list

    def test_search_and_dates(self):
        page = self.visit(self.fake_url)
        for title, answer in (("Apples", "red fruit"), ("Pears", "green fruit with a Rare word in it"), ("Stones", "grey")):
            page.get_by_role("button", name="New conversation").click()
            self.say(page, title, answer)
        page.evaluate("""async ([day]) => { const all = []; await eachChat(c => all.push(c));
          for (const c of all) { const t = titleOf(c); c.changed -= {Apples: 0, Pears: day, Stones: 40 * day}[t]; save(c); } }""", [DAY])
        page.reload()
        self.assertEqual([h for h in page.locator("#chat-list h2").all_inner_texts()][:2], ["Today", "Yesterday"])
        expect(page.locator("#chat-list h2")).to_have_count(3)
        page.keyboard.press("Control+k")
        expect(page.get_by_label("Search conversations")).to_be_focused()
        page.keyboard.type("rare WORD")
        expect(page.locator("#chat-list li")).to_have_count(1)
        expect(page.locator("#chat-list .found")).to_have_text("… with a Rare word in it")
        self.picture(page, "search")
        page.keyboard.press("Enter")
        expect(self.answers(page)).to_contain_text(["Rare word"])
        page.get_by_label("Search conversations").fill("no such thing")
        expect(page.locator("#chat-list")).to_contain_text("Nothing is found")
        page.get_by_label("Search conversations").press("Escape")
        expect(page.locator("#chat-list li")).to_have_count(3)
        for visible in (False, True):
            page.keyboard.press("Control+b")
            expect(page.locator("#chats")).to_be_visible(visible=visible)

    def test_export_and_import(self):
        page = self.visit(self.fake_url)
        self.say(page, "Hello", "first")
        Fake.script = ["second"], 0, TIMINGS
        page.get_by_role("button", name="Regenerate").click()
        self.settle(page)
        page.get_by_role("button", name="New conversation").click()
        self.say(page, "Other", "else")
        with page.expect_download() as download:
            page.get_by_role("button", name="Export all").click()
        kept = pathlib.Path(download.value.path()).read_bytes()
        self.assertEqual(len(json.loads(kept)["conversations"]), 2)
        other = self.visit(self.fake_url)
        load = lambda name, text: other.get_by_label("Conversations to import").set_input_files({"name": name, "mimeType": "application/json", "buffer": text if isinstance(text, bytes) else json.dumps(text).encode()})
        load("all.json", kept)
        expect(other.locator("#chat-list li")).to_have_count(2)
        other.locator("#chat-list .open", has_text="Hello").click()
        expect(other.locator(".message.assistant .versions")).to_have_text("2/2")
        # As OpenAI has messages, and as llama-server's page writes them.
        load("openai.json", {"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": [{"type": "text", "text": "Question"}]}, {"role": "assistant", "content": "Reply"}]})
        expect(self.answers(other)).to_have_text(["Reply"])
        self.say(other, "More", "ok")
        self.assertEqual([m["role"] for m in Fake.asked[-1]["messages"]], ["system", "user", "assistant", "user"])
        load("llama.json", [{"conv": {"id": "c", "name": "Theirs", "lastModified": 1700000000000, "currNode": "m2"}, "messages": [
            {"id": "m0", "type": "root", "role": "system", "content": "", "parent": None}, {"id": "m1", "role": "user", "content": "Q", "parent": "m0"},
            {"id": "m2", "role": "assistant", "content": "A", "parent": "m1"}, {"id": "m3", "role": "assistant", "content": "B", "parent": "m1"}]}])
        expect(self.answers(other)).to_have_text(["A"])
        expect(other.locator(".message.assistant .versions")).to_have_text("1/2")
        # What has not its form is left out, and nothing breaks.
        load("odd.json", {"tools": "{", "leaf": 9, "messages": [{"role": "user", "content": "odd", "files": [{"kind": "image", "name": "x", "data": "http://e.com/x"}, {"kind": "text", "name": "y"}]},
             {"role": "assistant", "content": "even", "parent": 7, "stats": {"whole": 1, "timings": {"predicted_n": "many"}}, "drafted": ["a", 1], "calls": [None]}]})
        expect(self.answers(other)).to_have_text(["even"])
        self.say(other, "More", "ok")
        for text, why in ((b"no json", "bad.json: expected JSON"), ({"messages": [{"role": "robot"}]}, "bad.json, message 1: expected a message of the roles"), ({"a": 1}, "expected a conversation")):
            load("bad.json", text)
            expect(other.get_by_role("alert")).to_contain_text(why)

    def test_conversations_of_before(self):
        page = self.visit(self.fake_url)
        page.evaluate("""() => { localStorage.setItem("facet.settings", JSON.stringify({system: "Be old."}));
          localStorage.setItem("facet.chat.old", JSON.stringify({id: "old", title: "Old one", changed: 5, messages: [{role: "user", content: "Q"}, {role: "assistant", content: "A", reasoning: "", stats: {}}]})); }""")
        page.reload()
        page.locator("#chat-list .open", has_text="Old one").click()
        expect(self.answers(page)).to_have_text(["A"])
        self.say(page, "More", "ok")
        self.assertEqual([m["content"] for m in Fake.asked[-1]["messages"]], ["Be old.", "Q", "A", "More"])

    def test_a_title_has_its_row(self):
        page = self.visit(self.fake_url)
        self.say(page, "A title that is longer than the row of the list of conversations can be", "ok")
        row, title = page.locator("#chat-list li").bounding_box(), page.locator("#chat-list .open").bounding_box()
        self.assertGreater(title["width"], row["width"] - 2)

    def test_a_draft_survives(self):
        page = self.visit(self.fake_url)
        self.say(page, "First", "ok")
        box = page.get_by_label("Message", exact=True)
        box.fill("a draft here")
        page.get_by_role("button", name="New conversation").click()
        expect(box).to_have_value("")
        box.fill("a draft there")
        page.reload()
        expect(box).to_have_value("a draft there")
        page.locator("#chat-list .open", has_text="First").click()
        expect(box).to_have_value("a draft here")
        self.ask(page, "a draft here")
        self.settle(page)
        page.reload()
        expect(box).to_have_value("")

    # --- files

    def test_text_files(self):
        page = self.visit(self.fake_url)
        page.get_by_label("Files to attach").set_input_files({"name": "by-button.txt", "mimeType": "text/plain", "buffer": b"button ```` text"})
        self.drop(page, [("dropped.py", "text/x-python", "print('Grüße')\n".encode())])
        self.drop(page, [("pasted.csv", "text/csv", "a,b\n".encode("utf-16"))], "paste", "#input")
        expect(page.locator("#files .file")).to_have_count(3)
        page.get_by_role("button", name="Remove pasted.csv").click()
        expect(page.locator("#files .file")).to_have_count(2)
        self.picture(page, "files")
        self.drop(page, [])
        for name, data, why in (("program.bin", b"\x7fELF\0\0\1", "program.bin: no text"), ("latin.txt", "Grüße".encode("latin-1"), "latin.txt: no text"),
                                ("large.txt", b"x" * ((1 << 20) + 1), "large.txt: 1.0 MB, expected at most 1 MB"), ("cat.png", png(4, 4), "cat.png: this model takes no pictures")):
            self.drop(page, [(name, "image/png" if name == "cat.png" else "", data)])
            expect(page.get_by_role("alert")).to_contain_text(why)
        page.get_by_role("button", name="Close").click()
        expect(page.get_by_role("alert")).to_be_hidden()
        expect(page.locator("#files .file")).to_have_count(2)
        self.say(page, "Read this", "ok")
        self.assertEqual(Fake.asked[-1]["messages"], [{"role": "user", "content": "by-button.txt:\n`````\nbutton ```` text\n`````\n\ndropped.py:\n```\nprint('Grüße')\n```\n\nRead this"}])
        expect(page.locator("#files .file")).to_have_count(0)
        page.reload()
        expect(page.locator(".message.user .file .name").first).to_have_text("by-button.txt")
        expect(page.locator(".message.user .body")).to_have_text("Read this")

    def test_pictures(self):
        self.addCleanup(setattr, Fake, "models", Fake.models)
        Fake.models = [{**Fake.models[0], "input_modalities": ["text", "image"]}]
        page = self.visit(self.fake_url)
        page.wait_for_function("state.takes.image")
        data = png(600, 300)
        self.drop(page, [("red.png", "image/png", data)], "paste", "#input")
        expect(page.locator("#files img")).to_have_count(1)
        self.assertEqual(page.evaluate("(() => { const i = document.querySelector('#files img'); return [i.naturalWidth, i.naturalHeight]; })()"), [256, 128])
        self.drop(page, [("broken.png", "image/png", data[:60])])
        expect(page.get_by_role("alert")).to_contain_text("broken.png: this browser cannot read the picture.")
        self.say(page, "What is it?", "red")
        expect(page.get_by_role("alert")).to_be_hidden()  # what was refused is not sent: that is over
        self.assertEqual(Fake.asked[-1]["messages"][0]["content"], [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(data).decode()}}, {"type": "text", "text": "What is it?"}])
        self.picture(page, "pictures")
        self.assertEqual([page.evaluate("m => contentParts({content: '', files: [{kind: 'audio', name: 'a', mime: m, data: 'data:' + m + ';base64,AAAA'}]})[0].input_audio", m)["format"]
                          for m in ("audio/mpeg", "audio/x-wav", "audio/flac")], ["mp3", "wav", "flac"])

    def test_pictures_reach_the_model(self):
        """Pasted and dropped, sent, kept over a reload, sent again with the next question; a large one is taken, too."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        mmproj = pathlib.Path(folder.name) / "mmproj.gguf"
        subprocess.run([PROGRAM, "synth", "--mmproj", "nano", "--quant", "BF16", mmproj], check=True, capture_output=True)
        self.addCleanup((facet := Facet("--mmproj", str(mmproj), "--image-tokens", "70")).stop)
        page = self.visit(facet.url)
        page.wait_for_function("state.takes.image && state.takes.audio")
        asked = []
        page.on("request", lambda r: asked.append(r.post_data_json) if r.method == "POST" and "completions" in r.url else None)
        self.drop(page, [("a.png", "image/png", png(600, 300))], "paste", "#input")
        self.drop(page, [("b.png", "image/png", png(8000, 6000))])  # 48 million pixels
        expect(page.locator("#files img")).to_have_count(2, timeout=30000)
        self.ask(page, "What are they?")
        self.settle(page)
        expect(self.answers(page).first).not_to_have_text("")
        self.assertEqual([p["type"] for p in asked[0]["messages"][-1]["content"]], ["image_url", "image_url", "text"])
        page.reload()
        expect(page.locator(".message.user .file")).to_have_count(2)
        self.ask(page, "And now?")
        self.settle(page)
        self.assertEqual(asked[1]["messages"][0]["content"], asked[0]["messages"][-1]["content"])
        expect(page.get_by_role("alert")).to_have_count(0)

    def test_an_answer_about_a_picture(self):
        vision = MODEL.parent / "vision"
        self.addCleanup((facet := Facet("--mmproj", str(vision / "facet-nano-mmproj-Q8_0.gguf"), "--image-tokens", "70")).stop)
        page = self.visit(facet.url)
        page.wait_for_function("state.takes.image")
        self.drop(page, [("circles.png", "image/png", (vision / "circles.png").read_bytes())], "paste", "#input")
        expect(page.locator("#files img")).to_have_count(1)
        self.ask(page, "What is in the picture?")
        self.settle(page)
        expect(self.answers(page).first).to_contain_text("red circles")

    def test_a_recording_reaches_the_model(self):
        """The device beeps once a second. Elsewhere than on localhost and https there is no microphone, and no button."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        mmproj = pathlib.Path(folder.name) / "mmproj.gguf"
        subprocess.run([PROGRAM, "synth", "--mmproj", "nano", "--quant", "BF16", mmproj], check=True, capture_output=True)
        self.addCleanup((facet := Facet("--mmproj", str(mmproj))).stop)
        page = self.visit(facet.url)
        asked = []
        page.on("request", lambda r: asked.append(r.post_data_json) if r.method == "POST" and "completions" in r.url else None)
        page.get_by_role("button", name="Record sound").click()
        page.wait_for_timeout(2500)
        self.picture(page, "recording")
        page.get_by_role("button", name="Stop recording").click()
        expect(page.locator("#files .name")).to_have_text("recording.wav")
        expect(page.get_by_role("button", name="Record sound")).to_be_visible()
        self.ask(page, "What is it?")
        self.settle(page)
        expect(self.answers(page).first).not_to_have_text("")
        sound = asked[0]["messages"][0]["content"][0]["input_audio"]
        with wave.open(io.BytesIO(base64.b64decode(sound["data"]))) as w:
            self.assertEqual((sound["format"], w.getnchannels(), w.getsampwidth(), w.getframerate()), ("wav", 1, 2, 16000))
            self.assertGreater(w.getnframes(), 16000)
            self.assertGreater(max(abs(x) for x in memoryview(w.readframes(w.getnframes())).cast("h")), 1000)
        expect(page.get_by_role("alert")).to_have_count(0)
        self.addCleanup(setattr, Fake, "models", Fake.models)
        Fake.models = [{**Fake.models[0], "input_modalities": ["text", "audio"]}]
        far = self.visit(self.fake_url.replace("127.0.0.1", "page.test"))
        far.wait_for_function("state.takes.audio")
        expect(far.locator("#record")).to_be_hidden()

    # --- what a conversation has of its own

    def test_tools(self):
        page = self.visit(self.fake_url)
        page.get_by_role("button", name="Settings").click()
        page.get_by_text("Tools and the form of answers").click()
        tools = page.get_by_label("Tools", exact=True)
        for text, why in (("[", "No JSON"), ("{}", "Expected a list"), ("[{}]", "Expected a list")):
            tools.fill(text)
            expect(page.locator("#tools-wrong")).to_contain_text(why)
        page.get_by_role("button", name="Done").click()
        expect(page.get_by_role("dialog", name="Settings")).to_be_visible()  # it stays until it is right
        tools.fill(json.dumps([TOOL]))
        expect(page.locator("#tools-wrong")).to_be_hidden()
        page.get_by_label("JSON schema of answers").fill('{"type": "object"}')
        page.get_by_role("button", name="Done").click()
        Fake.script = [CALL], 0, TIMINGS
        self.ask(page, "Weather?")
        self.settle(page)
        self.assertEqual(Fake.asked[-1]["tools"], [TOOL])
        self.assertEqual(Fake.asked[-1]["response_format"]["json_schema"]["schema"], {"type": "object"})
        card = page.get_by_role("region", name="Call of get_weather")
        expect(card).to_contain_text('"city": "London"')
        card.get_by_label("Result of get_weather").fill("18 degrees")
        self.picture(page, "tools")
        Fake.script = ["It is 18 degrees."], 0, TIMINGS
        page.get_by_role("button", name="Send result").click()
        self.settle(page)
        self.assertEqual(Fake.asked[-1]["messages"][1:], [
            {"role": "assistant", "content": "", "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\": \"London\"}"}}]},
            {"role": "tool", "tool_call_id": "call_1", "content": "18 degrees"}])
        expect(page.get_by_role("region", name="Result of get_weather")).to_contain_text("18 degrees")
        expect(self.answers(page).last).to_have_text("It is 18 degrees.")
        page.get_by_role("button", name="New conversation").click()
        self.say(page, "Hello", "ok")
        self.assertNotIn("tools", Fake.asked[-1])

    def test_a_system_prompt_of_its_own(self):
        page = self.visit(self.fake_url)
        def system(label, text):
            page.get_by_role("button", name="Settings").click()
            page.get_by_label(label, exact=True).fill(text)
            page.get_by_role("button", name="Done").click()
        system("System prompt of new conversations", "Be usual.")
        system("System prompt", "Be special.")
        self.say(page, "One", "ok")
        self.assertEqual(Fake.asked[-1]["messages"][0], {"role": "system", "content": "Be special."})
        page.get_by_role("button", name="New conversation").click()
        self.say(page, "Two", "ok")
        self.assertEqual(Fake.asked[-1]["messages"][0]["content"], "Be usual.")
        page.locator("#chat-list .open", has_text="One").click()
        expect(page.locator(".message.user .body").first).to_have_text("One")  # it is read from the database
        self.say(page, "Three", "ok")
        self.assertEqual(Fake.asked[-1]["messages"][0], {"role": "system", "content": "Be special."})

    # --- real servers

    def test_real_tools_and_schema(self):
        """The program takes what the page sends."""
        page = self.visit(self.facet.url)
        page.get_by_role("button", name="Settings").click()
        page.get_by_text("Tools and the form of answers").click()
        page.get_by_label("JSON schema of answers").fill('{"type": "object", "properties": {"a": {"enum": [7]}}, "required": ["a"], "additionalProperties": false}')
        page.get_by_role("button", name="Done").click()
        self.ask(page, "Hello")
        self.settle(page)
        self.assertEqual(json.loads(self.answers(page).inner_text()), {"a": 7})

    def test_drafted_tokens(self):
        server = Facet("--draft", str(DFLASH), "--draft-min", "2")  # whether they pay or not: a busy machine may find that they do not
        self.addCleanup(server.stop)
        # What chunks tell of is what was accepted, but for the end: there a step may have more than the answer takes.
        c = http.client.HTTPConnection("127.0.0.1", server.port)
        c.request("POST", "/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": "Count from 1 to 30"}], "temperature": 0, "max_tokens": 60, "stream": True, "timings_per_token": True}))
        chunks = [json.loads(line[6:]) for line in c.getresponse().read().decode().split("\n") if line.startswith("data: {")]
        c.close()
        accepted, told = chunks[-1]["timings"]["draft_n_accepted"], sum(k.get("drafted_tokens", 0) for k in chunks)
        self.assertGreater(told, 0)
        self.assertTrue(accepted - 8 <= told <= accepted, (told, accepted))
        page = self.visit(server.url)
        self.cold(page)
        page.get_by_role("button", name="Settings").click()
        page.get_by_label("Most tokens").fill("80")
        page.get_by_role("button", name="Done").click()
        self.ask(page, "Count from 1 to 30")
        self.settle(page)
        drafted = page.evaluate("state.chat.messages[1].drafted")
        self.assertTrue(drafted)
        page.get_by_label("Colour drafted tokens").check()
        parts = lambda: page.evaluate("[...CSS.highlights.get('drafted') || []].map(r => r.startContainer.data.slice(r.startOffset, r.endOffset))")
        text = page.evaluate("state.chat.messages[1].content")
        self.assertEqual(parts(), [text[a:b] for a, b in zip(drafted[::2], drafted[1::2])])
        self.picture(page, "drafted")
        page.reload()
        expect(self.answers(page)).to_have_text([text])
        self.assertTrue(parts())
        page.get_by_label("Colour drafted tokens").uncheck()
        self.assertEqual(parts(), [])

    def test_what_an_answer_waits_for(self):
        page = self.visit(self.fake_url)
        note = lambda: page.evaluate("getComputedStyle(document.querySelector('.message.assistant .body'), '::before').content")
        for event, text in (({"load_progress": {"status": "loading", "value": .4}}, "The model is loaded: loading, 40 %"),
                            ({"choices": [], "prompt_progress": {"total": 900, "processed": 512}}, "The prompt is read: 512 of 900 tokens")):
            Fake.seen.clear()
            Fake.script = Fake.until_seen({"event": event}), .25, TIMINGS
            page.get_by_role("button", name="New conversation").click()
            self.ask(page, "Hello")
            page.wait_for_function("t => getComputedStyle(document.querySelector('.message.assistant .body'), '::before').content.includes(t)", arg=text)
            Fake.seen.set()
            self.settle(page)
            self.assertIn(note(), ("none", '""'))

    def test_models_of_a_router(self):
        router = Facet("-m", f"other={MODEL}", "--models-max", "1", model=f"nano={MODEL}")
        self.addCleanup(router.stop)
        page = self.visit(router.url)
        choice, fact = page.get_by_label("Model", exact=True), page.locator("#model")
        expect(choice.locator("option")).to_have_text(["nano (not loaded)", "other (not loaded)"])
        expect(fact).to_contain_text("not loaded")
        page.get_by_role("button", name="Load", exact=True).click()
        expect(fact).to_contain_text("loaded · context 4,096", timeout=30000)
        expect(page.get_by_role("button", name="Unload")).to_be_visible()
        self.picture(page, "router")
        choice.select_option("other")
        expect(fact).to_contain_text("loaded · context 4,096", timeout=30000)
        expect(choice.locator("option")).to_have_text(["nano (not loaded)", "other"], timeout=30000)
        self.ask(page, "Hello")
        self.settle(page)
        expect(page.locator(".message.assistant .who")).to_have_text("other")
        page.get_by_role("button", name="Unload").click()
        expect(choice.locator("option")).to_have_text(["nano (not loaded)", "other (not loaded)"], timeout=30000)
        # A question loads it again, and a new conversation keeps the choice.
        page.get_by_role("button", name="New conversation").click()
        self.ask(page, "Hello")
        self.settle(page)
        expect(page.locator(".message.assistant .who")).to_have_text("other")
        expect(self.answers(page)).not_to_be_empty()

    def test_a_router_on_a_phone(self):
        router = Facet("-m", f"other={MODEL}", model=f"nano={MODEL}")
        self.addCleanup(router.stop)
        page = self.visit(router.url, viewport={"width": 360, "height": 740}, has_touch=True)
        expect(page.get_by_label("Model", exact=True)).to_be_visible()
        page.get_by_role("button", name="Load", exact=True).click()
        expect(page.locator("#model")).to_contain_text("loaded · context 4,096", timeout=30000)
        self.picture(page, "router-phone")
        self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), 360)

    # --- the browser

    def test_without_a_database(self):
        page = self.visit(self.fake_url)
        page.add_init_script("Object.defineProperty(globalThis, 'indexedDB', {value: undefined})")
        page.reload()
        expect(page.get_by_role("alert")).to_contain_text("This browser keeps nothing")
        self.say(page, "Hello", "ok")
        page.get_by_role("button", name="New conversation").click()
        page.locator("#chat-list .open", has_text="Hello").click()
        expect(self.answers(page)).to_have_text(["ok"])

    def test_copy(self):
        """Also where the browser has no clipboard for the page: on another machine, without https."""
        page = self.visit(self.fake_url.replace("127.0.0.1", "page.test"))
        self.assertFalse(page.evaluate("isSecureContext || 'clipboard' in navigator"))
        self.say(page, "Code", "```\nto copy\n```\n")
        page.evaluate("() => { globalThis.later = []; const usual = setTimeout; globalThis.setTimeout = (f, ms) => ms === 1500 ? later.push(f) : usual(f, ms); }")
        page.evaluate("document.addEventListener('copy', () => { globalThis.copied = String(document.activeElement.value).slice(document.activeElement.selectionStart, document.activeElement.selectionEnd); })")
        for button, want in ((page.locator("figure .copy"), "to copy\n"), (page.locator(".message.user").get_by_role("button", name="Copy"), "Code")):
            button.click()
            self.assertEqual(page.evaluate("copied"), want)
            expect(page.get_by_text("Copied", exact=True)).to_be_visible()
            expect(page.get_by_role("status")).to_have_text("Copied.")
            page.evaluate("later.splice(0).forEach(f => f())")  # when a second and a half is over
            expect(page.get_by_text("Copied", exact=True)).to_have_count(0)

    def test_a_finger_finds_everything(self):
        page = self.visit(self.fake_url, viewport={"width": 360, "height": 740}, has_touch=True)
        self.say(page, "Show", "# A\n\n```python\nx\n```\n")
        Fake.script = ["again"], 0, TIMINGS
        page.get_by_role("button", name="Regenerate").click()
        self.settle(page)
        small = """() => [...document.querySelectorAll("button, select, summary, input:not([type=checkbox]), textarea")].filter(n => n.checkVisibility()).map(n => [n.textContent || n.id, n.getBoundingClientRect()])
          .filter(([_, r]) => r.width && (r.width < 43.9 || r.height < 43.9)).map(([name, r]) => `${name} ${r.width} x ${r.height}`)"""
        self.assertEqual(page.evaluate(small), [])
        for button in ("Conversations", "Speed", "Settings"):
            page.get_by_role("button", name=button).first.click()
            self.assertEqual(page.evaluate(small), [], button)
            self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), 360)
            wide = page.evaluate("() => [...document.querySelectorAll('button, input, select, textarea')].filter(n => n.checkVisibility() && !n.closest('.unseen')).map(n => [n.id || n.textContent, n.getBoundingClientRect().right]).filter(([_, r]) => r > 360)")
            self.assertEqual(wide, [], button)

    def test_no_share_is_broken(self):
        page = self.visit(self.fake_url)
        Fake.script = ["ok"], 0, {**TIMINGS, "draft_accepted_at": [1, 1, .5], "draft_inactive_reason": "drafts did not pay and were given up"}
        self.ask(page, "Hello")
        self.settle(page)
        for what, of in (("li", "height"), (".bar", "width")):  # and every bar is as long
            sizes = page.evaluate(f"[...document.querySelectorAll('.bars {what}')].map(n => n.getBoundingClientRect().{of})")
            self.assertEqual(len(set(sizes)), 1, sizes)
        expect(page.get_by_role("complementary", name="Speed of the answer")).to_contain_text("Drafts did not pay and were given up.")
        expect(page.locator(".bars")).to_contain_text("100\u00a0%")

    def test_size_and_first_paint(self):
        size = len(gzip.compress(Fake.body))
        times = [self.visit(self.facet.url).evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime") for _ in range(5)]
        print(f"page: {size} bytes compressed, first paint after {min(times):.0f} ms (of 5: {' '.join(f'{t:.0f}' for t in times)})")
        self.assertLess(size, 600_000)
        self.assertLess(min(times), 300)

    def test_every_size_and_theme(self):
        Fake.script = [{"reasoning_content": "Short."}, *re.findall(r"\S+\s*|\s+", EVERYTHING)], 0, {**TIMINGS, "draft_accepted_at": [1, .64, .42, .3]}
        for width, height in ((1920, 1080), (1280, 720), (820, 1180), (360, 740)):
            for theme in ("light", "dark"):
                page = self.visit(self.fake_url, viewport={"width": width, "height": height}, color_scheme=theme)
                self.ask(page, "Show me what you can write, please.")
                self.settle(page)
                self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), width)
                self.picture(page, f"{width}-{theme}")
                page.context.close()


EVERYTHING = """The roots of $ax^2 + bx + c = 0$ are as follows.

$$x_{1,2} = \\frac{-b \\pm \\sqrt{b^2 - 4ac}}{2a}$$

\\[
\\begin{aligned} \\sum_{k=1}^n k &= \\frac{n(n+1)}{2} \\\\ \\int_0^\\infty e^{-x^2}\\,dx &= \\frac{\\sqrt\\pi}{2} \\end{aligned}
\\]

| language | typed | year |
|:--|:-:|--:|
| Python | no | 1991 |
| Rust | **yes** | 2015 |

- [x] read
- [ ] write

```rust
fn main() {
    let answer: u32 = 42; // a remark
    println!("{answer}");
}
```
"""

if __name__ == "__main__":
    main()
