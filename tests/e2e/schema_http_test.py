#!/usr/bin/env python3
"""Structured output over HTTP: schema_http_test.py PROGRAM [--schemas N] [--tokens N] [--rates] [-m MODEL] [SERVER OPTION...]

Schemas x temperature 0 and 1 x drafts and none, with the shipped model. An answer that ended by itself is valid by the jsonschema package; what was cut off begins a
valid one, and that happens to less than 5 % of them; texts are the same with drafts and without. FACET_TEST_FULL=1: 200 schemas, which have every keyword of
docs/structured-output.md. --rates, on a quiet machine: tokens per second with a schema and without, with drafts and without, and their bounds.
"""
import argparse
import concurrent.futures
import http.client
import json
import os
import pathlib
import random
import re
import subprocess
import sys

import grammar_schema_test as g

ROOT = pathlib.Path(__file__).resolve().parents[2]
FULL = os.environ.get("FACET_TEST_FULL") == "1"
RECORD = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 24}, "age": {"type": "integer", "minimum": 0, "maximum": 150}, "city": {"type": "string", "maxLength": 24},
                                           "job": {"type": "string", "maxLength": 24}}, "required": ["name", "age", "city", "job"], "additionalProperties": False}
WORDS = {"type": "array", "items": {"type": "string", "maxLength": 16}, "minItems": 1, "maxItems": 12}
PROMPTS = ["Extract name, age, city and job as JSON: Anna Berger is 43 years old, lives in Lisbon and works as a nurse.",
           "Tom Miller is a 61 year old farmer from Dublin.\nWrite name, age, city and job as JSON.",
           "Extract name, age, city and job from this text as JSON.\nThe teacher Mia Novak is 28 years old and lives in Madrid.",
           "Write this list as a JSON array: red, green, blue, white, black and yellow"]
FORMS = [RECORD, RECORD, RECORD, WORDS]


def bounded(s):
    """The same with an end to every string, array and object: the model is small, and what it writes into a form that it has never seen need not come to an end."""
    if not isinstance(s, dict):
        return s
    s = {k: v if k in ("enum", "const", "default", "examples", "required", "propertyNames") else
         {n: bounded(x) for n, x in v.items()} if k in ("properties", "patternProperties", "$defs", "definitions") and isinstance(v, dict) else
         [bounded(x) for x in v] if isinstance(v, list) else bounded(v) for k, v in s.items()}
    kinds = s.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if "string" in kinds and not {"enum", "maxLength", "pattern", "format"} & set(s):
        s["maxLength"] = 8
    if s.get("pattern") in ("[0-9]+", "^a|b$", "^[^\"\\\\]*$", "^\u00e9+x?$", "^\\w+\\s\\w+$"):
        s["maxLength"] = 12
    if s.get("format") in ("uri", "email", "hostname", "json-pointer"):
        s["maxLength"] = 30
    if "array" in kinds and "maxItems" not in s:
        s["maxItems"] = max(3, s.get("minItems", 0), len(s.get("prefixItems", [])))
        s.setdefault("items", {"type": "integer"})
    if "object" in kinds and not {"properties", "patternProperties", "additionalProperties"} & set(s):
        s["additionalProperties"] = {"type": "integer"}
    if s.get("additionalProperties", False) is not False or "patternProperties" in s:
        s.setdefault("maxProperties", len(s.get("properties", {})) + 2)
    if s.get("title") == "any":
        s["type"] = ["boolean", "null", "number"]
    return s


def recursive(r):
    """A list or a path through a tree: it ends with the depth that a grammar allows, if not before."""
    node = {"type": "object", "properties": {"value": bounded(g.schema(r, 0))}, "required": ["value"], "additionalProperties": False}
    more = [{"next": {"$ref": "#/$defs/node"}}, {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, {"kids": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 1}}]
    node["properties"].update(r.choice(more))
    return {"$defs": {"node": node}, "type": "object", "properties": {"root": {"$ref": "#/$defs/node"}}, "required": ["root"], "additionalProperties": False}


def schemas(n):
    r = random.Random(2024)
    out = [recursive(r) for _ in range(20)] + [g.nested(d) for d in range(1, 9)]
    out += [{"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://example.org/a", "$comment": "annotations", "type": "object", "readOnly": False, "x-more": 1,
             "definitions": {"word": {"type": "string", "maxLength": 6, "deprecated": True}},
             "properties": {"a": {"$ref": "#/definitions/word"}, "b": {"type": "array", "uniqueItems": False, "items": {"$ref": "#/definitions/word"}, "maxItems": 3, "writeOnly": False}},
             "required": ["a", "b"], "additionalProperties": False},
            {"type": "array", "prefixItems": [{"type": "integer"}, {"enum": ["x", "y"]}], "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
            {"type": "array", "items": [{"type": "integer"}, {"type": "string", "maxLength": 3}], "additionalItems": False, "minItems": 1}]
    if n < 200:
        out = out[18:]  # two of the recursive ones, which are long
    while len(out) < n:
        s = g.schema(r, 1 + len(out) % 8 // 2)
        out.append(bounded(s) if len(out) % 40 else s)  # one in 40 is left as it is
    if n >= 200:
        g.KEYWORDS.clear()
        g.collect(out)
        table = (ROOT / "docs/structured-output.md").read_text().split("## Regular expressions")[0].split("|---|---|")[-1].split("| --- | --- |")[-1]
        known = {k for row in table.splitlines() if row.startswith("| ") for k in re.findall(r"`([$\w]+)`", row.split("|")[1])}
        assert len(known) > 30 and known <= g.KEYWORDS, known - g.KEYWORDS
    return out[:n]


# --- beginnings of values

def open_path(text):
    """The value that a cut off text begins, made whole with as little as may be, and the path of keys and indices that was cut; raises ValueError where it begins no JSON."""
    closing, path, i = [], [], 0
    state = "value"  # or key, colon, end: what may come
    while i < len(text):
        c = text[i]
        if c in " \t\n\r":
            i += 1
        elif state in ("value", "first") and c in "{[":
            closing.append("}" if c == "{" else "]")
            path.append(None if c == "{" else 0)
            state = "firstkey" if c == "{" else "first"
            i += 1
        elif c in "}]" and closing and closing[-1] == c and state in ("end", "first", "firstkey"):
            closing.pop(), path.pop()
            state = "end"
            i += 1
        elif c == "," and state == "end" and closing:
            if closing[-1] == "]":
                path[-1] += 1
            state = "key" if closing[-1] == "}" else "value"
            i += 1
        elif c == ":" and state == "colon":
            state = "value"
            i += 1
        elif state in ("value", "first", "key", "firstkey"):
            end = scalar_end(text, i, c)
            if end is None:  # cut inside
                return whole(text[:i], "value" if state == "first" else "key" if state == "firstkey" else state, closing, path, text[i:])
            if state in ("key", "firstkey"):
                path[-1] = json.loads(text[i:end])
            else:
                json.loads(text[i:end])
            state = "colon" if state in ("key", "firstkey") else "end"
            i = end
        else:
            raise ValueError(f"{c!r} at {i} in {text[-80:]!r}")
    return whole(text, state, closing, path, "")


def scalar_end(text, i, c):
    if c == '"':
        m = re.compile(r'"(?:[^"\\]|\\.)*"', re.S).match(text, i)
        return m.end() if m else None
    m = re.compile(r"[-+.\w]+").match(text, i)
    if not m:
        raise ValueError(f"{c!r} at {i}")
    return m.end() if m.end() < len(text) else None


def whole(done, state, closing, path, rest):
    """rest: the beginning of a scalar."""
    if rest.startswith('"'):
        rest = re.sub(r"\\(u[0-9a-fA-F]{0,3})?$", "", rest) if re.search(r"(^|[^\\])(\\\\)*\\(u[0-9a-fA-F]{0,3})?$", rest) else rest
        rest += '"'
    elif rest:
        rest = next((k for k in ("true", "false", "null") if k.startswith(rest)), rest)
        rest = rest if rest in ("true", "false", "null") else re.sub(r"[-.eE+]+$", lambda m: m[0] + "0", rest)
    json.loads(rest or "0", strict=True)
    if state == "key":  # as if it had not begun
        done, rest, path[-1] = re.sub(r",\s*$", "", done), "", None
    last = {"value": "" if rest else "0", "colon": ": 0"}.get(state, "")
    return json.loads(done + rest + last + "".join(reversed(closing))), path


def begins(validator, text):
    """None, or what is wrong with a text that was cut off: an error elsewhere than on the way to where it was cut."""
    try:
        value, path = open_path(text)
    except ValueError as e:
        return f"begins no JSON: {e}"
    for e in validator.iter_errors(value):
        at = list(e.absolute_path)
        if at != path[:len(at)] or e.validator in ("additionalProperties", "propertyNames", "maxItems", "maxProperties", "maxLength"):  # what no more text mends
            return str(e).splitlines()[0]
    return None


# --- the server

class Client:
    def __init__(self, program, model, more):
        self.server = subprocess.Popen([program, "serve", "-m", model, "--port", "0", "-c", "4096", "--parallel", "4", "-t", "1", *more], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.port = int(self.server.stdout.readline().rsplit(":", 1)[1])

    def chat(self, text, **fields):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        try:
            c.request("POST", "/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": text}], **fields}))
            r = c.getresponse()
            body = json.loads(r.read())
        finally:
            c.close()
        assert r.status == 200, (body, fields)
        return body

    def stop(self):
        self.server.terminate()
        assert self.server.wait(60) == 0


def answers(client, all_schemas, tokens):
    import jsonschema
    bad, cut, ended, different, accepted = [], 0, 0, 0, 0
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for i, schema in enumerate(all_schemas):
            form = {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": schema}}
            kinds = [(t, d) for t in (0, 1) for d in ("auto", "none")]
            got = list(pool.map(lambda k: client.chat(PROMPTS[i % len(PROMPTS)], temperature=k[0], draft=k[1], seed=i, max_tokens=tokens, response_format=form), kinds))
            accepted += sum(r["timings"].get("draft_n_accepted", 0) for r in got)
            choices = [r["choices"][0] for r in got]
            for a, b in ((0, 1), (2, 3)):
                if choices[a]["message"]["content"] != choices[b]["message"]["content"]:
                    different += 1
                    print("differs:", json.dumps(schema)[:300], *(repr(choices[k]["message"]["content"][:300]) for k in (a, b)), sep="\n  ")
            cls = jsonschema.Draft202012Validator if not isinstance(schema.get("items"), list) else jsonschema.Draft7Validator
            validator = cls(schema, format_checker=cls.FORMAT_CHECKER)
            for c in choices:
                text = c["message"]["content"]
                if c["finish_reason"] == "stop":
                    ended += 1
                    try:
                        wrong = next((str(e).splitlines()[0] for e in validator.iter_errors(json.loads(text))), None)
                    except ValueError as e:
                        wrong = str(e)
                else:
                    cut += 1
                    wrong = begins(validator, text)
                if wrong:
                    bad.append((json.dumps(schema)[:600], text[:600], wrong))
    print(f"{len(all_schemas)} schemas, {ended + cut} answers: {ended} ended by themselves, {cut} were cut off ({100 * cut / (ended + cut):.1f} %), {len(bad)} bad; "
          f"{different} texts differ with drafts; {accepted} drafted tokens accepted")
    for b in bad[:5]:
        print("BAD", *b, sep="\n  ")
    return not bad and not different and cut * 20 < ended + cut and accepted > 0


def rates(client):
    """Tokens per second of the prompts' answers, the best of 15 rounds in which all kinds take turns: other work on the machine meets all of them."""
    forms = [{"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": f}}} for f in FORMS]
    kinds = {"free, no drafts": ([{}] * 4, "none"), "schema, no drafts": (forms, "none"), "free, drafts": ([{}] * 4, "auto"), "schema, drafts": (forms, "auto")}
    best, tokens = dict.fromkeys(kinds, 0.), dict.fromkeys(kinds, 0)
    for _ in range(15):
        for name, (fields, draft) in kinds.items():
            timings = [client.chat(p, temperature=0, max_tokens=200, draft=draft, **f)["timings"] for p, f in zip(PROMPTS, fields)]
            tokens[name] = sum(t["predicted_n"] for t in timings)
            best[name] = max(best[name], sum(t["predicted_n"] - 1 for t in timings) / sum(t["predicted_ms"] for t in timings) * 1e3)
    for name, r in best.items():
        print(f"{name}: {r:.0f} tokens/s, {tokens[name]} tokens")
    cost, gain = best["schema, no drafts"] / best["free, no drafts"], best["schema, drafts"] / best["schema, no drafts"]
    print(f"with a schema / without: {cost:.2f}; with a schema, drafts / none: {gain:.2f}")
    return cost >= .9 and gain >= 1.3


def main():
    try:
        import jsonschema  # noqa: F401
    except ImportError:
        try:
            python = g.environment()
        except (subprocess.SubprocessError, OSError) as e:
            print(f"skipped: no jsonschema package here or on PyPI ({e})")
            return 77
        return subprocess.run([python, *sys.argv]).returncode
    p = argparse.ArgumentParser()
    p.add_argument("program")
    p.add_argument("-m", default=str(ROOT / "models" / "facet-nano-Q8_0.gguf"))
    p.add_argument("--schemas", type=int, default=200 if FULL else 12)
    p.add_argument("--tokens", type=int, default=2500)
    p.add_argument("--rates", action="store_true")
    a, more = p.parse_known_args()
    assert begins_bites()
    ok = True
    for wanted, flags, check in ((a.schemas, ["--draft-min", "2"], lambda c: answers(c, schemas(a.schemas), a.tokens)),  # drafts, whether they pay or not
                                 (a.rates, [], rates)):
        if not wanted:
            continue
        client = Client(a.program, a.m, [*flags, *more])
        try:
            ok = check(client) and ok
        finally:
            client.stop()
    return 0 if ok else 1


def begins_bites():
    """That what is no beginning is seen."""
    import jsonschema
    v = jsonschema.Draft202012Validator({"type": "object", "properties": {"a": {"type": "integer", "maximum": 9}, "b": {"type": "array", "items": {"enum": ["red", 1]}}}, "required": ["a", "b"],
                                         "additionalProperties": False})
    good = ["", "{", '{"', '{"a"', '{"a":', '{"a": 1', '{"a": -', '{"a": 1, ', '{"a": 1, "b": ["r', '{"a": 1, "b": ["red", ', '{"a": 1, "b": ["red"], ', '{"b": ["red", 1', '{"a": 1, "c', "  {"]
    wrong = ["}", "{a", '{"a" 1', '{"a": 10, "b"', '{"a": "x", "', '{"a": 1, "b": ["blue", "r', '{"a": 1]', '{"a": tru, "b', '{"c": 1, "a', '{"a": 01, "b', '{"c"', '{"c": 1']
    return not any(begins(v, t) for t in good) and all(begins(v, t) for t in wrong)


if __name__ == "__main__":
    sys.exit(main())
