#!/usr/bin/env python3
"""Ollama's Python client against `facet serve`: ollama_client_test.py PROGRAM. Skipped without the package."""
import json
import pathlib
import subprocess
import sys

try:
    import ollama
except ImportError:
    print("skipped: the package ollama is not installed (pip install ollama)")
    sys.exit(77)

PROGRAM = sys.argv[1] if len(sys.argv) > 1 else "build/release/facet"
MODEL = pathlib.Path(__file__).resolve().parents[2] / "models" / "facet-nano-Q8_0.gguf"
HELLO = "Hello! I am facet-nano. How can I help you?"
TOOL = {"type": "function", "function": {
    "name": "get_time", "description": "Get the local time",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "City name"}}, "required": ["city"]}}}


def check(client):
    model = client.list().models[0].model
    assert "tools" in client.show(model).capabilities
    cold = {"temperature": 0}
    hello = [{"role": "user", "content": "Hello"}]
    r = client.chat(model, hello, options=cold, keep_alive="5m")
    assert r.message.content == HELLO and r.done_reason == "stop" and r.eval_count > 5, r
    assert "".join(c.message.content for c in client.chat(model, hello, options=cold, stream=True)) == HELLO
    assert client.generate(model, "Hello", options=cold).response == HELLO
    assert "".join(c.response for c in client.generate(model, "Hello", options=cold, stream=True)) == HELLO
    r = client.chat(model, [{"role": "user", "content": "What is 12 + 30?"}], think=True, options=cold)
    assert r.message.thinking and "42" in r.message.content, r
    talk = [{"role": "user", "content": "What time is it in Paris?"}]
    m = client.chat(model, talk, tools=[TOOL], options=cold).message
    assert m.tool_calls[0].function.name == "get_time" and m.tool_calls[0].function.arguments == {"city": "Paris"}, m
    talk += [m, {"role": "tool", "tool_name": "get_time", "content": "14:35"}]
    assert "14:35" in client.chat(model, talk, tools=[TOOL], options=cold).message.content
    city = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
    assert json.loads(client.chat(model, hello, format=city, options=cold).message.content)["city"] in ("Paris", "Rome")
    try:
        client.chat(model, hello, format={"type": "nonsense"})
    except ollama.ResponseError as e:
        assert e.status_code == 400 and e.error, e
    else:
        raise AssertionError("expected an error")


def main():
    server = subprocess.Popen([PROGRAM, "serve", "-m", str(MODEL), "-c", "4096", "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        check(ollama.Client(host=server.stdout.readline().split()[-1]))
    finally:
        server.terminate()
    assert server.wait(30) == 0
    print("ok: ollama")


if __name__ == "__main__":
    main()
