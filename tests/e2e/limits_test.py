#!/usr/bin/env python3
"""Every limit in the tables of docs/server.md and docs/structured-output.md: limits_test.py PROGRAM [unittest arguments].

A row is known by its first cell, and its numbers are read from the table: what is exactly at the limit is taken, and one more is refused with a message that names the
number. A row without a check, or a check without a row, is an error. Limits of time and of sizes that an option sets are checked with small values of the option, and
their defaults by --help.
"""
import json
import sys
import tempfile
import time
import unittest

import limits_of_forms  # noqa: F401  adds its checks
from limits_common import CHECKS, FORMS, Row, limit, numbers, table
from server_test import MODEL, Server, post_bytes, user

TEMPLATE = "/apply-template"
LONG_CONTEXT = ("-c", "16384", "--parallel", "1")
NATIVE = {"prompt": "x", "n_predict": 1}
CHAT = {"messages": user("Hello"), "max_tokens": 1}
LONG = {"messages": user("Hello"), "stream": True, "max_tokens": 900, "ignore_eos": True}


# --- docs/server.md

@limit("requests at once")
def _(r):
    r.test.assertEqual(r.server().request("GET", "/props")[2]["total_slots"], r.n[0])


def held(s, n):
    """So many long answers, begun or waiting."""
    out = [s.connect() for _ in range(n)]
    for c in out:
        c.sendall(post_bytes("/v1/chat/completions", LONG))
        r = c.recv(12)
        assert r.startswith(b"HTTP/1.1 200"), r
    return out


def let_go(connections):
    for c in connections:
        c.close()


@limit("requests waiting")
def _(r):
    s = Server("-t", "1")
    r.test.addCleanup(s.stop)
    connections = held(s, s.request("GET", "/props")[2]["total_slots"] + r.n[0])
    status, headers, _ = s.request("POST", "/v1/chat/completions", CHAT)
    r.test.assertEqual((status, headers["Retry-After"]), (503, "1"))
    let_go(connections)


@limit("connections")
def _(r):
    s = Server("-t", "1")
    r.test.addCleanup(s.stop)
    connections = [s.connect() for _ in range(r.n[0])]
    connections[-1].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    r.test.assertIn(b" 200 ", connections[-1].recv(100))
    r.test.assertIn(b" 503 ", s.raw(b""))
    let_go(connections)


@limit("header with the request line")
def _(r):
    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: %s\r\n\r\n"
    fill = r.n[0] - len(head) + 2
    r.test.assertIn(b" 200 ", r.server().raw(head % (b"x" * fill)))
    r.test.assertIn(b" 431 ", r.server().raw(head % (b"x" * (fill + 1))))
    # The request line is part of it, also one that never ends.
    line = b"GET /health?%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    fill = r.n[0] - len(line) + 2
    r.test.assertIn(b" 200 ", r.server().raw(line % (b"x" * fill)))
    r.test.assertIn(b" 431 ", r.server().raw(line % (b"x" * (fill + 1))))
    r.test.assertIn(b" 431 ", r.server().raw(b"GET /" + b"x" * r.n[0]))


@limit("Content-Length")
def _(r):
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %s\r\n\r\n"
    r.test.assertIn(b" 413 ", r.server().raw(head % (b"9" * r.n[0])))
    r.test.assertIn(b" 400 ", r.server().raw(head % (b"9" * (r.n[0] + 1))))


@limit("body")
def _(r):
    r.default("--max-body", "32MB")
    r.taken("/tokenize", json.dumps({"content": "x"}).ljust(r.n[0]))
    r.refused("/tokenize", json.dumps({"content": "x"}).ljust(r.n[0] + 1), r.n[0], status=413)


@limit("bytes of a refused request that are read and dropped")
def _(r):
    with r.server().connect() as c:
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n")
        sent, begin = 0, time.time()
        try:
            while sent < 4 * r.n[0]:
                sent += c.send(b"x" * (1 << 20))
        except OSError:
            pass
        r.test.assertLess(sent, r.n[0] + (32 << 20))  # buffers of the kernel
        r.test.assertLess(time.time() - begin, 60)


@limit("later requests that are read while one is answered")
def _(r):
    with r.server().connect() as c:
        c.sendall(post_bytes("/v1/chat/completions", {**LONG, "stream": False}))
        c.settimeout(.3)
        sent = 0
        try:
            while sent < 64 << 20:
                sent += c.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)
        except OSError:  # it waits, or is dropped as it reads no answers
            pass
        r.test.assertLess(sent, r.n[0] + (32 << 20))


@limit("JSON nesting; bytes of object keys that are compared; more for each of them")
def _(r):
    deep = lambda n: '{"content":"x","y":' + "[" * (n - 1) + "]" * (n - 1) + "}"
    r.taken("/tokenize", deep(r.n[0]))
    r.refused("/tokenize", deep(r.n[0] + 1), r.n[0])
    for length in (6, 100, 1500):  # few long keys are as much work as many short ones
        keys = int((2 * r.n[1] / (length + r.n[2])) ** .5)
        wide = lambda n: json.dumps({"content": "x", **{str(i).rjust(length, "k"): i for i in range(n - 1)}})
        r.taken("/tokenize", wide(int(keys * .9)))
        begin = time.time()
        r.test.assertEqual(r.post("/tokenize", wide(int(keys * 1.1)))[0], 400)
        r.test.assertLess(time.time() - begin, 2)


@limit("a request's arrival")
def _(r):
    r.default("--request-time", r.n[0])
    s = r.server("--request-time", "1", "--idle", "2")
    begin = time.time()
    r.test.assertIn(b" 408 ", s.raw(b"GET /health HTTP/1.1\r\nHo"))
    r.test.assertTrue(.8 < time.time() - begin < 10)


@limit("idle connection")
def _(r):
    r.default("--idle", r.n[0])
    begin = time.time()
    r.test.assertEqual(r.server("--request-time", "1", "--idle", "2").raw(b""), b"")
    r.test.assertTrue(1.5 < time.time() - begin < 12)


@limit("stream that its reader is behind")
def _(r):
    r.default("--backlog", "1MB")
    s = r.server("--backlog", "4KB", "--write-time", "2", "-c", "2048")
    with s.connect(rcvbuf=2048) as c:
        c.sendall(post_bytes("/v1/chat/completions", {**LONG, "max_tokens": 2000, "timings_per_token": True}))
        s.wait_log(r"stop=(slow-reader|write-timeout|slow)")


@limit("reader that takes nothing of what waits for it, also in the kernel's buffer")
def _(r):
    r.default("--write-time", r.n[0])
    s = r.server("--backlog", "1MB", "--write-time", "2")
    with s.connect(rcvbuf=2048) as c:
        c.settimeout(20)
        with r.test.assertRaises(ConnectionError):
            for _ in range(200000):
                c.sendall(b"GET /props HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50)


@limit("silence of a stream before a keep-alive (a comment, or Anthropic's ping; not in Ollama's lines)")
def _(r):
    r.default("--ping", r.n[0])
    s = r.server("--parallel", "1", "--ping", "1", "-c", "4096")
    holder = s.connect()
    holder.sendall(post_bytes("/v1/chat/completions", {**LONG, "max_tokens": 4000, "draft": "none", "timings_per_token": True, "logprobs": True, "top_logprobs": 20}))
    holder.recv(100)
    with s.connect() as c:  # waits for its sequence
        c.sendall(post_bytes("/v1/chat/completions", LONG))
        out, end = b"", time.time() + 30
        while b"\r\n:" not in out and time.time() < end:
            holder.settimeout(.01)
            try:
                while holder.recv(1 << 20):
                    pass
            except TimeoutError:
                pass
            c.settimeout(.05)
            try:
                out += c.recv(4096)
            except TimeoutError:
                pass
            if b'"content":"' in out:
                break
    holder.close()
    r.test.assertIn(b"\r\n:", out)


@limit("messages or items; tools; prompts")
def _(r):
    messages, tools, prompts = r.n
    said = lambda n: [{"role": "user", "content": "a"}] * n
    for path, key in ((TEMPLATE, "messages"), ("/v1/messages/count_tokens", "messages"), ("/v1/responses/input_tokens", "input")):
        # Items that say nothing: as many turns are longer than the model's context.
        few = said(1) + [{"type": "reasoning", "summary": []}] * (messages - 1) if key == "input" else said(messages)
        r.taken(path, {key: few}, *LONG_CONTEXT)
        r.refused(path, {key: said(messages + 1)}, messages)
    r.refused("/api/chat", {"messages": said(messages + 1)}, messages)
    function = lambda i: {"name": f"f{i}", "description": "", "parameters": {"type": "object", "properties": {}}}
    kinds = {TEMPLATE: lambda i: {"type": "function", "function": function(i)}, "/v1/responses/input_tokens": lambda i: {"type": "function", **function(i)},
             "/v1/messages/count_tokens": lambda i: {"name": f"f{i}", "input_schema": {"type": "object"}}}
    for path, tool in kinds.items():
        ask = lambda n: {"input" if "responses" in path else "messages": user("x"), "tools": [tool(i) for i in range(n)]}
        r.taken(path, ask(tools), *LONG_CONTEXT)
        r.refused(path, ask(tools + 1), tools)
    for path in ("/v1/completions", "/completion"):
        r.taken(path, {"prompt": ["x"] * prompts, "max_tokens": 1})
        r.refused(path, {"prompt": ["x"] * (prompts + 1), "max_tokens": 1}, prompts)


@limit("choices of a prompt; all choices of a request")
def _(r):
    parallel = r.server().request("GET", "/props")[2]["total_slots"]
    most = parallel + numbers(table("server.md")["requests waiting"][0])[0]
    for path, key in (("/v1/chat/completions", "n"), ("/v1/completions", "n"), ("/v1/completions", "best_of"), ("/completion", "n_cmpl")):
        ask = {**(CHAT if "chat" in path else NATIVE), "max_tokens": 1}
        r.taken(path, {**ask, key: parallel})
        r.refused(path, {**ask, key: parallel + 1}, parallel)
    r.server().wait_log(r"running=0\n$")  # what earlier checks began
    r.taken("/v1/completions", {"prompt": ["x"] * (most // 2), "n": 2, "max_tokens": 1})
    r.refused("/v1/completions", {"prompt": ["x"] * (most // 2 + 1), "n": 2, "max_tokens": 1}, most)


@limit("max_tokens and other counts of tokens")
def _(r):
    for path, key in (("/completion", "n_predict"), ("/v1/completions", "max_tokens"), ("/v1/completions", "top_k"), ("/v1/completions", "min_tokens"), ("/v1/completions", "repeat_last_n"),
                      ("/v1/chat/completions", "thinking_budget")):
        ask = {**(CHAT if "chat" in path else {"prompt": "x"}), "stop": " ", "max_tokens": 2}
        if key in ("n_predict", "max_tokens", "min_tokens"):
            ask = {"prompt": "x", "stop_token_ids": [1], "ignore_eos": False, "logit_bias": {"1": 100}}  # it ends at once
        if key != "min_tokens":
            r.taken(path, {**ask, key: r.n[0]})
        r.refused(path, {**ask, key: r.n[0] + 1}, r.n[0])


@limit("stop; one of them")
def _(r):
    for path, ask, key in (("/v1/chat/completions", CHAT, "stop"), ("/v1/completions", {"prompt": "x", "max_tokens": 1}, "stop"), ("/completion", NATIVE, "stop"),
                           ("/v1/messages", CHAT, "stop_sequences")):
        r.taken(path, {**ask, key: ["é" * (r.n[1] // 2)] * r.n[0]})
        r.refused(path, {**ask, key: ["x"] * (r.n[0] + 1)}, r.n[0])
        r.refused(path, {**ask, key: ["x" * (r.n[1] + 1)]}, r.n[1])


@limit("stop_token_ids; response_fields; dry_sequence_breakers")
def _(r):
    r.taken("/completion", {**NATIVE, "stop_token_ids": [5] * r.n[0]})
    r.refused("/completion", {**NATIVE, "stop_token_ids": [5] * (r.n[0] + 1)}, r.n[0])
    r.taken("/completion", {**NATIVE, "response_fields": ["content"] * r.n[1]})
    r.refused("/completion", {**NATIVE, "response_fields": ["content"] * (r.n[1] + 1)}, r.n[1])
    dry = {**NATIVE, "dry_multiplier": 1}
    r.taken("/completion", {**dry, "dry_sequence_breakers": ["x" * r.n[3]] * r.n[2]})
    r.refused("/completion", {**dry, "dry_sequence_breakers": ["x"] * (r.n[2] + 1)}, r.n[2])
    r.refused("/completion", {**dry, "dry_sequence_breakers": ["x" * (r.n[3] + 1)]}, r.n[3])


@limit("logit_bias; a key that is text")
def _(r):
    r.taken("/completion", {**NATIVE, "logit_bias": [[5, 1]] * r.n[0]})
    r.refused("/completion", {**NATIVE, "logit_bias": [[5, 1]] * (r.n[0] + 1)}, r.n[0])
    r.taken("/completion", {**NATIVE, "logit_bias": [["x" * r.n[1], 1]]})
    r.refused("/completion", {**NATIVE, "logit_bias": [["x" * (r.n[1] + 1), 1]]}, r.n[1])


@limit("top_logprobs, logprobs; n_probs")
def _(r):
    r.taken("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": r.n[0]})
    r.refused("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": r.n[0] + 1}, r.n[0])
    r.taken("/v1/completions", {"prompt": "x", "max_tokens": 1, "logprobs": r.n[0]})
    r.refused("/v1/completions", {"prompt": "x", "max_tokens": 1, "logprobs": r.n[0] + 1}, r.n[0])
    r.taken("/completion", {**NATIVE, "n_probs": r.n[1]})
    r.refused("/completion", {**NATIVE, "n_probs": r.n[1] + 1}, r.n[1])


@limit("cache_salt")
def _(r):
    r.taken("/completion", {**NATIVE, "cache_salt": "x" * r.n[0]})
    r.refused("/completion", {**NATIVE, "cache_salt": "x" * (r.n[0] + 1)}, r.n[0])


@limit("a schema and other forms of an answer")
def _(r):
    r.test.assertIn("structured-output.md#limits", r.cells[0])


@limit("key file; keys; a key; a name")
def _(r):
    size, keys, key, name = r.n

    def starts(text):
        with tempfile.NamedTemporaryFile("w") as f:
            f.write(text)
            f.flush()
            try:
                s = Server("-t", "1", "--api-key-file", f.name, "-c", "256")
            except AssertionError as e:
                return str(e)
            return s.stop()
    some = "".join(f"k{i}\n" for i in range(keys))
    r.test.assertEqual(starts(some + "#" * (size - len(some))), 0)
    r.test.assertIn(str(keys), starts(some + "k\n"))
    r.test.assertNotEqual(starts("k\n" + "#" * size), 0)
    r.test.assertEqual(starts("k" * key + " " + "n" * name), 0)
    r.test.assertIn(str(key), starts("k" * (key + 1)))
    r.test.assertIn(str(name), starts("k " + "n" * (name + 1)))


@limit("Access-Control-Request-Headers that are repeated")
def _(r):
    s = r.server("--cors-origin", "https://chat.example")
    asked = lambda n: s.request("OPTIONS", "/v1/models", headers={"Origin": "https://chat.example", "Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "x" * n})
    r.test.assertEqual([asked(r.n[0] + more)[1]["Access-Control-Allow-Headers"] for more in (0, 1)], ["x" * r.n[0], "*"])


@limit("content of /tokenize; ids of /detokenize; bytes of their text")
def _(r):
    r.taken("/tokenize", {"content": "x" * r.n[0]})
    r.refused("/tokenize", {"content": "x" * (r.n[0] + 1)}, r.n[0])
    r.taken("/detokenize", {"tokens": [5] * r.n[1]})
    r.refused("/detokenize", {"tokens": [5] * (r.n[1] + 1)}, r.n[1])
    some = r.taken("/tokenize", {"content": " whenever something", "with_pieces": True})["tokens"]
    longest = max((t for t in some if isinstance(t["piece"], str)), key=lambda t: len(t["piece"]))
    fits = r.n[2] // len(longest["piece"])
    if fits < r.n[1]:
        r.taken("/detokenize", {"tokens": [longest["id"]] * fits})
        r.refused("/detokenize", {"tokens": [longest["id"]] * (fits + 1)}, r.n[2])


def arrived(s, body_bytes):
    """Waits until the server counts so many bytes of bodies: what was sent is not yet read."""
    def counted():
        lines = s.request("GET", "/metrics")[2].decode().splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith("facet_http_body_bytes ")))
    end = time.time() + 20
    while counted() < body_bytes:
        assert time.time() < end, f"{counted():.0f} of {body_bytes} bytes of bodies arrived in 20 s"
        time.sleep(.02)


@limit("bodies of all connections that arrive or wait to be read, but for 64 KiB of each")
def _(r):
    r.default("--body-memory", "64MB")
    s = r.server("--body-memory", "1MB", "--max-body", "1MB")
    most, own = 1 << 20, r_own(r)
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    held = [s.connect() for _ in range(2)]
    for c in held:  # of each half a MiB counts; one that said its length could be refused for that
        c.sendall(head.replace(b"Content-Length: %d\r\n", b"Transfer-Encoding: chunked\r\n") + b"%x\r\n" % most + b"x" * (most // 2 + own))
    arrived(s, most)
    late = s.connect()
    late.sendall(head % (own + 1))
    answer = late.recv(1000)
    r.test.assertIn(b" 503 ", answer)
    r.test.assertIn(b"Retry-After", answer)
    r.test.assertEqual(s.request("POST", "/tokenize", {"content": "x" * (own - 100)})[0], 200)
    let_go([*held, late])
    end = time.time() + 10
    while s.request("POST", "/tokenize", {"content": "x" * (own * 2)})[0] != 200:
        r.test.assertLess(time.time(), end)
        time.sleep(.05)


def r_own(r):
    return numbers(next(name for page, name in CHECKS if name.startswith("bodies of all connections")))[0]


@limit("answers of all connections that wait for their readers")
def _(r):
    r.default("--answer-memory", "64MB")
    s = r.server("--answer-memory", "1MB", "--write-time", "60")
    body = json.dumps({"tokens": [5] * 40000}).encode()
    ask = b"POST /detokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    slow = [s.connect(rcvbuf=2048) for _ in range(8)]
    for c in slow:
        c.sendall(ask)
    for _ in range(5):  # whoever reads has the answer
        r.test.assertEqual(s.request("POST", "/detokenize", {"tokens": [5] * 40000})[0], 200)
    value = lambda name: int(next(line.split()[1] for line in s.request("GET", "/metrics")[2].decode().splitlines() if line.startswith(name + " ")))
    r.test.assertGreater(value("facet_http_dropped_readers_total"), 0)
    r.test.assertLessEqual(value("facet_http_answer_bytes"), 1 << 20)
    let_go(slow)


@limit("what an error quotes; its message")
def _(r):
    long = "\u00e9" * 5000
    for body in ({"messages": [{"role": long, "content": ""}]}, {**CHAT, "tool_choice": long}, {**CHAT, "max_tokens": long}, {**CHAT, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {long: 1}}}},
                 {**CHAT, "json_schema": {"properties": {long: {"properties": {long: {"not": {}}}}}}}, {**CHAT, "grammar": long}, {**CHAT, "guided_regex": "(" + long}, {**CHAT, "tools": [{"type": long}]}):
        status, _, answer = r.post("/v1/chat/completions", body)
        r.test.assertEqual(status, 400)
        r.test.assertLessEqual(len(answer["error"]["message"].encode()), r.n[1] + 3)  # and an ellipsis
        r.test.assertNotIn("\u00e9" * (r.n[0] // 2 + 1), answer["error"]["message"])


@limit("conversations in files: off, or a folder; its bytes")
def _(r):
    r.default("--cache-disk-size", "16GB")  # tests/e2e/cache_test.py fills a small one


@limit("a file's name of /slots")
def _(r):
    with tempfile.TemporaryDirectory() as d:
        r.taken("/completion", NATIVE)
        s = Server("-t", "1", "--slot-save-path", d, "-c", "1024")
        try:
            s.request("POST", "/completion", NATIVE)
            save = lambda name: s.request("POST", "/slots/0?action=save", {"filename": name})[0]
            r.test.assertEqual([save("x" * r.n[0]), save("x" * (r.n[0] + 1)), save("a/b"), save("..")], [200, 400, 400, 400])
        finally:
            s.stop()


@limit("drain after SIGTERM")
def _(r):
    r.default("--drain", r.n[0])
    s = Server("-t", "1", "--drain", "1")
    with s.connect() as c:
        c.sendall(post_bytes("/v1/chat/completions", {**LONG, "max_tokens": 4000, "draft": "none"}))
        c.recv(100)
        begin = time.time()
        r.test.assertEqual(s.stop(20), 0)
        r.test.assertLess(time.time() - begin, 15)


class Limits(unittest.TestCase):
    @classmethod
    def tearDownClass(cls):
        codes = [s.stop() for s in Row.servers.values()]
        Row.servers.clear()
        assert not any(codes), codes

    def test_every_row(self):
        rows = {(page, name): cells for page in ("server.md", FORMS) for name, cells in table(page).items()}
        self.assertEqual(set(rows), set(CHECKS))
        for name, cells in rows.items():
            with self.subTest(name):
                begin = time.time()
                CHECKS[name](Row(self, cells))
                print(f"{name[1]}: {time.time() - begin:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    if not MODEL.exists():
        print(f"skipped: {MODEL} is missing")
        sys.exit(77)
    unittest.main()
