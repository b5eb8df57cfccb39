"""Checks of docs/structured-output.md's limits, for limits_test.py."""
import json

from limits_common import FORMS, ROOT, limit
from server_test import user


def forms(r, key, good, bad, says):
    """One form of an answer that is taken and one that is refused, as fields of a request."""
    if good is not None:
        r.taken("/v1/completions", {"prompt": "x", "max_tokens": 1, key: good})
    if bad is not None:
        r.refused("/v1/completions", {"prompt": "x", "max_tokens": 1, key: bad}, says)


@limit("schema, GBNF, expression, choices", FORMS)
def _(r):
    schema, gbnf, regex, choices, texts = r.n
    described = lambda n: {"type": "null", "description": "x" * (n - len('{"type":"null","description":""}'))}
    forms(r, "json_schema", described(schema), described(schema + 1), schema)
    commented = lambda n: 'root ::= "x"\n#'.ljust(n, "x")
    forms(r, "grammar", commented(gbnf), commented(gbnf + 1), gbnf)
    forms(r, "guided_regex", "x" * regex, "x" * (regex + 1), regex)
    forms(r, "guided_choice", [f"{i:05}" for i in range(texts)], [f"{i:05}" for i in range(texts + 1)], texts)
    long = lambda n: [c * (n // 4) for c in "abcd"]
    forms(r, "guided_choice", long(choices * 9 // 10), long(choices + 4), choices)  # all of it only where they share states


@limit("functions", FORMS)
def _(r):
    ask = lambda n: {"messages": user("x"), "max_tokens": 1, "tool_choice": "required", "tools": [{"type": "function", "function": {"name": f"f{i}", "parameters": {"type": "object"}}} for i in range(n)]}
    r.taken("/v1/chat/completions", ask(r.n[0]), "-c", "16384", "--parallel", "1")
    r.refused("/v1/chat/completions", ask(r.n[0] + 1), r.n[0])


@limit("schema of a function; all declarations of a request", FORMS)
def _(r):
    described = lambda n: {"type": "object", "description": "x" * (n - len('{"type":"object","description":""}'))}
    dialects = {"/v1/chat/completions/input_tokens": lambda i, s: {"type": "function", "function": {"name": f"f{i}", "parameters": s}},
                "/v1/responses/input_tokens": lambda i, s: {"type": "function", "name": f"f{i}", "parameters": s},
                "/v1/messages/count_tokens": lambda i, s: {"name": f"f{i}", "input_schema": s},
                "/api/chat": lambda i, s: {"type": "function", "function": {"name": f"f{i}", "parameters": s}}}
    for path, tool in dialects.items():
        few = {"stream": False, "options": {"num_predict": 1}} if path == "/api/chat" else {}
        ask = lambda sizes: {"input" if "responses" in path else "messages": user("x"), "tools": [tool(i, described(n)) for i, n in enumerate(sizes)], **few}
        for sizes in ([r.n[0]], [r.n[0] - 1000] * (r.n[1] // r.n[0])):
            r.taken(path, ask(sizes))
        r.refused(path, ask([r.n[0] + 1]), r.n[0])
        r.refused(path, ask([r.n[0] - 1000] * (r.n[1] // r.n[0] + 1)), r.n[1])
    # The form of an answer has the same limit under each of its names.
    for path, fields in (("/v1/chat/completions", lambda s: {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": s}}}),
                         ("/v1/responses", lambda s: {"text": {"format": {"type": "json_schema", "name": "x", "schema": s}}}),
                         ("/v1/messages", lambda s: {"output_config": {"format": {"type": "json_schema", "schema": s}}}), ("/api/chat", lambda s: {"format": s})):
        r.refused(path, {"input" if "responses" in path else "messages": user("x"), **fields(described(r.n[0] + 1))}, r.n[0])


@limit("schemas nested, groups nested", FORMS)
def _(r):
    def nested(n):
        s = {"type": "null"}
        for _ in range(n):
            s = {"type": "array", "items": s, "maxItems": 1}
        return s
    text = lambda n: json.dumps(nested(n))  # as a value of the request it would nest too deep for JSON
    forms(r, "guided_json", text(r.n[0]), text(r.n[0] + 1), r.n[0])
    forms(r, "guided_regex", "(" * r.n[1] + "x" + ")" * r.n[1], "(" * (r.n[1] + 1) + "x" + ")" * (r.n[1] + 1), r.n[1])
    forms(r, "grammar", "root ::= " + "(" * r.n[1] + '"x"' + ")" * r.n[1], "root ::= " + "(" * (r.n[1] + 1) + '"x"' + ")" * (r.n[1] + 1), r.n[1])


@limit("{m,n}", FORMS)
def _(r):
    forms(r, "guided_regex", f"x{{{r.n[0]}}}", f"x{{{r.n[0] + 1}}}", r.n[0])
    forms(r, "grammar", f'root ::= "x"{{0,{r.n[0]}}}', f'root ::= "x"{{0,{r.n[0] + 1}}}', r.n[0])


@limit("items, properties counted; length of a string", FORMS)
def _(r):
    forms(r, "json_schema", {"type": "array", "items": {"type": "null"}, "maxItems": r.n[0]}, {"type": "array", "items": {"type": "null"}, "maxItems": r.n[0] + 1}, r.n[0])
    forms(r, "json_schema", {"type": "string", "maxLength": r.n[1]}, {"type": "string", "maxLength": r.n[1] + 1}, r.n[1])


@limit("work of compiling one grammar", FORMS)
def _(r):
    many = lambda n: {"type": "object", "properties": {f"p{i}": {"type": "integer", "multipleOf": 997 - i} for i in range(n)}}
    forms(r, "json_schema", many(1), many(40), r.n[0])


@limit("states, edges of a grammar", FORMS)
def _(r):
    forms(r, "guided_regex", "[a-z]{9999}" * (r.n[0] // 10000 - 1), "[a-z]{9999}" * (r.n[0] // 10000 + 1), r.n[0])


@limit("states of one string's constraints", FORMS)
def _(r):
    forms(r, "json_schema", {"type": "string", "pattern": "^[ab]*a[ab]{8}$", "maxLength": 20}, {"type": "string", "pattern": "^[ab]*a[ab]{20}$", "maxLength": 4000}, r.n[0])


@limit("rules, expressions; schemas with those that $ref and allOf repeat", FORMS)
def _(r):
    texts = lambda n: "root ::= x0\n" + "\n".join(f'x{i} ::= "a" x{i + 1} | "b"' for i in range(n - 2)) + f'\nx{n - 2} ::= "c"'
    forms(r, "grammar", texts(3000), None, None)
    doubled = {"$defs": {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]} for i in range(17)}, "$ref": "#/$defs/d0"}
    doubled["$defs"]["d17"] = {"type": "null"}
    forms(r, "json_schema", None, doubled, r.n[2])


@limit("stack", FORMS)
def _(r):
    chain = lambda n: "root ::= a0\n" + "".join(f'a{i} ::= "(" a{i + 1} ")"\n' for i in range(n)) + f'a{n} ::= "x"\n'
    forms(r, "grammar", chain(r.n[1] - 2), chain(r.n[1] + 2), "")
    deep = r.taken("/v1/completions", {"prompt": "x", "max_tokens": 400, "logit_bias": [["[[", 50], ["[", 50]], "guided_json": {}, "temperature": 0})["choices"][0]["text"]
    most = max(deep[:i].count("[") - deep[:i].count("]") for i in range(len(deep) + 1))
    r.test.assertTrue(r.n[0] // 2 < most <= r.n[0] + 1, most)  # the innermost needs none


@limit("cache of masks", FORMS)
def _(r):  # GrammarMasks.CacheIsBoundedAndEqual fills a small one
    r.test.assertIn(f"size_t({r.n[0] >> 20}) << 20", (ROOT / "src/grammar/masks.h").read_text())


@limit("work of one mask or token", FORMS)
def _(r):
    n = 60  # rules that call each other in every way
    rules = "root ::= r0\n" + "\n".join(f"r{i} ::= [a-z ] r{(7 * i + 1) % n} r{(11 * i + 3) % n} r{(13 * i + 5) % n} | [a-z ] r{(17 * i + 2) % n} r{(3 * i + 1) % n} | [a-z ]" for i in range(n))
    r.refused("/v1/completions", {"prompt": "a", "max_tokens": 200, "seed": 1, "temperature": 1, "grammar": rules}, r.n[0])
