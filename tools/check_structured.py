#!/usr/bin/env python3
"""Structured output over HTTP: check_structured.py PROGRAM [-m MODEL] [--schemas N]

Random schemas (those of tests/e2e/grammar_schema_test.py) x temperature 0 and 1 x drafts and none. Prints how many answers ended and are valid, whether greedy texts are the same with drafts and
without, and tokens per second: with a schema and without, with drafts and without. Needs the package jsonschema. Exit code 1 where an answer is not valid or texts differ."""
import argparse
import concurrent.futures
import http.client
import json
import pathlib
import random
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
PROMPTS = ["Write an example as JSON.", "Give me a JSON object.", "Describe a person as JSON.", "List three fruits as JSON."]


class Client:
    def __init__(self, port):
        self.port = port

    def chat(self, text, **fields):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        c.request("POST", "/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": text}], **fields}))
        r = c.getresponse()
        body = json.loads(r.read())
        c.close()
        if r.status != 200:
            raise ValueError(body["error"]["message"])
        return body


def rate(client, **fields):
    """Tokens per second over the prompts, one at a time, the best of three rounds."""
    best = 0
    for _ in range(3):
        tokens = seconds = 0
        for p in PROMPTS:
            t = client.chat(p, temperature=0, **fields)["timings"]
            tokens += t["predicted_n"] - 1
            seconds += t["predicted_ms"] / 1e3
        best = max(best, tokens / seconds)
    return best


def schemas(n):
    import grammar_schema_test as g
    r = random.Random(2024)
    out = [g.recursive(r) for _ in range(20)] + [g.nested(d) for d in range(1, 9)]
    while len(out) < n:
        out.append(g.schema(r, 1 + len(out) % 8 // 2))
    return out[:n]


def validate(schema, text):
    import jsonschema
    jsonschema.validate(json.loads(text), schema, cls=jsonschema.Draft202012Validator)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("program")
    p.add_argument("-m", default=str(ROOT / "models" / "facet-nano-Q8_0.gguf"))
    p.add_argument("--schemas", type=int, default=200)
    p.add_argument("--tokens", type=int, default=400)
    a = p.parse_args()
    server = subprocess.Popen([a.program, "serve", "-m", a.m, "--port", "0", "-c", "1024", "--parallel", "4"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    bad, unfinished, ended, different, refused = [], 0, 0, 0, 0
    try:
        client = Client(int(server.stdout.readline().rsplit(":", 1)[1]))

        def one(schema, temperature, draft, seed):
            return client.chat("Write an example.", temperature=temperature, seed=seed, draft=draft, max_tokens=a.tokens,
                               response_format={"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": schema}})["choices"][0]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for i, schema in enumerate(schemas(a.schemas)):
                try:
                    got = list(pool.map(lambda x: one(schema, x[0], x[1], i), [(0, "auto"), (0, "none"), (1, "auto"), (1, "none")]))
                except ValueError as e:
                    refused += 1
                    print("refused:", e, json.dumps(schema)[:200])
                    continue
                different += got[0]["message"]["content"] != got[1]["message"]["content"]
                different += got[2]["message"]["content"] != got[3]["message"]["content"]
                for c in got:
                    if c["finish_reason"] != "stop":
                        unfinished += 1
                        continue
                    ended += 1
                    try:
                        validate(schema, c["message"]["content"])
                    except Exception as e:
                        bad.append((schema, c["message"]["content"], str(e)[:200]))
        print(f"answers: {ended} ended by themselves, {len(bad)} of them not valid; {unfinished} cut off ({100 * unfinished / max(1, ended + unfinished):.1f} %); schemas refused: {refused}; "
              f"texts that differ with drafts: {different}")
        for b in bad[:3]:
            print(b)
        person = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 8, "maxItems": 12},
                                                   "address": {"type": "object", "properties": {"street": {"type": "string", "maxLength": 20}, "city": {"type": "string", "maxLength": 20}}, "required": ["street", "city"], "additionalProperties": False}},
                  "required": ["name", "age", "tags", "address"], "additionalProperties": False}
        form = {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": person}}, "max_tokens": 200}
        free = {"max_tokens": 100, "ignore_eos": True}
        rates = {name: rate(client, **fields) for name, fields in (("free, no drafts", {**free, "draft": "none"}), ("schema, no drafts", {**form, "draft": "none"}),
                                                                   ("free, drafts", free), ("schema, drafts", form))}
        for name, r in rates.items():
            print(f"{name}: {r:.1f} tok/s")
        print(f"schema / free, no drafts: {rates['schema, no drafts'] / rates['free, no drafts']:.2f}; drafts / no drafts with a schema: {rates['schema, drafts'] / rates['schema, no drafts']:.2f}")
    finally:
        server.terminate()
        server.wait(30)
    sys.exit(1 if bad or different else 0)


main()
