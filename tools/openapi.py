#!/usr/bin/env python3
"""docs/openapi.yaml as the server has it at /openapi.json, and the page /docs made of it.

  openapi.py SOURCE HEADER     writes a C++ header with both, compressed, and the hash of the page's style
  openapi.py SOURCE            prints the JSON

The source also bounds what tests send (schemathesis): limits of lengths and numbers are left out of requests here, and
where it has "x-public", that stands in the place of what is around it. It is read without a library: the YAML that it
uses is block and flow collections, plain and double-quoted scalars, anchors and merge keys."""
import base64
import gzip
import hashlib
import html
import json
import re
import sys

LIMITS = {"maximum", "maxLength", "maxItems", "maxProperties"}
STYLE = """:root{color-scheme:light dark;font:16px/1.5 system-ui,sans-serif}body{max-width:60rem;margin:2rem auto;padding:0 1rem}
h2{font-size:1rem;margin:2rem 0 .2rem}code,h2{font-family:ui-monospace,monospace}table{border-collapse:collapse;width:100%}
td{padding:.15rem .8rem .15rem 0;vertical-align:top;border-top:1px solid #8884}td:first-child{width:14rem}p{margin:.3rem 0}"""


class Reader:
    """YAML of the subset, to dicts, lists and scalars."""

    def __init__(self, text):
        self.lines = []
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip() and not line.lstrip().startswith("#"):
                self.lines.append((len(line) - len(line.lstrip()), line.strip(), number))
        self.at, self.anchors = 0, {}

    def fail(self, what):
        raise SystemExit(f"openapi.yaml line {self.lines[min(self.at, len(self.lines) - 1)][2]}: {what}")

    def block(self, indent):
        first = self.lines[self.at]
        return self.sequence(first[0]) if first[1].startswith("- ") else self.mapping(first[0]) if first[0] >= indent else None

    def mapping(self, indent):
        out = {}
        while self.at < len(self.lines) and self.lines[self.at][0] == indent and not self.lines[self.at][1].startswith("- "):
            self.entry(out, indent, self.lines[self.at][1])
        if self.at < len(self.lines) and self.lines[self.at][0] > indent:
            self.fail("expected less indentation")
        return out

    def entry(self, out, indent, line):
        """A key and its value, on this line or the lines below."""
        found = re.match(r'("(?:[^"\\]|\\.)*"|[^\s"{\[][^:]*?):(?:\s+(.*))?$', line)
        if not found:
            self.fail(f"expected KEY: VALUE, found {line}")
        key, rest = scalar(found[1]), found[2] or ""
        anchor = re.match(r"&(\w+)\s*(.*)", rest)
        rest = anchor[2] if anchor else rest
        if key == "<<":
            self.at += 1
            out.update(self.anchors[rest[1:]])
            return
        if rest:
            value = self.inline(rest)
        else:
            self.at += 1
            value = self.block(indent + 1)
        if anchor:
            self.anchors[anchor[1]] = value
        if key in out:
            self.fail(f"{key} is there twice")
        out[key] = value

    def sequence(self, indent):
        out = []
        while self.at < len(self.lines) and self.lines[self.at][0] == indent and self.lines[self.at][1].startswith("- "):
            _, text, number = self.lines[self.at]
            rest = text[2:]
            if rest[0] in '{["' or not re.match(r"[^\s]+:(\s|$)", rest):
                out.append(self.inline(rest))
            else:  # a mapping that begins here
                self.lines[self.at] = (indent + 2, rest, number)
                out.append(self.mapping(indent + 2))
        return out

    def inline(self, text):
        """A scalar, or a flow collection that may go on on the next lines."""
        self.at += 1
        if text[0] not in "{[":
            if text[0] != '"' and re.search(r":\s|\s#", text):
                self.fail(f"expected a text without colons or comments, or in quotes, found {text}")
            return scalar(text)
        while depth(text) > 0:
            text += " " + self.lines[self.at][1]
            self.at += 1
        value, end = flow(text, 0)
        if text[end:].strip():
            self.fail(f"expected nothing after a value, found {text[end:]}")
        return value


def depth(text):
    plain = re.sub(r'"(?:[^"\\]|\\.)*"', "", text)
    return sum((c in "{[") - (c in "}]") for c in plain)


def scalar(text):
    text = text.strip()
    if text.startswith('"'):
        return json.loads(text)
    if text in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[text]
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    return float(text) if re.fullmatch(r"-?\d+\.\d+", text) else text


def blank(text, at):
    return at + len(text[at:]) - len(text[at:].lstrip())


def flow(text, at):
    """The value that begins at `at`, and where it ends."""
    at = blank(text, at)
    if text[at] == "{":
        out, at = {}, blank(text, at + 1)
        while text[at] != "}":
            found = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s:,{}\[\]][^:,{}\[\]]*').match(text, at)
            if not found or text[found.end()] != ":":
                raise SystemExit(f"openapi.yaml: expected KEY: VALUE, found {text[at:at + 60]}")
            value, at = flow(text, found.end() + 1)
            out[scalar(found[0])] = value
            at = blank(text, at)
            at = blank(text, at + 1) if text[at] == "," else at
        return out, at + 1
    if text[at] == "[":
        out, at = [], blank(text, at + 1)
        while text[at] != "]":
            value, at = flow(text, at)
            out.append(value)
            at = blank(text, at)
            at = blank(text, at + 1) if text[at] == "," else at
        return out, at + 1
    found = re.compile(r'"(?:[^"\\]|\\.)*"|[^,{}\[\]]+').match(text, at)
    return scalar(found[0]), found.end()


def public(value, asked=False):
    """Without what bounds the requests of tests. asked: it is part of a request."""
    if isinstance(value, list):
        return [public(v, asked) for v in value]
    if not isinstance(value, dict):
        return value
    if "x-public" in value:
        return public(value["x-public"], asked)
    # The name of a property is no keyword: the values of those are objects.
    dropped = {k for k, v in value.items() if asked and (k in LIMITS and not isinstance(v, dict) or k == "additionalProperties" and v is False)}
    return {k: public(v, asked or k == "requestBody" or k.endswith("Request") or k in ("Text", "Content", "Sampling"))
            for k, v in value.items() if k not in dropped}


def resolved(document, value):
    while isinstance(value, dict) and "$ref" in value:
        at = document
        for step in value["$ref"][2:].split("/"):
            at = at[step]
        value = at
    return value


def shape(document, schema):
    """A schema in a few words."""
    s = resolved(document, schema)
    if "enum" in s:
        return " | ".join(json.dumps(v) for v in s["enum"])
    if "const" in s:
        return json.dumps(s["const"])
    for key in ("oneOf", "anyOf"):
        if key in s:
            return " or ".join(dict.fromkeys(shape(document, x) for x in s[key]))
    if s.get("type") == "array":
        return "array of " + shape(document, s["items"]) if "items" in s else "array"
    kind = s.get("type", "anything")
    return " or ".join(kind) if isinstance(kind, list) else kind


def fields(document, schema):
    s = resolved(document, schema)
    rows = []
    for name, value in s.get("properties", {}).items():
        must = " required" if name in s.get("required", []) else ""
        rows.append(f"<tr><td><code>{html.escape(name)}</code>{must}<td>{html.escape(shape(document, value))}")
    return f"<table>{''.join(rows)}</table>" if rows else ""


def page(document):
    parts = []
    for path, methods in document["paths"].items():
        for method, what in methods.items():
            parts.append(f"<h2>{method.upper()} {html.escape(path)}</h2>")
            good = resolved(document, what["responses"]["200"])
            parts.append("".join(f"<p>{html.escape(x)}.</p>" for x in (what.get("description"), good.get("description")) if x))
            if "requestBody" in what:
                parts.append(fields(document, what["requestBody"]["content"]["application/json"]["schema"]))
    return ("<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
            f"<title>facet: the API</title><style>{STYLE}</style><h1>The API</h1><p>{html.escape(document['info']['description'])}</p>"
            "<p>All of it for programs: <a href=openapi.json>openapi.json</a> (OpenAPI 3.1). The page to talk with the model: "
            "<a href=./>here</a>.</p>" + "\n".join(parts) + "</html>\n")


def constant(name, data):
    packed = gzip.compress(data, 9, mtime=0)
    rows = [",".join(map(str, packed[i:i + 40])) for i in range(0, len(packed), 40)]
    return f"inline constexpr unsigned char {name}[] = {{  // gzip\n" + ",\n".join(rows) + "};\n"


def main(source, header=None):
    with open(source, encoding="utf-8") as f:
        reader = Reader(f.read())
    whole = reader.block(0)
    if reader.at < len(reader.lines):
        reader.fail("expected the end")
    if header == "--source":  # for the test: as it stands
        print(json.dumps(whole))
        return
    document = public(whole)
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    if header is None:
        print(text)
        return
    style = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    docs = page(document)
    tag = hashlib.sha256((text + docs).encode()).hexdigest()[:16]
    with open(header, "w", encoding="utf-8") as f:
        f.write(f'#pragma once\n#define FACET_DOCS_STYLE "sha256-{style}"\n#define FACET_DOCS_TAG "\\"{tag}\\""\n')
        # In pieces: compilers bound the length of one literal.
        pieces = [text[i:i + 4000] for i in range(0, len(text), 4000)]
        f.write("inline constexpr char kOpenApi[] =\n" + "\n".join(f'    R"~~({p})~~"' for p in pieces) + ";\n")
        f.write(constant("kOpenApiGzip", text.encode()) + constant("kDocsPage", docs.encode()))


if __name__ == "__main__":
    main(*sys.argv[1:3])
