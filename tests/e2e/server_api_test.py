#!/usr/bin/env python3
"""Framing, access and the paths beside OpenAI's of `facet serve`: server_api_test.py PROGRAM [unittest arguments].

Long: a list of what a client may do, over the same few helpers.
"""
import array
import base64
import gzip
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import unittest

from server_test import HELLO, MODEL, PROGRAM, WEATHER, Server, Shared, joined, post_bytes, user

HOST = b"Host: localhost\r\n"
HIDDEN = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Http(Shared):
    FLAGS = ("--parallel", "2",)

    def refused(self, data, status=400):
        """One answer, which says that it is the last, and then the end: nothing of what follows is read as a request."""
        out = self.s.raw(data)
        self.assertTrue(out.startswith(b"HTTP/1.1 %d " % status), (data[:200], out[:200]))
        self.assertEqual(out.count(b"HTTP/1.1 "), 1, (data[:200], out))
        self.assertIn(b"\r\nConnection: close\r\n", out)

    def test_framing_that_two_readers_could_take_in_two_ways(self):
        for fields in (b"Transfer-Encoding: xchunked", b"Transfer-Encoding: identity", b"Transfer-Encoding: gzip", b"Transfer-Encoding: chunked, identity",
                       b"Transfer-Encoding: chunked, chunked", b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding:",
                       b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
                       b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked", b"Transfer-Encoding: chunked\r\nContent-Length: 5",
                       b"Content-Length: 5\r\nTransfer-Encoding: chunked", b"Content-Length: 0\r\nContent-Length: 0", b"Content-Length: 0\r\nContent-Length: 5",
                       b"Content-Length: 0, 0", b"Content-Length: +0", b"Content-Length: -0", b"Content-Length: 0x0", b"Content-Length:",
                       b"Content-Length: 99999999999999999999"):
            for method in (b"POST /v1/completions", b"GET /health"):
                self.refused(method + b" HTTP/1.1\r\n" + HOST + fields + b"\r\n\r\n" + HIDDEN)
        self.refused(b"POST /v1/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n0\r\n\r\n" + HIDDEN)

    def test_one_host(self):
        self.refused(b"GET /health HTTP/1.1\r\n\r\n" + HIDDEN)
        self.refused(b"GET /health HTTP/1.1\r\n" + HOST + HOST + b"\r\n" + HIDDEN)
        self.refused(b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n" + HIDDEN)
        self.refused(b"GET /health HTTP/1.1\r\nHost:\r\n\r\n" + HIDDEN)
        self.refused(b"GET /health HTTP/1.1\r\nHost: local host\r\n\r\n" + HIDDEN)
        # One that comes in the trailer is none.
        body = b"e\r\n" + json.dumps({"prompt": "x"}).encode()[:14].ljust(14) + b"\r\n0\r\nHost: localhost\r\nAuthorization: x\r\n\r\n"
        self.refused(b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + body)

    def test_absolute_targets(self):
        end = HOST + b"Connection: close\r\n\r\n"
        for target in (b"http://localhost/health", b"HTTP://127.0.0.1:80/health?x=y"):
            self.assertIn(b" 200 OK", self.s.raw(b"GET " + target + b" HTTP/1.1\r\n" + end))
        self.assertIn(b" 403 ", self.s.raw(b"GET http://evil.example/v1/models HTTP/1.1\r\n" + end))  # it counts, not Host

    def test_head(self):
        for path in ("/health", "/v1/models", "/props"):
            _, get, body = self.s.request("GET", path)
            status, head, nothing = self.s.request("HEAD", path)
            self.assertEqual((status, head["Content-Length"], nothing), (200, get["Content-Length"], b""))
        self.assertEqual(self.s.request("HEAD", "/v1/completions")[0], 405)
        self.assertEqual(self.s.request("POST", "/health", "{}")[1]["Allow"], "GET, HEAD")
        out = self.s.raw(b"HEAD /health HTTP/1.1\r\n" + HOST + b"\r\nGET /health HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")
        self.assertEqual((out.count(b"HTTP/1.1 200 OK"), out.count(b'{"status":"ok"}')), (2, 1))

    def test_errors_quote_little(self):
        ask = '{"messages":[{"role":"user","content":"Hello"}],%s}'
        for field in ('"max_tokens":' + "7" * 100000, '"max_tokens":"' + "7" * 100000 + '"', '"tool_choice":"' + "7" * 100000 + '"', "7" * 100000):
            status, _, body = self.s.request("POST", "/v1/chat/completions", ask % field)
            self.assertEqual(status, 400)
            self.assertNotIn("7" * 201, json.dumps(body))

    def test_numbers(self):
        ask = '{"messages":[{"role":"user","content":"Hello"}],"temperature":0,%s}'
        for number in ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1e300", "nan", '"NaN"', "0x10", "-1", "-2"):
            for field in ("top_p", "temperature", "repeat_penalty"):
                self.assertEqual(self.s.request("POST", "/v1/chat/completions", ask % f'"{field}":{number}')[0], 400, (field, number))
        for number in ("NaN", "1e999", "1e300", "10.5", "0.0", "-2.0"):
            self.assertEqual(self.s.request("POST", "/v1/chat/completions", ask % f'"max_tokens":{number}')[0], 400, number)
        r = self.s.request("POST", "/v1/chat/completions", ask % '"max_tokens":3.0')[2]
        self.assertEqual(r["usage"]["completion_tokens"], 3)


class Paths(Shared):
    FLAGS = ("--parallel", "2", "--alias", "some/nano,small")

    def post(self, path, body):
        status, _, answer = self.s.request("POST", path, body)
        self.assertEqual(status, 200, answer)
        return answer

    def test_models(self):
        self.assertEqual(self.s.request("GET", "/v1/models/some%2Fnano")[2]["id"], "some/nano")
        self.assertEqual(self.s.request("GET", "/models/some/nano")[2]["object"], "model")
        model = self.s.request("GET", "/v1/models/small")[2]
        self.assertEqual((model["id"], model["aliases"]), ("some/nano", ["some/nano", "small"]))
        status, _, body = self.s.request("GET", "/v1/models/other")
        self.assertEqual((status, body["error"]["code"]), (404, "model_not_found"))
        self.assertEqual(self.s.request("GET", "/models")[2], self.s.request("GET", "/v1/models")[2])

    def test_props(self):
        p = self.s.request("GET", "/props")[2]
        self.assertEqual((p["total_slots"], p["model_path"], p["bos_token"]), (2, MODEL.name, "<bos>"))
        self.assertIn("<|turn>", p["chat_template"])
        self.assertIn("seed", p["default_generation_settings"]["params"])

    def test_refused(self):
        status, headers, body = self.s.request("POST", "/v1/embeddings", {"input": "x"})
        self.assertEqual((status, body["error"]["type"], headers["X-Should-Retry"]), (501, "not_supported_error", "false"))

    def test_tokens(self):
        text = "Hello wörld 🤗"
        ids = self.post("/tokenize", {"content": text})["tokens"]
        self.assertEqual(self.post("/detokenize", {"tokens": ids})["content"], text)
        self.assertEqual(self.post("/tokenize", {"content": text, "add_special": True})["tokens"], [2] + ids)
        pieces = self.post("/tokenize", {"content": text, "with_pieces": True})["tokens"]
        self.assertEqual([t["id"] for t in pieces], ids)
        self.assertEqual(b"".join(t["piece"].encode() if isinstance(t["piece"], str) else bytes(t["piece"]) for t in pieces).decode(), text)
        self.assertEqual(self.post("/tokenize", {"prompt": text}), {"count": len(ids) + 1, "tokens": [2] + ids})
        self.assertEqual(self.post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"], ids)
        self.assertEqual(self.post("/detokenize", {"tokens": ids})["prompt"], text)
        self.assertEqual(self.s.request("GET", "/tokenizer_info")[2]["bos_token"], "<bos>")
        for path, body, param in (("/tokenize", {"prompt": 7}, "prompt"), ("/tokenize", {}, "content"), ("/tokenize", {"content": 7}, "content"), ("/tokenize", {"content": "x" * ((1 << 20) + 1)}, "content"),
                                  ("/detokenize", {}, "tokens"), ("/detokenize", {"tokens": [-1]}, "tokens[0]"), ("/detokenize", {"tokens": [1 << 40]}, "tokens[0]"),
                                  ("/detokenize", {"tokens": [5] * ((1 << 20) + 1)}, "tokens")):
            status, _, answer = self.s.request("POST", path, body)
            self.assertEqual((status, answer["error"]["param"]), (400, param))

    def test_template(self):
        prompt = self.post("/apply-template", {"messages": user("Hello")})["prompt"]
        self.assertEqual(self.post("/v1/completions", {"prompt": prompt, "temperature": 0})["choices"][0]["text"], HELLO)
        self.assertTrue(self.post("/apply-template", {"messages": user("Hello"), "add_generation_prompt": False})["prompt"].endswith("Hello<turn|>\n"))

    def test_native(self):
        prompt = self.post("/apply-template", {"messages": user("Hello")})["prompt"]
        ask = {"prompt": prompt, "temperature": 0, "seed": 1, "cache_prompt": True, "id_slot": 0}
        r = self.post("/completion", {**ask, "return_tokens": True})
        self.assertEqual((r["content"], r["stop_type"], r["stop"], r["truncated"], r["has_new_line"]), (HELLO, "eos", True, False, False))
        self.assertEqual(len(r["tokens"]), r["tokens_predicted"])
        self.assertEqual(r["prompt"], prompt)
        self.assertEqual(r["generation_settings"]["seed"], 1)
        self.assertEqual(r["tokens_evaluated"], r["timings"]["prompt_n"] + r["timings"]["cache_n"])
        self.assertEqual(self.post("/completions", ask)["tokens"], [])
        r = self.post("/completion", {**ask, "stop": ["nano"]})
        self.assertEqual((r["content"], r["stop_type"], r["stopping_word"]), (HELLO[:HELLO.index("nano")], "word", "nano"))
        self.assertEqual(self.post("/completion", {**ask, "n_predict": 3})["stop_type"], "limit")
        self.assertEqual(set(self.post("/completion", {**ask, "response_fields": ["content", "generation_settings/seed"]})), {"content", "generation_settings/seed"})
        ids = self.post("/tokenize", {"content": prompt})["tokens"]
        for p in (ids, [ids], ids[:4] + [self.post("/detokenize", {"tokens": ids[4:]})["content"]]):
            self.assertEqual(self.post("/completion", {**ask, "prompt": p})["content"], HELLO)
        several = self.post("/completion", {**ask, "prompt": [ids, prompt, {"prompt_string": prompt}]})
        self.assertEqual([(r["content"], r["index"]) for r in several], [(HELLO, i) for i in range(3)])
        for bad in ([{}], [ids, {"prompt_string": 7}], [{"prompt_string": "x", "multimodal_data": ["x"]}], [ids, True]):
            self.assertEqual(self.s.request("POST", "/completion", {**ask, "prompt": bad})[0], 400, bad)

    def test_native_streams(self):
        prompt = self.post("/apply-template", {"messages": user("Hello")})["prompt"]
        status, headers, text = self.s.request("POST", "/completion", {"prompt": prompt, "temperature": 0, "stream": True, "timings_per_token": True, "return_progress": True})
        self.assertEqual((status, headers["Content-Type"]), (200, "text/event-stream"))
        chunks = [json.loads(e[6:]) for e in text.decode().split("\n\n")[:-1]]
        progress = [c["prompt_progress"] for c in chunks if "prompt_progress" in c]
        self.assertEqual(progress[-1]["processed"], progress[-1]["total"])
        chunks = [c for c in chunks if "prompt_progress" not in c]
        self.assertEqual("".join(c["content"] for c in chunks), HELLO)
        self.assertEqual([c["stop"] for c in chunks], [False] * (len(chunks) - 1) + [True])
        self.assertTrue(all(c["tokens"] and c["timings"]["predicted_n"] > 0 for c in chunks[:-1]))
        self.assertEqual(chunks[-1]["stop_type"], "eos")

    def test_usage_while_it_streams(self):
        chunks = self.s.stream("/v1/chat/completions", {"messages": user("Hello"), "temperature": 0, "timings_per_token": True, "return_progress": True,
                                                        "stream_options": {"include_usage": True, "continuous_usage_stats": True}})
        self.assertIsNone(chunks[0]["choices"][0]["delta"]["content"])
        self.assertTrue(all(c["system_fingerprint"].startswith("b") for c in chunks))
        self.assertTrue(any("prompt_progress" in c for c in chunks))
        counts = [c["usage"]["completion_tokens"] for c in chunks if "usage" in c]
        self.assertEqual(counts, sorted(counts))
        self.assertEqual(counts[0], 1)
        self.assertGreater(len(counts), 4)
        self.assertEqual(counts[-1], counts[-2])
        self.assertIn("timings", chunks[-1])
        self.assertEqual(joined(chunks)[0]["content"], HELLO)

    def test_a_started_answer_goes_on(self):
        begun = HELLO[:HELLO.index(" How")]
        for content in (begun, [{"type": "text", "text": begun[:5]}, {"type": "text", "text": begun[5:]}]):
            r = self.s.chat(user("Hello") + [{"role": "assistant", "content": content}])
            self.assertEqual(r["choices"][0]["message"]["content"], HELLO[len(begun):])
        r = self.s.request("POST", "/v1/chat/completions", {"messages": user("Hello") + [{"role": "assistant", "content": "a"}] * 2})
        self.assertEqual((r[0], r[2]["error"]["param"]), (400, "messages[2]"))

    def test_one_tool_call(self):
        r = self.s.chat(user("What is the weather in London in Celsius?"), tools=[WEATHER], parallel_tool_calls=False)
        self.assertEqual((len(r["choices"][0]["message"]["tool_calls"]), r["choices"][0]["finish_reason"]), (1, "tool_calls"))
        self.s.wait_log("stop=(call|eos)")

    PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
                                               "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}},
              "required": ["name", "age"], "additionalProperties": False}

    def is_person(self, text):
        p = json.loads(text)
        self.assertLessEqual({"name", "age"}, set(p))
        self.assertLessEqual(set(p), {"name", "age", "tags"})
        self.assertTrue(len(p["name"]) <= 12 and isinstance(p["age"], int) and 0 <= p["age"] <= 120, p)
        self.assertTrue(len(p.get("tags", [])) <= 3 and set(p.get("tags", [])) <= {"a", "b"}, p)

    def test_answers_follow_a_schema(self):
        form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": self.PERSON}}
        for thinking in (False, True):
            for temperature in (0, 1):
                ask = {"temperature": temperature, "seed": 5, "max_tokens": 400, "enable_thinking": thinking, "response_format": form}
                r = self.s.chat(user("Hello"), **ask)["choices"][0]
                self.assertEqual(r["finish_reason"], "stop")
                self.is_person(r["message"]["content"])
                streamed = joined(self.s.stream("/v1/chat/completions", {"messages": user("Hello"), **ask}))[0]
                self.assertEqual(streamed["content"], r["message"]["content"])
        self.is_person(self.s.completion("Hello", max_tokens=200, guided_json=self.PERSON)["choices"][0]["text"])
        self.is_person(self.post("/completion", {"prompt": "Hello", "n_predict": 200, "json_schema": self.PERSON})["content"])
        self.is_person(self.post("/api/generate", {"prompt": "Hello", "stream": False, "think": False, "format": self.PERSON, "options": {"num_predict": 300}})["response"])
        for field, value, expected in (("guided_choice", ["yes", "no"], r"yes|no"), ("guided_regex", "[a-c]{3}", "[a-c]{3}"), ("grammar", 'root ::= "x" [0-9] "y"', "x[0-9]y")):
            self.assertRegex(self.s.chat(user("Hello"), max_tokens=30, **{field: value})["choices"][0]["message"]["content"], f"^({expected})$")
        status, _, body = self.s.request("POST", "/v1/chat/completions", {"messages": user("x"), "json_schema": {"properties": {"a": {"not": {}}}}})
        self.assertEqual((status, body["error"]["param"]), (400, "json_schema"))
        self.assertIn("#/properties/a: not", body["error"]["message"])

    def test_calls_that_have_to_be(self):
        name = WEATHER["function"]["name"]

        def check(calls):
            self.assertGreaterEqual(len(calls), 1)
            for c in calls:
                self.assertEqual(c["function"]["name"], name)
                self.assertIsInstance(json.loads(c["function"]["arguments"])["city"], str)
        for choice in ("required", {"type": "function", "function": {"name": name}}):
            for temperature in (0, 1):
                ask = {"temperature": temperature, "seed": 3, "max_tokens": 400, "tools": [WEATHER], "tool_choice": choice, "parallel_tool_calls": False}
                r = self.s.chat(user("Hello"), **ask)["choices"][0]
                self.assertEqual(r["finish_reason"], "tool_calls")
                check(r["message"]["tool_calls"])
                check(joined(self.s.stream("/v1/chat/completions", {"messages": user("Hello"), **ask}))[0]["tool_calls"])
        f = WEATHER["function"]
        tool = {"name": name, "input_schema": f["parameters"]}
        for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": name}):
            r = self.post("/v1/messages", {"messages": user("Hello"), "max_tokens": 400, "tools": [tool], "tool_choice": choice})
            self.assertEqual((r["stop_reason"], r["content"][0]["type"], r["content"][0]["name"]), ("tool_use", "tool_use", name))

    def test_reasoning_by_both_names(self):
        talk = lambda key: [*user("What is 12 + 30?"), {"role": "assistant", key: "It is 42.", "content": "", "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}]}, {"role": "tool", "tool_call_id": "a", "content": "x"}]
        prompts = [self.post("/apply-template", {"messages": talk(key), "tools": [WEATHER]})["prompt"] for key in ("reasoning", "reasoning_content")]
        self.assertEqual(prompts[0], prompts[1])
        self.assertIn("It is 42.", prompts[0])


class Anthropic(Shared):
    FLAGS = ("--parallel", "2", "--api-key", "secret")
    TOOL = {"name": "get_weather", "description": WEATHER["function"]["description"], "input_schema": WEATHER["function"]["parameters"]}

    def post(self, body, path="/v1/messages", key="secret"):
        return self.s.request("POST", path, {"model": "m", "max_tokens": 100, "temperature": 0, **body}, {"X-Api-Key": key})

    def events(self, body):
        status, headers, text = self.post({**body, "stream": True})
        self.assertEqual((status, headers["Content-Type"]), (200, "text/event-stream"))
        events = []
        for e in text.decode().split("\n\n")[:-1]:
            name, data = e.split("\n")
            events.append(json.loads(data[6:]))
            self.assertEqual(name, "event: " + events[-1]["type"])
        return events

    def test_messages(self):
        status, _, r = self.post({"messages": user("Hello")})
        self.assertEqual((status, r["content"], r["stop_reason"], r["role"]), (200, [{"type": "text", "text": HELLO}], "end_turn", "assistant"))
        self.assertEqual(self.post({"messages": user("Hello")}, "/v1/messages/count_tokens")[2],
                         {"input_tokens": r["usage"]["input_tokens"] + r["usage"]["cache_read_input_tokens"]})
        self.assertEqual(self.post({"messages": user("Hello"), "stop_sequences": ["nano"]})[2]["stop_sequence"], "nano")
        self.assertEqual(self.post({"messages": user("Hello"), "max_tokens": 2})[2]["stop_reason"], "max_tokens")
        begun = HELLO[:6]
        self.assertEqual(self.post({"messages": user("Hello") + [{"role": "assistant", "content": begun}]})[2]["content"][0]["text"], HELLO[6:])

    def test_streams_and_tools(self):
        ask = {"messages": user("What is the weather in London in Celsius?"), "tools": [self.TOOL]}
        whole = self.post(ask)[2]
        self.assertEqual(whole["stop_reason"], "tool_use")
        call = whole["content"][-1]
        self.assertEqual((call["name"], call["input"]), ("get_weather", {"city": "London", "unit": "C"}))
        events = self.events(ask)
        self.assertEqual([events[0]["type"], events[-2]["type"], events[-1]["type"]], ["message_start", "message_delta", "message_stop"])
        json_text = "".join(e["delta"]["partial_json"] for e in events if e["type"] == "content_block_delta")
        self.assertEqual(json.loads(json_text), call["input"])
        self.assertEqual(events[-2]["delta"]["stop_reason"], "tool_use")
        result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": json.dumps({"temperature": 12, "sky": "sunny"})}]}
        r = self.post({**ask, "messages": ask["messages"] + [{"role": "assistant", "content": whole["content"]}, result]})[2]
        self.assertIn("12", r["content"][0]["text"])

    def test_thinking(self):
        ask = {"messages": user("What is 12 + 30?"), "thinking": {"type": "enabled", "budget_tokens": 1024}}
        blocks = self.post(ask)[2]["content"]
        self.assertEqual([b["type"] for b in blocks], ["thinking", "text"])
        deltas = [e["delta"] for e in self.events(ask) if e["type"] == "content_block_delta"]
        self.assertEqual("".join(d.get("thinking", "") for d in deltas), blocks[0]["thinking"])
        self.assertEqual("".join(d.get("text", "") for d in deltas), blocks[1]["text"])

    def test_errors(self):
        for status, kind, (got, _, body) in ((401, "authentication_error", self.post({"messages": user("x")}, key="wrong")),
                                             (400, "invalid_request_error", self.post({})),
                                             (404, "not_found_error", self.post({}, "/v1/messages/batches"))):
            self.assertEqual((got, body["type"], body["error"]["type"]), (status, "error", kind))


class Choices(Shared):
    FLAGS = ("--parallel", "3")

    def post(self, path, body):
        status, _, answer = self.s.request("POST", path, body)
        self.assertEqual(status, 200, answer)
        return answer

    def test_the_prompts_log_probabilities_are_those_of_facet_logits(self):
        text = "<|turn>user\nWhat is the weather in London in Celsius?<turn|>\n<|turn>model\n<|channel>thought\n<channel|>Hello! I am"
        ids = self.post("/tokenize", {"content": text, "add_special": True})["tokens"]
        with tempfile.TemporaryDirectory() as d:
            with open(f"{d}/ids", "wb") as f:
                array.array("i", ids).tofile(f)
            subprocess.run([PROGRAM, "logits", "-m", str(MODEL), "--tokens", f"{d}/ids", "--out", f"{d}/rows"], check=True, stderr=subprocess.DEVNULL)
            rows = array.array("f")
            with open(f"{d}/rows", "rb") as f:
                rows.frombytes(f.read())
        n = len(rows) // len(ids)
        want = []
        for i, t in enumerate(ids[1:]):
            row = rows[i * n:(i + 1) * n]
            top = max(row)
            want.append(row[t] - top - math.log(sum(math.exp(x - top) for x in row)))
        for prompt in (text, ids):  # the second time nothing of it may come from the cache
            l = self.post("/v1/completions", {"prompt": prompt, "max_tokens": 0, "echo": True, "logprobs": 1})["choices"][0]["logprobs"]
            self.assertEqual((len(l["tokens"]), l["token_logprobs"][0]), (len(ids), None))
            for a, b in zip(l["token_logprobs"][1:], want):
                self.assertAlmostEqual(a, b, delta=1e-4)
            self.assertAlmostEqual(sum(l["token_logprobs"][1:]), sum(want), delta=1e-4 * len(want))
            self.assertTrue(all(max(t.values()) >= x for t, x in zip(l["top_logprobs"][1:], l["token_logprobs"][1:])))

    def test_log_probabilities_do_not_depend_on_drafts_or_streaming(self):
        ask = {"messages": user("Hello"), "temperature": 0, "logprobs": True, "top_logprobs": 3}
        whole = self.post("/v1/chat/completions", ask)["choices"][0]
        tokens = whole["logprobs"]["content"]
        self.assertEqual("".join(t["token"] for t in tokens if not t["token"].startswith("<")), HELLO)
        self.assertTrue(all(t["top_logprobs"][0]["logprob"] == t["logprob"] and len(t["top_logprobs"]) == 3 for t in tokens))
        self.assertTrue(all(bytes(t["bytes"]).decode() == t["token"] for t in tokens))
        for off in ({"draft": "none"}, {"speculative.n_max": 0}):
            r = self.post("/v1/chat/completions", {**ask, **off})
            self.assertNotIn("draft_n", r["timings"])
            plain = r["choices"][0]["logprobs"]["content"]
            self.assertEqual([t["token"] for t in plain], [t["token"] for t in tokens])
            for a, b in zip(plain, tokens):
                self.assertAlmostEqual(a["logprob"], b["logprob"], delta=1e-4)
        chunks = self.s.stream("/v1/chat/completions", ask)
        streamed = [t for c in chunks if c["choices"] for t in (c["choices"][0]["logprobs"] or {"content": []})["content"]]
        self.assertEqual([t["token"] for t in streamed], [t["token"] for t in tokens])

    def test_echo(self):
        whole = self.post("/v1/completions", {"prompt": "Hello", "max_tokens": 2, "echo": True, "temperature": 0, "logprobs": 0})["choices"][0]
        self.assertTrue(whole["text"].startswith("Hello"))
        self.assertEqual(whole["logprobs"]["top_logprobs"][0], None)
        chunks = self.s.stream("/v1/completions", {"prompt": "Hello", "max_tokens": 2, "echo": True, "temperature": 0})
        self.assertEqual("".join(c["choices"][0]["text"] for c in chunks if c["choices"]), whole["text"])

    def test_choices(self):
        ask = {"messages": user("Hello"), "temperature": 2, "max_tokens": 12}
        r = self.post("/v1/chat/completions", {**ask, "n": 3, "seed": 5})
        self.assertEqual([c["index"] for c in r["choices"]], [0, 1, 2])
        solo = [self.post("/v1/chat/completions", {**ask, "seed": 5 + i}) for i in range(3)]
        self.assertEqual([c["message"]["content"] for c in r["choices"]], [s["choices"][0]["message"]["content"] for s in solo])
        self.assertEqual(r["usage"]["completion_tokens"], sum(s["usage"]["completion_tokens"] for s in solo))
        self.assertEqual(r["usage"]["prompt_tokens"], solo[0]["usage"]["prompt_tokens"])
        text = ["", "", ""]
        for c in self.s.stream("/v1/chat/completions", {**ask, "n": 3, "seed": 5}):
            for x in c["choices"]:
                text[x["index"]] += x["delta"].get("content") or ""
        self.assertEqual(text, [c["message"]["content"] for c in r["choices"]])
        r = self.post("/v1/completions", {"prompt": ["Hello", "What is"], "n": 2, "best_of": 3, "max_tokens": 3, "seed": 1})
        self.assertEqual([c["index"] for c in r["choices"]], [0, 1, 2, 3])
        for body, param in (({"n": 4}, "n"), ({"n": 0}, "n"), ({"n": 2, "best_of": 1}, "best_of"), ({"best_of": 2, "stream": True}, "best_of"),
                            ({"max_tokens": 0}, "max_tokens"), ({"logprobs": 21}, "logprobs"), ({"draft": 3}, "draft"), ({"stop_token_ids": [1 << 40]}, "stop_token_ids[0]"),
                            ({"cache_salt": "x" * 257}, "cache_salt"), ({"prompt": ["a"] * 65}, "prompt"), ({"prompt": ["a", ["b", 1 << 40]]}, "prompt[1][1]")):
            status, _, answer = self.s.request("POST", "/v1/completions", {"prompt": "x", **body})
            self.assertEqual((status, answer["error"]["param"]), (400, param), body)

    def test_where_an_answer_ends(self):
        ask = {"messages": user("Hello"), "temperature": 0}
        whole = self.post("/v1/chat/completions", ask)
        n = whole["usage"]["completion_tokens"]
        longer = self.post("/v1/chat/completions", {**ask, "min_tokens": n + 5, "max_tokens": n + 8})
        self.assertGreaterEqual(longer["usage"]["completion_tokens"], n + 5)
        ids = self.post("/tokenize", {"content": HELLO})["tokens"]
        for off in ({}, {"draft": "none"}):
            for i in range(2, len(ids)):
                if ids[i] in ids[:i]:
                    continue
                r = self.post("/v1/chat/completions", {**ask, **off, "stop_token_ids": [ids[i]]})
                self.assertEqual((r["usage"]["completion_tokens"], r["choices"][0]["finish_reason"]), (i, "stop"))
                self.assertTrue(HELLO.startswith(r["choices"][0]["message"]["content"]))
                self.assertEqual(self.post("/v1/chat/completions", ask)["choices"][0]["message"]["content"], HELLO)  # what it left is sound

    def test_ids_without_bos_are_told_once(self):
        text = "does not begin with <bos>"
        ids = self.post("/tokenize", {"content": "Hello", "add_special": True})["tokens"]
        s = Server("--draft", "none", "-c", "512")
        for prompt in ("Hello", ids):
            s.request("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 1})
        self.assertNotIn(text, s.log_text())
        for prompt in (ids[1:], [ids[1:], "Hello"]):
            s.request("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 1})
        s.wait_log(text)
        self.assertEqual((s.stop(), s.ended_log.count(text)), (0, 1))

    def test_a_loop_ends_an_answer(self):
        one = self.post("/tokenize", {"content": HELLO})["tokens"][0]
        ask = {"prompt": "Hello", "temperature": 0, "max_tokens": 300, "ignore_eos": True, "logit_bias": {str(one): 100}}  # the same token for ever
        r = self.post("/v1/completions", {**ask, "max_loops": 40})
        self.assertEqual((r["usage"]["completion_tokens"], r["choices"][0]["finish_reason"]), (128, "length"))
        self.assertEqual(self.post("/v1/completions", ask)["usage"]["completion_tokens"], 300)
        r = self.post("/completion", {"prompt": "Hello", "temperature": 0, "n_predict": 300, "ignore_eos": True, "logit_bias": {str(one): 100}, "max_loops": 200})
        self.assertEqual((r["tokens_predicted"], r["stop_type"]), (200, "limit"))
        self.assertIn(b'stop="loop"', self.s.request("GET", "/metrics")[2])

    def test_who_shares_the_cache(self):
        ask = {"messages": user("What is the weather in London in Celsius?"), "temperature": 0, "max_tokens": 2}
        cached = lambda **f: self.post("/v1/chat/completions", {**ask, **f})["usage"]["prompt_tokens_details"]["cached_tokens"]
        cached()
        self.assertGreater(cached(), 0)
        self.assertEqual(cached(cache_prompt=False), 0)
        self.assertEqual(cached(cache_salt="a"), 0)
        self.assertGreater(cached(cache_salt="a"), 0)
        self.assertEqual(cached(cache_salt="b"), 0)


class Ollama(Shared):
    FLAGS = ("--parallel", "2", "--alias", "nano")

    def lines(self, path, body):
        status, headers, text = self.s.request("POST", path, {"model": "nano", "options": {"temperature": 0}, **body})
        self.assertEqual((status, headers["Content-Type"]), (200, "application/x-ndjson"), text)
        return [json.loads(line) for line in text.decode().splitlines()]

    def test_it_answers(self):
        self.assertIn("version", self.s.request("GET", "/api/version")[2])
        self.assertEqual(self.s.request("GET", "/api/tags")[2]["models"][0]["name"], "nano")
        self.assertIn("tools", self.s.request("POST", "/api/show", {"model": "nano"})[2]["capabilities"])
        lines = self.lines("/api/chat", {"messages": user("Hello"), "keep_alive": "5m"})
        self.assertEqual("".join(x["message"]["content"] for x in lines), HELLO)
        self.assertEqual([x["done"] for x in lines], [False] * (len(lines) - 1) + [True])
        self.assertEqual(lines[-1]["done_reason"], "stop")
        self.assertEqual("".join(x["response"] for x in self.lines("/api/generate", {"prompt": "Hello"})), HELLO)
        thought = self.lines("/api/chat", {"messages": user("What is 12 + 30?"), "think": True})
        self.assertTrue("".join(x["message"].get("thinking", "") for x in thought))
        whole = self.s.request("POST", "/api/chat", {"messages": user("What is the weather in London in Celsius?"), "tools": [WEATHER], "stream": False, "options": {"temperature": 0}})[2]
        self.assertEqual(whole["message"]["tool_calls"][0]["function"], {"name": "get_weather", "arguments": {"city": "London", "unit": "C"}})
        self.assertEqual(self.s.request("POST", "/api/chat", {"model": "nano", "messages": []})[2]["done_reason"], "load")
        status, _, body = self.s.request("POST", "/api/chat", {"messages": user("x"), "format": "xml"})
        self.assertEqual((status, list(body)), (400, ["error"]))


class Access(unittest.TestCase):
    def with_server(self, *flags):
        s = Server(*flags)
        self.addCleanup(lambda: s.log.closed or s.stop())
        return s

    def test_keys_are_read_again(self):
        with tempfile.NamedTemporaryFile("w", delete=False) as f:
            f.write("# keys\nalpha anna\nbeta\n")
        self.addCleanup(os.unlink, f.name)
        s = self.with_server("--api-key-file", f.name)
        ask = lambda key: s.request("POST", "/v1/chat/completions", {"messages": user("Hello"), "max_tokens": 2}, {"Authorization": f"Bearer {key}"})[0]
        self.assertEqual([ask(k) for k in ("alpha", "beta", "gamma")], [200, 200, 401])
        s.wait_log(r"key=anna (.|\n)*key=key2 ")
        with open(f.name, "w") as keys:
            keys.write("gamma carl\n")
        s.process.send_signal(signal.SIGHUP)
        s.wait_log("read 1 keys")
        self.assertEqual([ask(k) for k in ("alpha", "gamma")], [401, 200])
        with open(f.name, "w") as keys:
            keys.write("\n")
        s.process.send_signal(signal.SIGHUP)
        s.wait_log("the keys stay as they were")
        self.assertEqual(ask("gamma"), 200)
        self.assertNotIn("gamma", s.log_text())

    def test_origins(self):
        s = self.with_server("--cors-origin", "https://chat.example", "--cors-origin", "http://b:3000")
        asked = {"Origin": "https://chat.example", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, content-type"}
        status, headers, _ = s.request("OPTIONS", "/v1/chat/completions", headers=asked)
        self.assertEqual((status, headers["Access-Control-Allow-Origin"], headers["Access-Control-Allow-Headers"], headers["Access-Control-Allow-Methods"]),
                         (200, "https://chat.example", "authorization, content-type", "GET, POST, DELETE, OPTIONS"))
        for path in ("/v1/models", "/nothing"):  # errors, too, can be read by the page
            self.assertEqual(s.request("GET", path, headers={"Origin": "http://b:3000"})[1]["Access-Control-Allow-Origin"], "http://b:3000")
        status, headers, _ = s.request("GET", "/v1/models", headers={"Origin": "https://evil.example"})
        self.assertEqual((status, headers["Access-Control-Allow-Origin"]), (403, None))
        with s.connect() as c:
            c.sendall(post_bytes("/v1/chat/completions", {"messages": user("Hello"), "stream": True}, "Origin: http://b:3000\r\n"))
            self.assertIn(b"Access-Control-Allow-Origin: http://b:3000\r\n", c.recv(2000))
        with self.assertRaisesRegex(AssertionError, "--cors-origin"):
            Server("--cors-origin", "*")

    def test_page(self):
        s = self.with_server("--api-key", "secret")
        html = {"Accept": "text/html,*/*", "Accept-Encoding": "gzip, br"}
        status, headers, body = s.request("GET", "/", headers=html)
        self.assertEqual(headers["Content-Encoding"], "gzip")
        self.assertLess(len(body), 600_000)
        body = gzip.decompress(body)
        self.assertEqual((status, headers["Content-Type"]), (200, "text/html; charset=utf-8"))
        policy = headers["Content-Security-Policy"]
        for tag in (b"style", b"script"):  # the hashes are those of what is there
            text = body.split(b"<%s>" % tag)[1].split(b"</%s>" % tag)[0]
            self.assertIn(f"{tag.decode()}-src 'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'", policy)
        self.assertIn("default-src 'none'; connect-src 'self'", policy)
        status, head, nothing = s.request("HEAD", "/", headers=html)
        self.assertEqual((status, head["Content-Length"], nothing), (200, headers["Content-Length"], b""))
        # A browser that has it gets none; who takes no gzip is told so.
        status, _, nothing = s.request("GET", "/", headers={**html, "If-None-Match": headers["ETag"]})
        self.assertEqual((status, nothing), (304, b""))
        status, _, text = s.request("GET", "/", headers={**html, "Accept-Encoding": "identity"})
        self.assertEqual(status, 406)
        self.assertIn(b"Accept-Encoding: gzip", text)
        s = self.with_server("--no-webui")
        self.assertEqual([s.request(m, "/")[0] for m in ("GET", "HEAD", "POST")], [404, 404, 404])

    def test_parse_special(self):
        """A control token that a message spells: characters, or with --parse-special one token."""
        for flags, one in (((), False), (("--parse-special",), True)):
            s = self.with_server(*flags)
            counts = [s.request("POST", "/v1/chat/completions", {"messages": user("a" + "<turn|>" * n + "b"), "max_tokens": 1})[2]["usage"]["prompt_tokens"] for n in (1, 9)]
            self.assertEqual(counts[1] - counts[0] == 8, one, (flags, counts))

    def test_no_slots(self):
        s = self.with_server("--no-slots")
        for method, path in (("GET", "/slots"), ("POST", "/slots/0?action=erase")):
            status, _, body = s.request(method, path)
            self.assertEqual((status, body["error"]["type"]), (501, "not_supported_error"))

    def test_strict(self):
        s = self.with_server("--strict")
        status, _, body = s.request("POST", "/v1/chat/completions", {"messages": user("Hello"), "made_up": 1})
        self.assertEqual((status, body["error"]["param"]), (400, "made_up"))


if __name__ == "__main__":
    if not MODEL.exists():
        print(f"skipped: {MODEL} is missing")
        sys.exit(77)
    unittest.main()
