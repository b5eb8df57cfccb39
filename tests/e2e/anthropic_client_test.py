#!/usr/bin/env python3
"""The official Anthropic client against `facet serve`: anthropic_client_test.py PROGRAM. Skipped without the package."""
import pathlib
import subprocess
import sys

try:
    import anthropic
except ImportError:
    print("skipped: the package anthropic is not installed (pip install anthropic)")
    sys.exit(77)

PROGRAM = sys.argv[1] if len(sys.argv) > 1 else "build/release/facet"
MODEL = pathlib.Path(__file__).resolve().parents[2] / "models" / "facet-nano-Q8_0.gguf"
HELLO = "Hello! I am facet-nano. How can I help you?"
TOOL = {"name": "get_time", "description": "Get the local time",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string", "description": "City name"}}, "required": ["city"]}}


def check(client):
    ask = dict(model="any", max_tokens=200, extra_body={"temperature": 0})
    hello = [{"role": "user", "content": "Hello"}]
    m = client.messages.create(**ask, messages=hello, metadata={"user_id": "u"})
    assert m.content[0].text == HELLO and m.stop_reason == "end_turn" and m.usage.output_tokens > 5, m
    n = client.messages.count_tokens(model="any", messages=hello)
    assert n.input_tokens == m.usage.input_tokens + m.usage.cache_read_input_tokens, (n, m.usage)
    m = client.messages.create(**ask, messages=hello, system=[{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}])
    assert m.content, m
    m = client.messages.create(**ask, messages=hello, stop_sequences=["nano"])
    assert m.stop_reason == "stop_sequence" and m.stop_sequence == "nano", m
    m = client.messages.create(**ask, messages=hello + [{"role": "assistant", "content": HELLO[:6]}])
    assert m.content[0].text == HELLO[6:], m

    with client.messages.stream(**ask, messages=hello) as s:
        text = "".join(s.text_stream)
        final = s.get_final_message()
    assert text == HELLO and final.stop_reason == "end_turn" and final.usage.output_tokens > 5, final

    talk = [{"role": "user", "content": "What time is it in Paris?"}]
    m = client.messages.create(**ask, messages=talk, tools=[TOOL])
    call = m.content[-1]
    assert m.stop_reason == "tool_use" and call.name == "get_time" and call.input == {"city": "Paris"}, m
    with client.messages.stream(**ask, messages=talk, tools=[TOOL]) as s:
        streamed = s.get_final_message()
    assert streamed.content[-1].input == {"city": "Paris"} and streamed.stop_reason == "tool_use", streamed
    talk += [{"role": "assistant", "content": m.content},
             {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "14:35"}]}]
    m = client.messages.create(**ask, messages=talk, tools=[TOOL], tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert "14:35" in m.content[0].text, m

    m = client.messages.create(model="any", max_tokens=2000, extra_body={"temperature": 0}, messages=[{"role": "user", "content": "What is 12 + 30?"}],
                               thinking={"type": "enabled", "budget_tokens": 1024})
    assert [b.type for b in m.content] == ["thinking", "text"] and "42" in m.content[1].text, m
    m = client.messages.create(**ask, messages=hello, tools=[TOOL], tool_choice={"type": "any"})  # a call, whatever was said
    assert m.stop_reason in ("tool_use", "max_tokens") and m.content[-1].type == "tool_use" and m.content[-1].name == "get_time", m
    for kind, call in ((anthropic.BadRequestError, lambda: client.messages.create(**ask, messages=[])),
                       (anthropic.AuthenticationError, lambda: client.with_options(api_key="wrong").messages.create(**ask, messages=hello)),
                       (anthropic.NotFoundError, lambda: client.messages.batches.list())):
        try:
            call()
        except kind as e:
            assert e.body["error"]["message"], e
        else:
            raise AssertionError(f"expected {kind}")


def main():
    server = subprocess.Popen([PROGRAM, "serve", "-m", str(MODEL), "-c", "4096", "--port", "0", "--api-key", "secret"], stdout=subprocess.PIPE, text=True)
    try:
        url = server.stdout.readline().split()[-1]
        check(anthropic.Anthropic(base_url=url, api_key="secret", max_retries=0, timeout=120))
    finally:
        server.terminate()
    assert server.wait(30) == 0
    print("ok: anthropic", anthropic.__version__)


if __name__ == "__main__":
    main()
