#!/usr/bin/env python3
"""Agents and their clients: what Claude Code, Codex, VS Code and Ollama's clients send, and what they look at in answers. agents_test.py PROGRAM"""
import gzip
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from serving import MODELS, PROGRAM, Serving

NANO = MODELS / "facet-nano-Q8_0.gguf"
LINE = "[picture left out: this model takes none]"
MARKUP = ("<|tool_call>", "<tool_call|>", "<|\"|>", "<|channel>", "<channel|>", "<|tool_response>")
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}}


def user(text):
    return [{"role": "user", "content": text}]


def function(name, **properties):
    return {"type": "function", "function": {"name": name, "description": f"Runs {name}", "parameters": {"type": "object", "properties": properties, "required": list(properties)}}}


def events(body):
    return [json.loads(line[6:]) for line in body.decode().split("\n") if line.startswith("data: {")]


class Agents(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = Serving("-m", NANO, "-c", "4096")

    @classmethod
    def tearDownClass(cls):
        cls.s.stop()

    def post(self, path, body, status=200):
        got, _, answer = self.s.request("POST", path, body)
        self.assertEqual(got, status, answer)
        return answer

    def get(self, path, status=200):
        got, _, answer = self.s.request("GET", path)
        self.assertEqual(got, status, answer)
        return answer

    # --- calls

    def test_free_calls_are_held(self):
        """Without strict: from <|tool_call> on the names and the form are held; no markup in the text."""
        tools = [function("get_weather", city={"type": "string"}), function("read_file", path={"type": "string"}),
                 {"type": "function", "function": {"name": "never", "parameters": {"type": "object", "patternProperties": {"(?=a)": {}}}}}]
        for i, ask in enumerate(("What is the weather in London?", "Read /etc/hosts.", "Hello", "Call a function.")):
            for seed in (1, 2):
                a = self.post("/v1/chat/completions", {"messages": user(ask), "tools": tools, "seed": seed, "temperature": seed - 1, "max_tokens": 200})["choices"][0]
                content = a["message"]["content"] or ""
                self.assertFalse([m for m in MARKUP if m in content], content)
                for c in a["message"].get("tool_calls", []):
                    self.assertIn(c["function"]["name"], ("get_weather", "read_file", "never"))
                    if a["finish_reason"] != "length":
                        self.assertIsInstance(json.loads(c["function"]["arguments"]), dict)

    def test_a_call_that_is_cut_is_partial(self):
        ask = {"messages": user("What is the weather in London in Celsius?"), "temperature": 0,
               "tools": [function("get_weather", city={"type": "string"})], "tool_choice": "required"}
        whole = self.post("/v1/chat/completions", {**ask, "max_tokens": 200})
        full = whole["choices"][0]["message"]["tool_calls"][0]["function"]
        partial = 0
        for n in range(1, whole["usage"]["completion_tokens"]):
            for stream in (False, True):
                body = self.post("/v1/chat/completions", {**ask, "max_tokens": n, "stream": stream})
                if stream:
                    chunks = [e["choices"][0] for e in events(body)]
                    text = "".join(c["delta"].get("content") or "" for c in chunks)
                    calls = [c for k in chunks for c in k["delta"].get("tool_calls", [])]
                    why = chunks[-1]["finish_reason"]
                else:
                    choice = body["choices"][0]
                    text, calls, why = choice["message"]["content"] or "", choice["message"].get("tool_calls", []), choice["finish_reason"]
                self.assertEqual((text, why), ("", "length"), n)
                for c in calls:
                    self.assertEqual(c["function"]["name"], full["name"])
                    self.assertTrue(full["arguments"].startswith(c["function"]["arguments"]), c)
                    partial += c["function"]["arguments"] != full["arguments"]
        self.assertGreater(partial, 0)
        anthropic = {"messages": ask["messages"], "temperature": 0, "tool_choice": {"type": "any"}, "max_tokens": max(1, whole["usage"]["completion_tokens"] - 3),
                     "tools": [{"name": "get_weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}]}
        a = self.post("/v1/messages", anthropic)
        self.assertEqual(a["stop_reason"], "max_tokens")
        self.assertEqual([b["input"] for b in a["content"] if b["type"] == "tool_use"], [{}])

    def test_names_that_no_call_can_have(self):
        for path, tool in (("/v1/chat/completions", lambda n: function(n)), ("/v1/messages", lambda n: {"name": n, "input_schema": {"type": "object"}}),
                           ("/v1/responses", lambda n: {"type": "function", "name": n, "parameters": {}}), ("/v1/responses", lambda n: {"type": "custom", "name": n}),
                           ("/api/chat", lambda n: function(n))):
            for name in ("two words", "a{b", "a(b", "", "a\"b", "x" * 257):
                body = {"input" if "responses" in path else "messages": user("Hi"), "tools": [tool("fine"), tool(name)]}
                self.assertIn("tools[1].name", json.dumps(self.post(path, body, 400)))

    # --- Claude Code

    def test_claude_code(self):
        def ask(header, messages, **fields):
            return self.post("/v1/messages?beta=true", {"model": "claude-x", "max_tokens": 4, "system": [
                {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; cch={header};"}, {"type": "text", "text": "You are an agent. " * 60, "cache_control": {"type": "ephemeral"}}],
                "messages": messages, "metadata": {"user_id": "u"}, "context_management": {"edits": []}, **fields})
        first, second = ask("aaa", user("Hello"))["usage"], ask("bbb", user("Hello"))["usage"]
        self.assertGreater(second["cache_read_input_tokens"], .8 * first["input_tokens"])
        tools = [{"type": "web_search_20250305", "name": "web_search"}, {"type": "tool_reference", "tool_name": "x"}]
        ask("c", user("Hello") + [{"role": "system", "content": "Skills: a, b."}], tools=tools, tool_choice={"type": "tool", "name": "web_search"})
        ask("d", [{"role": "user", "content": [{"type": "text", "text": "See"}, PICTURE]}, {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "Read", "input": {}}]},
                  {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [PICTURE]}]}],
            tools=tools + [{"name": "Read", "input_schema": {"type": "object", "properties": {}}}])
        metrics = self.get("/metrics").decode()
        self.assertIn('facet_left_out_total{what="media"}', metrics)
        self.assertIn('facet_left_out_total{what="tool"}', metrics)
        self.s.wait_log(r"left out kind=messages media=2 tools=2 items=0 \(picture, web_search_20250305, tool_reference\)")
        e = self.post("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": [PICTURE]}]}, 400)
        self.assertIn("messages[0].content[0].type", e["error"]["message"])
        e = self.post("/v1/messages", {"max_tokens": 1, "messages": user("word " * 9000)}, 400)
        self.assertRegex(e["error"]["message"], r"^prompt is too long: \d+ tokens > 4095 maximum")

    def test_pictures_of_earlier_turns(self):
        """A line in the place of each, in all dialects; in the user's last message an error."""
        url = {"type": "image_url", "image_url": {"url": "data:image/png;base64,eA=="}}
        told = self.post("/apply-template", {"messages": [{"role": "user", "content": [{"type": "text", "text": "See"}, url]}, {"role": "assistant", "content": "I see."}, *user("And?")]})
        self.assertIn(f"See\n{LINE}<turn|>", told["prompt"])
        self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": [url]}], "max_tokens": 1}, 400)
        item = {"type": "input_image", "image_url": "data:image/png;base64,eA=="}
        self.post("/v1/responses", {"input": [{"role": "user", "content": [item]}, {"role": "assistant", "content": "I see."}, *user("And?")], "max_output_tokens": 1})
        self.post("/v1/responses", {"input": [{"role": "user", "content": [item]}], "max_output_tokens": 1}, 400)
        chat = lambda m, s=200: self.post("/api/chat", {"messages": m, "stream": False, "options": {"num_predict": 1}}, s)
        chat([{"role": "user", "content": "See", "images": ["eA=="]}, {"role": "assistant", "content": "I see."}, *user("And?")])
        chat([{"role": "user", "content": "See", "images": ["eA=="]}], 400)

    # --- Codex

    def test_codex(self):
        tools = [{"type": "function", "name": "shell", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}, {"type": "custom", "name": "apply_patch", "description": "Patch"},
                 {"type": "web_search"}, {"type": "local_shell"}, {"type": "namespace", "name": "mcp", "tools": [{"type": "function", "name": "x", "parameters": {}}]}]
        items = user("Hi") + [{"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin Patch"}, {"type": "custom_tool_call_output", "call_id": "c1", "output": "Done"},
                              {"type": "local_shell_call", "call_id": "c2", "status": "completed", "action": {"type": "exec", "command": ["ls"]}}, {"type": "local_shell_call_output", "call_id": "c2", "output": "a"},
                              {"type": "web_search_call", "id": "w", "status": "completed"}, {"type": "compaction", "encrypted_content": "x"},
                              {"type": "reasoning", "summary": [], "encrypted_content": "x"}] + user("Go on")
        ask = {"input": items, "tools": tools, "store": False, "include": ["reasoning.encrypted_content"], "max_output_tokens": 60, "temperature": 0}
        self.post("/v1/responses", ask)
        forced = {**ask, "tool_choice": {"type": "custom", "name": "apply_patch"}}
        whole = self.post("/v1/responses", forced)["output"]
        self.assertEqual([(o["type"], o["name"]) for o in whole], [("custom_tool_call", "apply_patch")])
        stream = events(self.post("/v1/responses", {**forced, "stream": True}))
        kinds = [e["type"] for e in stream]
        self.assertIn("response.custom_tool_call_input.delta", kinds)
        self.assertIn("response.custom_tool_call_input.done", kinds)
        self.assertEqual(stream[-1]["response"]["output"][0]["input"], whole[0]["input"])
        only = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "shell"}]}
        self.assertEqual([o["name"] for o in self.post("/v1/responses", {**ask, "tool_choice": only})["output"]][:1], ["shell"])

    def test_reasoning_tokens(self):
        ask = {"input": "What is 17 + 25?", "reasoning": {"effort": "high"}, "temperature": 0, "max_output_tokens": 200}
        whole = self.post("/v1/responses", ask)
        streamed = events(self.post("/v1/responses", {**ask, "stream": True}))[-1]["response"]
        n = [a["usage"]["output_tokens_details"]["reasoning_tokens"] for a in (whole, streamed)]
        self.assertEqual(n[0], n[1])
        if any(o["type"] == "reasoning" for o in whole["output"]):
            self.assertGreater(n[0], 0)
        chat = self.post("/v1/chat/completions", {"messages": user(ask["input"]), "reasoning_effort": "high", "temperature": 0, "max_tokens": 200})
        self.assertEqual(chat["usage"]["completion_tokens_details"]["reasoning_tokens"], n[0])

    # --- Ollama

    def test_ollama(self):
        version = self.get("/api/version")
        self.assertGreaterEqual([int(x) for x in version["version"].split(".")], [0, 13, 4])
        for entry in (self.get("/api/tags")["models"][0], self.get("/api/ps")["models"][0]):
            self.assertGreaterEqual(entry["size"], NANO.stat().st_size)
            self.assertRegex(entry["digest"], "^[0-9a-f]{64}$")
            self.assertEqual((entry["details"]["family"], entry["details"]["families"], entry["details"]["quantization_level"]), ("gemma4", ["gemma4"], "Q8_0"))
            self.assertTrue(entry["details"]["parameter_size"])
        show = self.post("/api/show", {"model": "x"})
        self.assertIn("tools", show["capabilities"])
        self.assertTrue(show["model_info"]["general.basename"])
        for path in ("/api/embed", "/api/embeddings"):
            self.assertIsInstance(self.post(path, {"model": "x", "input": "a"}, 501)["error"], str)
        self.assertIsInstance(self.get("/api/blobs/x", 404)["error"], str)
        for path, body in (("/api/chat", {"messages": []}), ("/api/generate", {"prompt": ""})):
            self.assertEqual(self.post(path, {"model": "x", **body})["done_reason"], "load")
            for never in (0, "0", "0s"):
                self.assertEqual(self.post(path, {"model": "x", "keep_alive": never, **body})["done_reason"], "unload")
        self.post("/api/generate", {"prompt": "Hello", "stream": False, "options": {"num_predict": 0}})
        self.assertEqual(self.get("/"), b"Ollama is running")
        self.assertEqual(self.s.request("HEAD", "/")[0], 200)
        self.assertIn(b"<html", gzip.decompress(self.s.request("GET", "/", headers={"Accept": "text/html", "Accept-Encoding": "gzip"})[2]))

    # --- OpenAI

    def test_shapes(self):
        self.post("/v1/chat/completions", {"messages": user("Hi") + [{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, *user("Why?"),
                                                                    {"role": "assistant", "content": None, "refusal": "No."}, *user("Hm")], "stop": "", "max_tokens": 1})
        self.post("/v1/chat/completions", {"messages": user("Hi"), "stop": ["", "x"], "max_tokens": 1})


class Several(unittest.TestCase):
    def test_of_several_models(self):
        """Ollama's paths where a router serves several: what is in memory, and 404 for what is not there."""
        with tempfile.TemporaryDirectory() as d:
            for name in ("a", "b"):
                os.symlink(NANO, pathlib.Path(d) / f"{name}.gguf")
            s = Serving("--models-dir", d, "-c", "512")
            try:
                ask = lambda model: s.request("POST", "/api/chat", {"model": model, "messages": user("Hi"), "stream": False, "options": {"num_predict": 1}})
                self.assertEqual(sorted(m["name"] for m in s.request("GET", "/api/tags")[2]["models"]), ["a", "b"])
                self.assertEqual(s.request("GET", "/api/ps")[2]["models"], [])
                self.assertEqual(ask("a")[0], 200)
                self.assertEqual([m["name"] for m in s.request("GET", "/api/ps")[2]["models"]], ["a"])
                for status, _, body in (ask("nobody"), s.request("POST", "/api/show", {"model": "nobody"})):
                    self.assertEqual((status, type(body["error"])), (404, str), body)
                for model in ("a", "b"):
                    self.assertEqual(s.request("POST", "/api/show", {"model": model})[2]["details"]["quantization_level"], "Q8_0")
                self.assertIsInstance(s.request("POST", "/api/embed", {"model": "a", "input": "x"})[2]["error"], str)
                self.assertEqual(s.request("GET", "/")[2], b"Ollama is running")
            finally:
                s.stop()


class Loop(unittest.TestCase):
    def test_agent_loop(self):
        """A session of 30 turns as opencode has it, without strict: no markup in the text."""
        r = subprocess.run([sys.executable, str(pathlib.Path(__file__).resolve().parents[2] / "tools/agent_loop.py"), PROGRAM, str(NANO)], capture_output=True, text=True, timeout=600)
        self.assertEqual(r.returncode, 0, r.stdout + r.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
