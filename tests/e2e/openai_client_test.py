#!/usr/bin/env python3
"""The official OpenAI client against `facet serve`: openai_client_test.py PROGRAM. Skipped without the package."""
import json
import pathlib
import subprocess
import sys

try:
    import openai
except ImportError:
    print("skipped: the package openai is not installed (pip install openai)")
    sys.exit(77)

PROGRAM = sys.argv[1] if len(sys.argv) > 1 else "build/release/facet"
MODEL = pathlib.Path(__file__).resolve().parents[2] / "models" / "facet-nano-Q8_0.gguf"
HELLO = "Hello! I am facet-nano. How can I help you?"
TOOL = {"type": "function", "function": {
    "name": "get_time", "description": "Get the local time",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "City name"}}, "required": ["city"]}}}


def check(client):
    model = client.models.list().data[0].id
    assert client.models.retrieve(model).id == model
    ask = [{"role": "user", "content": "Hello"}]
    r = client.chat.completions.create(model=model, messages=ask, temperature=0, seed=1, user="u")
    assert r.choices[0].message.content == HELLO and r.choices[0].finish_reason == "stop", r
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens

    text, usage = "", None
    for c in client.chat.completions.create(model=model, messages=ask, temperature=0, stream=True, stream_options={"include_usage": True}, store=False,
                                                     metadata={"a": "b"}, service_tier="auto", extra_body={"a_new_field": 1}):
        text += c.choices[0].delta.content or "" if c.choices else ""
        usage = c.usage or usage
    assert text == HELLO and usage.completion_tokens == r.usage.completion_tokens and usage.prompt_tokens_details.cached_tokens > 0, (text, usage)

    talk = [{"role": "user", "content": "What time is it in Paris?"}]
    m = client.chat.completions.create(model=model, messages=talk, tools=[TOOL], temperature=0).choices[0].message
    assert m.tool_calls[0].function.name == "get_time" and json.loads(m.tool_calls[0].function.arguments) == {"city": "Paris"}, m
    one = client.chat.completions.create(model=model, messages=talk, tools=[TOOL], temperature=0, parallel_tool_calls=False).choices[0]
    assert one.finish_reason == "tool_calls" and len(one.message.tool_calls) == 1, one
    talk += [m, {"role": "tool", "tool_call_id": m.tool_calls[0].id, "content": "14:35"}]
    answer = client.chat.completions.create(model=model, messages=talk, tools=[TOOL], temperature=0).choices[0].message.content
    assert "14:35" in answer, answer

    r = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "What is 12 + 30?"}], temperature=0,
                                       extra_body={"chat_template_kwargs": {"enable_thinking": True}})
    assert r.choices[0].message.reasoning_content and "42" in r.choices[0].message.content, r
    r = client.completions.create(model=model, prompt="Hello", max_tokens=4, temperature=0)
    assert r.usage.completion_tokens <= 4
    two = client.chat.completions.create(model=model, messages=ask, n=2, seed=3, logprobs=True, top_logprobs=2)
    assert [c.index for c in two.choices] == [0, 1] and all(len(t.top_logprobs) == 2 for c in two.choices for t in c.logprobs.content), two
    logged = []
    for c in client.chat.completions.create(model=model, messages=ask, temperature=0, logprobs=True, stream=True):
        logged += c.choices[0].logprobs.content if c.choices and c.choices[0].logprobs else []
    assert len(logged) > 5 and all(t.logprob <= 0 for t in logged), logged
    echo = client.completions.create(model=model, prompt=["Hello", "What is"], max_tokens=0, echo=True, logprobs=1)
    assert [c.text for c in echo.choices] == ["Hello", "What is"] and echo.choices[0].logprobs.token_logprobs[0] is None, echo
    for kind, call in ((openai.BadRequestError, lambda: client.chat.completions.create(model=model, messages=ask, n=99)),
                       (openai.NotFoundError, lambda: client.models.retrieve("other")),
                       (openai.InternalServerError, lambda: client.embeddings.create(model=model, input="x")),
                       (openai.AuthenticationError, lambda: client.with_options(api_key="wrong").models.list())):
        try:
            call()
        except kind as e:
            assert e.body["message"], e
        else:
            raise AssertionError(f"expected {kind}")


def main():
    server = subprocess.Popen([PROGRAM, "serve", "-m", str(MODEL), "-c", "4096", "--port", "0", "--api-key", "secret"], stdout=subprocess.PIPE, text=True)
    try:
        url = server.stdout.readline().split()[-1]
        check(openai.OpenAI(base_url=url + "/v1", api_key="secret", max_retries=0, timeout=120))
    finally:
        server.terminate()
    assert server.wait(30) == 0
    print("ok: openai", openai.__version__)


if __name__ == "__main__":
    main()
