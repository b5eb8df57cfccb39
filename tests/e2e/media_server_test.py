"""Pictures and sound over every API of `facet serve`: what is asked twice is answered alike and not encoded twice, other
pictures are other answers, what cannot be taken is one error or one line, and usage counts what there is."""
import base64
import concurrent.futures
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import threading
import unittest

from serving import MODELS, PROGRAM, Serving

DATA = pathlib.Path(__file__).resolve().parents[1] / "data" / "media"
NANO = MODELS / "facet-nano-Q8_0.gguf"


def b64(path):
    return base64.b64encode((DATA / path).read_bytes()).decode()


def url(path):
    kind = {"jpg": "jpeg", "png": "png", "webp": "webp", "gif": "gif"}[path.rsplit(".", 1)[1]]
    return f"data:image/{kind};base64," + b64(path)


RED, GREY, LOSSY = "kinds/baseline-444.jpg", "kinds/grey.jpg", "kinds/lossy.webp"
SOUND = "tone.flac"


def image(path, **more):
    return {"type": "image_url", "image_url": {"url": url(path), **more}}


def video(paths, fps, **more):
    return {"type": "video", "frames": [url(p) for p in paths], "fps": fps, **more}


def text(s):
    return {"type": "text", "text": s}


class Media(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        mmproj = pathlib.Path(cls.folder.name) / "mmproj.gguf"
        subprocess.run([PROGRAM, "synth", "--mmproj", "nano", "--quant", "BF16", mmproj], check=True, capture_output=True)
        cls.mmproj = mmproj
        cls.server = Serving("-m", NANO, "--mmproj", mmproj, "-c", 2048, "--parallel", 3, "--image-tokens", 70, "--media-path", DATA / "kinds")
        cls.blind = Serving("-m", NANO, "--mmproj", "none", "-c", 512)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.blind.stop()
        cls.folder.cleanup()

    def post(self, path, body, status=200, server=None):
        got, headers, answer = (server or self.server).request("POST", path, body)
        self.assertEqual(got, status, answer)
        return answer, headers

    def chat(self, parts, status=200, server=None, **more):
        messages = parts if parts and "role" in parts[0] else [{"role": "user", "content": parts}]
        return self.post("/v1/chat/completions",
                         {"messages": messages, "max_tokens": 12, "temperature": 0, **more}, status, server)[0]

    def words(self, answer):
        return answer["choices"][0]["message"]["content"]

    def metric(self, name):
        out = self.server.request("GET", "/metrics")[2]
        return float(next(l.split()[1] for l in out.decode().splitlines() if l.startswith(name + " ")))

    def test_a_second_turn_encodes_nothing_and_is_found(self):
        first = self.chat([text("What is this?"), image(RED)])
        usage = first["usage"]
        self.assertGreater(usage["prompt_tokens_details"]["image_tokens"], 50)
        self.assertEqual(usage["prompt_tokens_details"]["audio_tokens"], 0)
        encoded = self.metric("facet_media_encoded_total")
        again = self.chat([text("What is this?"), image(RED)])
        self.assertEqual(self.words(again), self.words(first))
        self.assertEqual(again["timings"]["media"]["encoded_n"], 0)
        self.assertGreaterEqual(again["usage"]["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"] - 2)
        turn = self.chat([{"role": "user", "content": [text("What is this?"), image(RED)]},
                          {"role": "assistant", "content": self.words(first)},
                          {"role": "user", "content": "And now?"}])
        # All but how the turn of the model begins, which is another one once it has ended.
        self.assertGreaterEqual(turn["usage"]["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"] - 5)
        self.assertEqual(self.metric("facet_media_encoded_total"), encoded)

    def test_pictures_do_not_meet(self):
        fresh = {"cache_prompt": False}
        answers = {p: self.chat([image(p), text("Describe.")], **fresh) for p in (RED, GREY, LOSSY)}
        for p, a in answers.items():
            self.assertEqual(self.words(self.chat([image(p), text("Describe.")])), self.words(a), p)
        prompts = [self.chat([image(p), text("Describe.")], logprobs=True, top_logprobs=3, **fresh) for p in (RED, GREY)]
        first = [p["choices"][0]["logprobs"]["content"][0]["top_logprobs"][0]["logprob"] for p in prompts]
        self.assertNotEqual(*first)

    def test_every_dialect_reads_the_same_picture(self):
        body = {"max_tokens": 12, "temperature": 0}
        want = self.chat([image(GREY), text("Name it.")])
        n = want["usage"]["prompt_tokens"]
        said = self.words(want)
        a, _ = self.post("/v1/messages", {**body, "messages": [{"role": "user", "content": [
            {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": b64(GREY)}},
            text("Name it.")]}]})
        self.assertEqual((a["content"][0]["text"], a["usage"]["input_tokens"] + a["usage"]["cache_read_input_tokens"]),
                         (said, n))
        r, _ = self.post("/v1/responses", {"max_output_tokens": 12, "temperature": 0, "input": [
            {"role": "user", "content": [{"type": "input_image", "image_url": url(GREY)},
                                         {"type": "input_text", "text": "Name it."}]}]})
        self.assertEqual((r["output"][-1]["content"][0]["text"], r["usage"]["input_tokens"]), (said, n))
        self.assertEqual(r["usage"]["input_tokens_details"]["image_tokens"],
                         want["usage"]["prompt_tokens_details"]["image_tokens"])
        o, _ = self.post("/api/chat", {"stream": False, "options": {"temperature": 0, "num_predict": 12}, "think": False,
                                       "messages": [{"role": "user", "content": "Name it.", "images": [b64(GREY)]}]})
        self.assertEqual((o["message"]["content"], o["prompt_eval_count"]), (said, n))
        g, _ = self.post("/api/generate", {"stream": False, "options": {"temperature": 0, "num_predict": 12},
                                           "think": False, "prompt": "Name it.", "images": [b64(GREY)]})
        self.assertEqual((g["response"], g["prompt_eval_count"]), (said, n))
        props = self.server.request("GET", "/props")[2]
        rendered, _ = self.post("/apply-template", {"messages": [{"role": "user", "content": [image(GREY),
                                                                                              text("Name it.")]}]})
        prompt = rendered["prompt"].replace("<|image|>", props["media_marker"])
        call, _ = self.post("/tokenize", {"content": "<|tool_call>"})  # never drawn in a chat without tools
        c, _ = self.post("/completion", {"logit_bias": [[call["tokens"][0], False]], "n_predict": 12, "temperature": 0, "return_tokens": True, "prompt": {
            "prompt_string": prompt, "multimodal_data": [b64(GREY)]}})
        self.assertEqual((c["content"], c["tokens_evaluated"]), (said, n))

    def test_counts_agree_with_usage(self):
        parts = [image(RED), text("One"), image(LOSSY), text("two."),
                 {"type": "input_audio", "input_audio": {"data": b64(SOUND), "format": "flac"}}]
        usage = self.chat(parts)["usage"]
        self.assertGreater(usage["prompt_tokens_details"]["audio_tokens"], 0)
        n, _ = self.post("/v1/chat/completions/input_tokens", {"messages": [{"role": "user", "content": parts}]})
        self.assertEqual(n["input_tokens"], usage["prompt_tokens"])

    def test_detail_and_the_parts_own_budget(self):
        def n(**more):
            return self.chat([image(RED, **more), text("x")])["usage"]["prompt_tokens_details"]["image_tokens"]
        self.assertEqual(n(detail="low"), n())  # the server gives no picture more than its own budget
        self.assertEqual(n(detail="high"), n())
        self.chat([image(RED, detail="best")], status=400)

    def test_what_cannot_be_read_in_the_newest_message_is_an_error(self):
        broken = base64.b64encode((DATA / RED).read_bytes()[:700]).decode()
        cases = [(image(RED)["image_url"]["url"] + "!", "base64"),
                 ("data:image/png;base64,AAAA", "JPEG"),
                 ("data:image/jpeg;base64," + broken, ""),
                 ("https://127.0.0.1/a.png", "fetches nothing"),
                 ("file:///etc/passwd", "")]
        for u, what in cases:
            e = self.chat([text("hi"), {"type": "image_url", "image_url": {"url": u}}], status=400)["error"]
            self.assertIn("messages[0].content[1]", e["message"] + str(e["param"]), u)
            self.assertIn(what, e["message"], u)

    def test_files_of_the_folder_alone(self):
        def ask(name, status=200):
            return self.chat([{"type": "image_url", "image_url": {"url": name}}, text("x")], status=status)
        self.assertEqual(self.words(ask("file://grey.jpg")), self.words(self.chat([image(GREY), text("x")])))
        self.assertEqual(self.words(ask("file://../kinds/grey.jpg")), self.words(ask("file://grey.jpg")))
        for name in ("file:///etc/passwd", "file://../tone.flac", "file://..", "file://", "file://nothing.png",
                     "FILE://grey.jpg", "file://localhost/etc/passwd", "file://../../../README.md"):
            self.assertIn("messages[0]", str(ask(name, 400)["error"]), name)

    def test_no_url_leads_into_a_private_network(self):
        """Whatever is allowed: nothing is connected to, and the conversation goes on where it is an earlier turn's."""
        fetches = Serving("-m", NANO, "--mmproj", self.mmproj, "-c", 1024, "--image-tokens", 70, "--allow-media-urls", "*")
        try:
            for host in ("127.0.0.1", "localhost", "[::1]", "169.254.169.254"):
                part = {"type": "image_url", "image_url": {"url": f"http://{host}:{fetches.port}/health"}}
                e = self.chat([part, text("x")], status=400, server=fetches)["error"]
                self.assertIn("messages[0].content[0]", e["message"] + str(e["param"]))
            a = self.chat([{"role": "user", "content": [part, image(GREY)]}, {"role": "assistant", "content": "ok"},
                           {"role": "user", "content": "hi"}], server=fetches)
            self.assertGreater(a["usage"]["prompt_tokens_details"]["image_tokens"], 50)
            self.assertNotIn("GET /health", fetches.log_text())
        finally:
            fetches.stop()

    def test_in_earlier_turns_it_is_a_line(self):
        broken = base64.b64encode((DATA / RED).read_bytes()[:700]).decode()
        a = self.post("/v1/chat/completions", {"max_tokens": 4, "messages": [
            {"role": "user", "content": [text("see"), {"type": "image_url", "image_url": {
                "url": "data:image/jpeg;base64," + broken}}]},
            {"role": "assistant", "content": "ok"}, {"role": "user", "content": "go on"}]})[1]
        self.assertEqual(a.get("x-facet-left-out"), "media=1")
        self.server.wait_log("left out kind=chat media=1")
        rendered, _ = self.post("/apply-template", {"messages": [
            {"role": "user", "content": [text("see"), {"type": "image_url", "image_url": {"url": "data:,x"}}]},
            {"role": "assistant", "content": "ok"}, {"role": "user", "content": "go on"}]})
        self.assertIn("see\n[picture left out: it cannot be read]", rendered["prompt"])

    def test_the_oldest_go_where_the_context_ends(self):
        messages = []
        for i in range(30):
            messages += [{"role": "user", "content": [text(f"picture {i}"), image(RED)]},
                         {"role": "assistant", "content": "seen"}]
        messages.append({"role": "user", "content": [text("the last"), image(GREY)]})
        body = {"max_tokens": 4, "messages": messages}
        a, answer = self.post("/v1/chat/completions", body)
        self.assertLess(a["usage"]["prompt_tokens"], 2048)
        self.assertGreater(a["usage"]["prompt_tokens"], 1700)
        self.assertRegex(answer["x-facet-left-out"], r"media=\d+")
        # Those that alone are too many for the context are an error.
        e = self.chat([image(RED)] * 32, status=400)["error"]
        self.assertEqual(e["code"], "context_length_exceeded")
        self.assertIn("at most 32", self.chat([image(RED)] * 33, status=400)["error"]["message"])

    def rendered(self, parts, server=None):
        return self.post("/apply-template", {"messages": [{"role": "user", "content": parts}]}, server=server)[0]["prompt"]

    def test_a_video_is_pictures_with_their_times(self):
        parts = [video([RED, GREY, LOSSY], 0.5), text("What happens?")]
        prompt = self.rendered(parts)
        self.assertIn("user\n00:00 <|image|> 00:02 <|image|> 00:04 <|image|>What happens?<turn|>", prompt)
        a = self.chat(parts, cache_prompt=False)
        self.chat(parts)
        # The same tokens as those of the text with pictures by hand: all are found in the cache.
        marker = self.server.request("GET", "/props")[2]["media_marker"]
        b, _ = self.post("/completion", {"n_predict": 1, "temperature": 0, "prompt": {
            "prompt_string": prompt.removeprefix("<bos>").replace("<|image|>", marker),
            "multimodal_data": [b64(p) for p in (RED, GREY, LOSSY)]}})
        self.assertEqual(b["tokens_evaluated"], a["usage"]["prompt_tokens"])
        self.assertGreaterEqual(b["timings"]["cache_n"], b["tokens_evaluated"] - 2)
        # Another order of frames, and other times, are other prompts.
        self.assertNotEqual(self.rendered([video([RED, GREY, LOSSY], 1), text("What happens?")]), prompt)
        again = self.chat(parts)
        self.assertEqual((self.words(again), again["timings"]["media"]["encoded_n"]), (self.words(a), 0))

    def test_of_a_long_video_32_frames_are_taken(self):
        prompt = self.rendered([video([GREY] * 100, 10)])
        times = [f"00:{i * 100 // 32 // 10:02}" for i in range(32)]
        self.assertIn(" ".join(t + " <|image|>" for t in times), prompt)
        # A tenth of a second as a binary number: frame 30 is at 3 s, not a bit before.
        self.assertIn("00:03 <|image|>", self.rendered([video([GREY] * 31, 10)])[-300:])
        e = self.chat([video([GREY] * 32, 1) for _ in range(5)], status=400)["error"]
        self.assertIn("at most 128 frames", e["message"])

    def test_what_is_wrong_with_a_video_is_an_error_or_a_line(self):
        good = video([RED, GREY], 1)
        broken = {**good, "frames": [url(RED), "data:image/png;base64,AAAA", "data:,x"]}
        for part, where, what in (({**good, "fps": None}, "fps", "frames a second"), ({**good, "fps": 0}, "fps", ""),
                                  ({**good, "fps": "2"}, "fps", ""), ({**good, "fps": 1e9}, "fps", ""),
                                  ({**good, "frames": []}, "frames", "an empty one"),
                                  ({"type": "video", "video": "data:video/mp4;base64,AAAA"}, "frames", "found none"),
                                  ({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}, "frames", ""),
                                  (broken, "frames[2]", "data: URL"),
                                  ({**good, "frames": broken["frames"][:2]}, "frames[1]", "JPEG"), ({**good, "frames": [1]}, "frames[0]", "data: URL"),
                                  ({**good, "max_soft_tokens": 3}, "max_soft_tokens", "")):
            e = self.chat([text("hi"), part], status=400)["error"]
            self.assertIn(f"messages[0].content[1].{where}", e["message"] + str(e["param"]))
            self.assertIn(what, e["message"])
        for part, server, why in ((broken, self.server, "it cannot be read"), ({**good, "fps": 0}, self.server, "it cannot be read"),
                                  (good, self.blind, "this model takes none")):
            p, headers = self.post("/apply-template", {"messages": [
                {"role": "user", "content": [text("see"), part, part]}, {"role": "assistant", "content": "ok"},
                {"role": "user", "content": "go on"}]}, server=server)
            # One line for each video, however many of its frames cannot be taken.
            self.assertEqual(p["prompt"].count(f"[video left out: {why}]"), 2, p["prompt"])
        e = self.chat([good], status=400, server=self.blind)["error"]
        self.assertIn("found a video", e["message"])

    def test_tools_give_pictures_back(self):
        messages = [{"role": "user", "content": "look"},
                    {"role": "assistant", "tool_calls": [{"id": "c", "type": "function",
                                                          "function": {"name": "see", "arguments": "{}"}}]},
                    {"role": "tool", "tool_call_id": "c", "content": [text("here"), image(GREY)]}]
        a = self.chat(messages)
        self.assertGreater(a["usage"]["prompt_tokens_details"]["image_tokens"], 50)
        b, _ = self.post("/v1/messages", {"max_tokens": 12, "temperature": 0, "messages": [
            {"role": "user", "content": "look"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "see", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [
                text("here"), {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg",
                                                           "data": b64(GREY)}}]}]}]})
        self.assertEqual(b["usage"]["input_tokens"] + b["usage"]["cache_read_input_tokens"], a["usage"]["prompt_tokens"])

    def test_structured_answers_and_streams(self):
        schema = {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": {
            "type": "object", "properties": {"n": {"type": "integer", "maximum": 9, "minimum": 0}}, "required": ["n"],
            "additionalProperties": False}}}
        whole = self.chat([image(RED), text("Count.")], response_format=schema, max_tokens=40)
        self.assertIn("n", json.loads(self.words(whole)))
        _, _, stream = self.server.request("POST", "/v1/chat/completions", (
            {"messages": [{"role": "user", "content": [image(RED), text("Count.")]}], "max_tokens": 40, "temperature": 0,
             "stream": True, "response_format": schema, "stream_options": {"include_usage": True}}))
        chunks = [json.loads(l[6:]) for l in stream.decode().splitlines() if l.startswith("data: {")]
        said = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
        self.assertEqual(said, self.words(whole))
        self.assertGreater(chunks[-1]["usage"]["prompt_tokens_details"]["image_tokens"], 50)

    def test_several_at_once_are_as_alone(self):
        paths = [RED, GREY, LOSSY, "kinds/cmyk.jpg", "kinds/interlaced.png", "kinds/grey-16.png"]
        alone = [self.words(self.chat([text("Tell."), image(p)], cache_prompt=False)) for p in paths]
        got = [None] * len(paths)

        def ask(i):
            got[i] = self.words(self.chat([text("Tell."), image(paths[i])], cache_prompt=False))
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(paths))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(got, alone)

    def test_conversations_with_everything_on_are_as_plain_ones(self):
        """Pictures and sounds in turns of 50 conversations, eight at once: drafts, chunks, forks, tiers in RAM and on disk change no word."""
        files = [RED, GREY, LOSSY, "kinds/cmyk.jpg", "kinds/interlaced.png", "kinds/animation.gif", SOUND]
        rng = random.Random(7)

        def part(path):
            if path == SOUND:
                return {"type": "input_audio", "input_audio": {"data": b64(path), "format": "flac"}}
            return image(path)

        def turn():
            parts = [text(rng.choice(["Hello", "What is this?", "What is 12 + 30?", "Write JSON."]))]
            for _ in range(rng.choice([0, 1, 1, 2])):
                parts.insert(rng.randint(0, len(parts)), part(rng.choice(files)))
            return parts
        conversations = [[turn() for _ in range(3)] for _ in range(50)]

        def talk(server, turns):
            messages, said = [], []
            for parts in turns:
                messages.append({"role": "user", "content": parts})
                said.append(self.words(self.chat(messages, server=server, max_tokens=24)) or "")
                messages.append({"role": "assistant", "content": said[-1]})
            return said
        common = ("-m", NANO, "--mmproj", self.mmproj, "-c", 2048, "--image-tokens", 140)
        plain = Serving(*common, "--parallel", 1, "--draft", "none", "--cache-ram", 0, "--media-cache", 0, "-t", 1)
        full = Serving(*common, "--parallel", 6, "--chunk", 192, "--cache-ram", 1, "--kv-memory", "12MB",
                       "--cache-disk", pathlib.Path(self.folder.name) / "disk")
        try:
            want = [talk(plain, c) for c in conversations]
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                got = list(pool.map(lambda c: talk(full, c), conversations))
            self.assertEqual(got, want)
            self.assertEqual([talk(full, c) for c in conversations[:10]], want[:10])
        finally:
            plain.stop(), full.stop()

    def test_who_takes_what_is_said(self):
        model = self.server.request("GET", "/v1/models")[2]["data"][0]
        self.assertEqual(model["architecture"]["input_modalities"], ["text", "image", "audio"])
        self.assertEqual(self.server.request("GET", "/props")[2]["modalities"],
                         {"vision": True, "audio": True})
        show, _ = self.post("/api/show", {"model": "x"})
        self.assertLessEqual({"vision", "audio"}, set(show["capabilities"]))
        self.assertEqual(self.blind.request("GET", "/v1/models")[2]["data"][0]["architecture"]
                         ["input_modalities"], ["text"])

    def test_a_model_without_says_which_file_is_missing(self):
        e = self.chat([image(RED)], status=400, server=self.blind)["error"]
        self.assertIn("found a picture", e["message"])
        self.assertIn("--mmproj", e["message"])
        a = self.chat([{"role": "user", "content": [image(RED)]}, {"role": "assistant", "content": "ok"},
                       {"role": "user", "content": "hi"}], server=self.blind)
        self.assertNotIn("image_tokens", a["usage"]["prompt_tokens_details"])


class VideoFiles(unittest.TestCase):
    """`run --video` and `/video` of a chat, with an ffmpeg that plays by a script."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.at = pathlib.Path(self.folder.name)
        subprocess.run([PROGRAM, "synth", "--mmproj", "nano", "--quant", "BF16", self.at / "mmproj.gguf"], check=True, capture_output=True)
        (self.at / "a.mp4").write_text("a video")
        index = "#tb 0: 1/2\n" + "".join(f"0, {i}, {i}, 1, 9, 0x0\n" for i in range(4))
        (self.at / "index").write_text(index)
        (self.at / "bin").mkdir()
        program = self.at / "bin" / "ffmpeg"
        program.write_text(f"#!/bin/sh\ncase \"$*\" in *framecrc*) cat {self.at}/index;; *) for i in 1 2 3 4; do "
                           f"cat {DATA}/kinds/interlaced.png; done;; esac\n")
        program.chmod(0o700)

    def tearDown(self):
        self.folder.cleanup()

    def facet(self, *args, path=None, **more):
        env = {**os.environ, "PATH": path or f"{self.at}/bin:/usr/bin:/bin"}
        return subprocess.run([PROGRAM, *args, "-m", NANO, "--mmproj", self.at / "mmproj.gguf", "--temp", "0"], env=env,
                              capture_output=True, text=True, timeout=120, **more)

    def test_run_takes_one(self):
        ran = self.facet("run", "--video", self.at / "a.mp4", "-p", "What is it?", "-n", "4")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        tokens = int(re.search(r"prompt (\d+) tokens", ran.stderr)[1])
        picture = self.facet("run", "--image", DATA / "kinds/interlaced.png", "--image-tokens", "70", "-p", "What is it?", "-n", "4")
        one = int(re.search(r"prompt (\d+) tokens", picture.stderr)[1])
        self.assertGreater(tokens, 3 * one)

    def test_without_the_program_it_says_so(self):
        ran = self.facet("run", "--video", self.at / "a.mp4", "-p", "x", path="/nonexistent")
        self.assertEqual(ran.returncode, 1)
        self.assertRegex(ran.stderr, r"\nfacet: \S+a\.mp4: expected the program ffmpeg.*--image.*\n$")

    def test_chat_takes_one_and_saves_it_by_name(self):
        saved = self.at / "saved.json"
        lines = f"/video {self.at / 'a.mp4'}\nWhat is it?\n/save {saved}\n/load {saved}\nAnd now?\n/video {self.at / 'none.mp4'}\n"
        ran = self.facet("chat", "-n", "4", input=lines)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertRegex(ran.stdout, r"a\.mp4: 4 pictures, \d+ tokens, for what you write next")
        self.assertIn("messages loaded", ran.stdout)
        self.assertIn("none.mp4", ran.stderr)
        parts = json.loads(saved.read_text())["messages"][0]["content"]
        self.assertEqual(parts, [{"type": "video", "path": str(self.at / "a.mp4")}, {"type": "text", "text": "What is it?"}])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[1:])
