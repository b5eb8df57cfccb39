#!/usr/bin/env python3
"""An agent's session without strict, over and over: agent_loop.py PROGRAM MODEL [--turns 30] [--times 1] [--stream] [-- OPTIONS OF serve]

A system prompt, five tools as coding agents declare them, a task. Each call of the model is answered with a result, each text with the next question, so that the
conversation grows as opencode's does. What is counted: calls, texts, and answers with markup of calls or thoughts in their text, of which there may be none: 1 then.
Standard library only.
"""
import argparse
import http.client
import json
import sys

from bench_server import Server

MARKUP = ("<|tool_call>", "<tool_call|>", "<|\"|>", "<|channel>", "<channel|>", "<|tool_response>", "call:")
TEXT, WHOLE = {"type": "string"}, {"type": "integer"}
TOOLS = [("bash", "Runs a command", {"command": TEXT, "timeout": WHOLE}), ("read", "Reads a file", {"path": TEXT, "offset": WHOLE}),
         ("edit", "Changes a text in a file", {"path": TEXT, "old": TEXT, "new": TEXT}), ("grep", "Finds lines", {"pattern": TEXT, "include": {"type": "array", "items": TEXT}}),
         ("todo", "Writes the list of what is to do", {"todos": {"type": "array", "items": {"type": "object", "properties": {"content": TEXT, "done": {"type": "boolean"}}}}})]
ASKS = ["Find where the server reads its configuration.", "Run the tests and tell me what fails.", "Change the port to 9090 in config.py.", "List the files of src.",
        "What is the weather in London in Celsius?", "Write down what is to do next.", "Read README.md.", "Search for TODO in all files."]


def declared(name, description, properties):
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {"type": "object", "properties": properties, "required": list(properties)[:1]}}}


def answer(server, body, stream):
    """(text, calls, finish_reason)."""
    if not stream:
        choice = server.post("/v1/chat/completions", body)["choices"][0]
        return choice["message"]["content"] or "", choice["message"].get("tool_calls", []), choice["finish_reason"]
    text, calls, why = "", [], None
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    c.request("POST", "/v1/chat/completions", json.dumps({**body, "stream": True}))
    for line in c.getresponse():
        for choice in json.loads(line[6:])["choices"] if line.startswith(b"data: {") else []:
            text += choice["delta"].get("content") or ""
            calls += choice["delta"].get("tool_calls", [])
            why = choice["finish_reason"] or why
    c.close()
    return text, calls, why


def session(server, a, seed):
    messages = [{"role": "system", "content": "You are a coding agent. Use the tools; answer briefly when you are done."}]
    counts, asked = {"calls": 0, "texts": 0, "markup": 0, "cut": 0}, 0
    for turn in range(a.turns):
        if messages[-1]["role"] != "tool":
            messages.append({"role": "user", "content": ASKS[asked % len(ASKS)]})
            asked += 1
        body = {"messages": messages, "tools": [declared(*t) for t in TOOLS], "max_tokens": 160, "seed": seed + turn}
        text, calls, why = answer(server, body, a.stream)
        if any(m in text for m in MARKUP):
            counts["markup"] += 1
            print(f"turn {turn}: markup in {text!r}", file=sys.stderr)
        counts["calls"] += len(calls)
        counts["texts"] += not calls
        counts["cut"] += why == "length"
        if why == "length":  # an agent does not run what was cut
            calls = []
        said = {"role": "assistant", "content": text}
        if calls:
            said["tool_calls"] = [{"id": c["id"], "type": "function", "function": c["function"]} for c in calls]
        messages.append(said)
        messages += [{"role": "tool", "tool_call_id": c["id"], "content": f"line {turn}: done\nexit code 0"} for c in calls]
    return counts


def main():
    argv = sys.argv[1:]
    at = argv.index("--") if "--" in argv else len(argv)
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("program")
    ap.add_argument("model")
    ap.add_argument("--turns", type=int, default=30)
    ap.add_argument("--times", type=int, default=1)
    ap.add_argument("--stream", action="store_true")
    a = ap.parse_args(argv[:at])
    server = Server(a.program, a.model, 1, 16384, argv[at + 1:])
    bad = 0
    try:
        for i in range(a.times):
            counts = session(server, a, 1000 * i)
            bad += counts["markup"]
            print(json.dumps({"session": i, "turns": a.turns, **counts}), flush=True)
    finally:
        server.stop()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
