"""Ollama's client."""
import asyncio
import json

from .common import ASK_TIME, HELLO, KEY, MODEL, PICTURE, SUM, TOOL, case, raises, user

COLD = {"temperature": 0}


def client_of(api, kind="Client"):
    import ollama
    return getattr(ollama, kind)(host=api.url, headers={"Authorization": f"Bearer {KEY}"})


@case("ollama")
def list_and_show(api):
    c = client_of(api)
    assert "tools" in c.show(c.list().models[0].model).capabilities


@case("ollama")
def chat(api):
    c = client_of(api)
    r = c.chat(MODEL, user("Hello"), options=COLD, keep_alive="5m")
    assert r.message.content == HELLO and r.done_reason == "stop" and r.eval_count > 5, r
    assert "".join(x.message.content for x in c.chat(MODEL, user("Hello"), options=COLD, stream=True)) == HELLO


@case("ollama")
def chat_async(api):
    async def one():
        return await client_of(api, "AsyncClient").chat(MODEL, user("Hello"), options=COLD)
    assert asyncio.run(one()).message.content == HELLO


@case("ollama")
def generate(api):
    c = client_of(api)
    assert c.generate(MODEL, "Hello", options=COLD).response == HELLO
    assert "".join(x.response for x in c.generate(MODEL, "Hello", options=COLD, stream=True)) == HELLO


@case("ollama")
def think(api):
    r = client_of(api).chat(MODEL, user(SUM), think=True, options=COLD)
    assert r.message.thinking and "42" in r.message.content, r


@case("ollama")
def tool_loop(api):
    talk = user(ASK_TIME)
    m = client_of(api).chat(MODEL, talk, tools=[TOOL], options=COLD).message
    assert m.tool_calls[0].function.name == "get_time" and m.tool_calls[0].function.arguments == {"city": "Paris"}, m
    talk += [m, {"role": "tool", "tool_name": "get_time", "content": "14:35"}]
    assert "14:35" in client_of(api).chat(MODEL, talk, tools=[TOOL], options=COLD).message.content


@case("ollama")
def format_schema(api):
    city = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
    assert json.loads(client_of(api).chat(MODEL, user("Hello"), format=city, options=COLD).message.content)["city"] in ("Paris", "Rome")


@case("ollama")
def errors(api):
    import ollama
    e = raises(ollama.ResponseError, lambda: client_of(api).chat(MODEL, user("Hello"), format={"type": "nonsense"}))
    assert e.status_code == 400 and e.error, e


@case("ollama")
def pictures(api):
    c = client_of(api)
    assert {"vision", "audio"} <= set(c.show(MODEL).capabilities)
    cold = {**COLD, "num_predict": 8}
    r = c.chat(MODEL, [{"role": "user", "content": "What is this?", "images": [PICTURE.read_bytes()]}], options=cold)
    assert r.prompt_eval_count > 60 and r.eval_count > 0, r
    assert c.generate(MODEL, "What is this?", images=[PICTURE], options=cold).response == r.message.content
