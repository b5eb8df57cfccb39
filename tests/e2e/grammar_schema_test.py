#!/usr/bin/env python3
"""Random answers under the masks of 200 schemas, against the jsonschema package.

Usage: grammar_schema_test.py FACET_GRAMMAR_WALK [answers per schema]
The package is installed into a virtual environment from PyPI; where that cannot be reached the test is skipped (77).
"""
import json
import os
import random
import subprocess
import sys
import tempfile

KEYWORDS = set()
BAD, COUNT = [], {"total": 0, "unfinished": 0}


def strings(r):
    kind = r.randrange(9)
    if kind == 0:
        return {"type": "string"}
    if kind == 1:
        low = r.randrange(4)
        return {"type": "string", "minLength": low, "maxLength": low + r.randrange(5)}
    if kind == 2:
        return {"type": "string", "pattern": r.choice(["^[a-z]{2,5}$", "^a|b$", "[0-9]+", "^(yes|no)$", "\\d{3}-\\d{4}",
                                                      "^\\w+\\s\\w+$", "^[^\"\\\\]*$", "^\u00e9+x?$", "^.{1,3}$"])}
    if kind == 3:
        return {"type": "string", "format": r.choice(["date", "time", "date-time", "uuid", "email", "ipv4", "ipv6", "hostname",
                                                     "uri", "duration", "json-pointer"])}
    if kind == 4:
        return {"enum": r.sample(["a", "b\"c", "\u00e9\\", "", "line\n", 1, 2.5, None, True, [1, 2], {"k": "v"}], 3)}
    if kind == 5:
        return {"const": r.choice(["x", 7, None, {"a": [1]}])}
    if kind == 6:
        return {"type": ["string", "null"], "maxLength": 3}
    if kind == 7:
        return {"type": "string", "pattern": "^[a-c]*$", "minLength": 2, "maxLength": 6}
    return {"type": "string", "enum": ["red", "green", "blue", 4]}


def numbers(r):
    kind = r.randrange(7)
    if kind == 0:
        return {"type": "integer"}
    if kind == 1:
        return {"type": "number"}
    low = r.randrange(-1200, 1200)
    if kind == 2:
        return {"type": "integer", "minimum": low, "maximum": low + r.randrange(200)}
    if kind == 3:
        return {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": low + 2 + r.randrange(2000)}
    if kind == 4:
        return {"type": "number", "minimum": low / 8, "maximum": low / 8 + r.randrange(100)}
    if kind == 5:
        return {"type": "number", "exclusiveMinimum": r.choice([0, -1.5, 0.25]), "maximum": 10}
    return {"type": "integer", "multipleOf": r.choice([2, 3, 5, 7, 10, 100]), "minimum": low}


def objects(r, depth):
    names = r.sample(["name", "Age", "tags", "x y", "\u00e9", "q\"uote", "id", "b_1", "kind", "value"], r.randrange(5))
    s = {"type": "object", "properties": {n: schema(r, depth - 1) for n in names}}
    if names:
        s["required"] = r.sample(names, r.randrange(len(names) + 1))
    kind = r.randrange(7)
    if kind <= 1:
        s["additionalProperties"] = False
    elif kind == 2:
        s["additionalProperties"] = schema(r, depth - 1)
    elif kind == 3:
        s["patternProperties"] = {"^n_[a-z]$": schema(r, depth - 1)}
        s["additionalProperties"] = False
    elif kind == 4 and names:
        s["additionalProperties"] = False
        s["minProperties"] = r.randrange(len(names) + 1)
        s["maxProperties"] = max(s["minProperties"], len(s["required"]), r.randrange(len(names) + 1))
    elif kind == 5:
        s["additionalProperties"] = {"type": "boolean"}
        s["propertyNames"] = {"maxLength": 8, "pattern": "^[a-zA-Z_]"}
        s["properties"] = {n: v for n, v in s["properties"].items() if n[0] in "nNAtikbv"}
        s["required"] = [n for n in s.get("required", []) if n in s["properties"]]
    return s


def arrays(r, depth):
    kind = r.randrange(4)
    if kind == 0:
        return {"type": "array", "items": schema(r, depth - 1)}
    if kind == 1:
        low = r.randrange(3)
        return {"type": "array", "items": schema(r, depth - 1), "minItems": low, "maxItems": low + r.randrange(3)}
    if kind == 2:
        return {"type": "array", "prefixItems": [schema(r, depth - 1) for _ in range(1 + r.randrange(2))], "items": r.choice([False, {"type": "integer"}])}
    return {"type": "array", "minItems": 1}


def schema(r, depth):
    if depth <= 0:
        return r.choice([strings, numbers])(r)
    kind = r.randrange(12)
    if kind < 2:
        return r.choice([strings, numbers])(r)
    if kind < 6:
        return objects(r, depth)
    if kind < 8:
        return arrays(r, depth)
    if kind == 8:
        return {r.choice(["anyOf", "oneOf"]): [{"type": "string", "maxLength": 4}, {"type": "integer", "minimum": 3}, {"type": "array", "maxItems": 1, "items": schema(r, depth - 1)}]}
    if kind == 9:
        return {"allOf": [{"type": "object", "properties": {"a": schema(r, depth - 1)}, "required": ["a"]},
                          {"properties": {"b": schema(r, depth - 1), "a": {}}, "required": ["b"]}]}
    if kind == 10:
        return {"type": r.choice(["boolean", "null", "object", ["boolean", "integer"]])}
    return {"title": "any", "description": "anything", "default": 1, "examples": [1]}


def recursive(r):
    return {"$defs": {"node": {"type": "object", "properties": {"value": schema(r, 1), "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                                                                  "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}},
                               "required": ["value", "next"], "additionalProperties": False},
                      "word": {"type": "string", "minLength": 1, "maxLength": 5}},
            "type": "object", "properties": {"root": {"$ref": "#/$defs/node"}, "w": {"$ref": "#/$defs/word", "description": "a word"}},
            "required": ["root"], "additionalProperties": False}


def nested(depth):
    s = {"type": "string", "maxLength": 2}
    for i in range(depth):
        s = {"type": "object", "properties": {f"l{i}": s}, "required": [f"l{i}"], "additionalProperties": False} if i % 2 else {"type": "array", "items": s, "minItems": 1, "maxItems": 2}
    return s


def collect(s):
    if isinstance(s, dict):
        for k, v in s.items():
            KEYWORDS.add(k)
            if k in ("properties", "patternProperties", "$defs"):
                for x in v.values():
                    collect(x)
            elif k not in ("enum", "const", "default", "examples", "required"):
                collect(v)
    elif isinstance(s, list):
        for x in s:
            collect(x)


DATE = r"(?:(?:\d\d[2468][048]|\d\d[13579][26]|\d\d0[48]|[02468][048]00|[13579][26]00)-02-29|\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|(?:02)-(?:0[1-9]|1\d|2[0-8])))"
# What zod 3 and 4, pydantic 2 and generators of OpenAPI write for their types.
PEOPLE = [
    {"type": "string", "format": "uri", "minLength": 1, "maxLength": 2083},
    {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", "maxLength": 30}]},
    {"anyOf": [{"type": "number", "minimum": 0.01}, {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*(?:\d{0,8}|(?=[\d.]{1,11}0*$)\d{0,8}\.\d{0,2}0*$)", "maxLength": 12}]},
    {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "uniqueItems": True},
    {"type": "array", "items": {"enum": list(range(12))}, "uniqueItems": True, "minItems": 2, "maxItems": 5},
    {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True, "minItems": 1},
    {"type": "string", "format": "email", "pattern": r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"},
    {"type": "string", "format": "uuid", "pattern": r"^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}|00000000-0000-0000-0000-000000000000|ffffffff-ffff-ffff-ffff-ffffffffffff)$"},
    {"type": "string", "format": "date-time", "pattern": "^" + DATE + r"T(?:(?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d+)?)?(?:Z|([+-](?:[01]\d|2[0-3]):[0-5]\d)))$"},
    {"type": "string", "format": "date", "pattern": "^" + DATE + "$"},
    {"type": "string", "format": "duration", "pattern": r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$"},
    {"type": "string", "format": "cuid", "pattern": r"^[cC][^\s-]{8,}$"},
    {"type": "string", "format": "cuid2", "pattern": "^[0-9a-z]+$"},
    {"type": "string", "format": "ulid", "pattern": "^[0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{26}$"},
    {"type": "string", "format": "nanoid", "pattern": "^[a-zA-Z0-9_-]{21}$"},
    {"type": "string", "format": "base64", "contentEncoding": "base64", "pattern": "^$|^(?:[0-9a-zA-Z+/]{4})*(?:(?:[0-9a-zA-Z+/]{2}==)|(?:[0-9a-zA-Z+/]{3}=))?$", "maxLength": 40},
    {"type": "string", "format": "cidrv4", "pattern": r"^((25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|[0-9])\.){3}(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|[0-9])\/([0-9]|[1-2][0-9]|3[0-2])$"},
    {"type": "string", "format": "e164", "pattern": r"^\+[1-9]\d{6,14}$"},
    {"type": "string", "format": "ipv4"}, {"type": "string", "format": "ipv6"},
    {"type": "string", "pattern": r"^(?=.*[A-Z])(?=.*[a-z])(?=.*\d)[A-Za-z\d]{8,16}$"},
    {"type": "integer", "minimum": -9223372036854775808, "maximum": 9223372036854775807},
    {"type": "integer", "minimum": 9007199254740993, "maximum": 18446744073709551615},
    {"type": "integer", "exclusiveMinimum": -(10 ** 19), "maximum": -(10 ** 18)},
    {"type": "number", "exclusiveMinimum": 0, "maximum": 1.7976931348623157e308},
    {"type": "string", "minLength": 300, "maxLength": 320, "pattern": "^[a-f]*$"},
    {"enum": ["a", "bb", 3, 2.5, {"a": 1}, [1, 2]], "anyOf": [{"minLength": 2}, {"minimum": 3}, {"type": "object", "minProperties": 1}]},
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}, "anyOf": [{"required": ["a"]}], "oneOf": [{"required": ["b"]}], "additionalProperties": False},
]


def environment():
    folder = os.path.join(tempfile.gettempdir(), f"facet-jsonschema-{os.getuid()}")
    python = os.path.join(folder, "bin", "python3")
    if not os.path.exists(python):
        subprocess.run([sys.executable, "-m", "venv", folder], check=True, stdout=subprocess.DEVNULL)
    if subprocess.run([python, "-c", "import jsonschema, rfc3339_validator"], stderr=subprocess.DEVNULL).returncode:
        subprocess.run([python, "-m", "pip", "-q", "install", "jsonschema==4.23.0", "rfc3339-validator==0.1.4"], check=True, timeout=120)
    return python


def main():
    try:
        import jsonschema
    except ImportError:
        try:
            python = environment()
        except (subprocess.SubprocessError, OSError) as e:
            print(f"skipped: no jsonschema package here or on PyPI ({e})")
            return 77
        return subprocess.run([python, *sys.argv], env={**os.environ, "FACET_VENV": "1"}).returncode
    walk, answers = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "4"
    r = random.Random(2024)
    schemas = [recursive(r) for _ in range(20)] + [nested(d) for d in range(1, 9)]
    while len(schemas) < 200:
        schemas.append(schema(r, 1 + len(schemas) % 8 // 2))
    schemas += PEOPLE
    collect(schemas)
    for mode in ([], ["call"]):
        run(walk, answers, mode, schemas if not mode else [as_parameters(s) for s in schemas])
    for mode, what, s in BAD[:10]:
        print("FAILED", *mode, what, "\n  ", json.dumps(s)[:600])
    print(f"{len(schemas)} schemas, {COUNT['total']} answers, {COUNT['unfinished']} unfinished, {len(BAD)} bad; keywords: {' '.join(sorted(KEYWORDS))}")
    return 1 if BAD or COUNT["unfinished"] * 20 > COUNT["total"] else 0


def as_parameters(s):
    s = dict(s)
    top = {"type": "object", "properties": {"arg": s}, "required": ["arg"], "additionalProperties": False}
    if "$defs" in s:
        top["$defs"] = s.pop("$defs")
    return top


def run(walk, answers, mode, schemas):
    import jsonschema
    cls = jsonschema.Draft202012Validator
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        for s in schemas:
            f.write(json.dumps({"schema": s}) + "\n")
        f.flush()
        out = subprocess.run([walk, f.name, answers, *mode], stdout=subprocess.PIPE, check=True, text=True).stdout
    for line in out.splitlines():
        got = json.loads(line)
        s = schemas[got["schema"]]
        COUNT["total"] += 1
        if "error" in got:
            BAD.append((mode, got["error"], s))
        elif not got["ended"]:
            COUNT["unfinished"] += 1
        else:
            try:
                cls(s, format_checker=cls.FORMAT_CHECKER).validate(json.loads(got["text"]))
            except (ValueError, jsonschema.ValidationError) as e:
                BAD.append((mode, f"{got['text']}: {str(e).splitlines()[0]}", s))


if __name__ == "__main__":
    sys.exit(main())
