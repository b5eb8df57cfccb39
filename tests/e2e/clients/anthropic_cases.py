"""Anthropic's client."""
import asyncio

from .common import ASK_TIME, CITY, HELLO, KEY, MODEL, PERSON, PICTURE_URL, SUM, case, is_person, raises, user

TOOL = {"name": "get_time", "description": "Get the local time", "input_schema": CITY}


def client_of(api):
    import anthropic
    return anthropic.Anthropic(base_url=api.url, api_key=KEY, max_retries=0, timeout=120)


def fields(text, more):
    return {"model": MODEL, "max_tokens": 200, "messages": user(text), "extra_body": {"temperature": 0}, **more}


def ask(api, text="Hello", **more):
    return client_of(api).messages.create(**fields(text, more))


@case("anthropic")
def messages(api):
    m = ask(api, metadata={"user_id": "u"})
    assert m.content[0].text == HELLO and m.stop_reason == "end_turn" and m.usage.output_tokens > 5, m


@case("anthropic")
def messages_async(api):
    import anthropic

    async def several():
        async with anthropic.AsyncAnthropic(base_url=api.url, api_key=KEY) as c:
            return await asyncio.gather(*(c.messages.create(**fields("Hello", {})) for _ in range(3)))
    assert [m.content[0].text for m in asyncio.run(several())] == [HELLO] * 3


@case("anthropic")
def count_tokens(api):
    m = ask(api)
    n = client_of(api).messages.count_tokens(model=MODEL, messages=user("Hello"))
    assert n.input_tokens == m.usage.input_tokens + m.usage.cache_read_input_tokens, (n, m.usage)
    assert client_of(api).messages.count_tokens(model=MODEL, messages=user("Hello"), tools=[TOOL], system="Be kind.").input_tokens > n.input_tokens


@case("anthropic")
def system_and_blocks(api):
    assert ask(api, system=[{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}]).content
    assert ask(api, messages=[{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]).content[0].text == HELLO


@case("anthropic")
def stop_sequences(api):
    m = ask(api, stop_sequences=["nano"])
    assert m.stop_reason == "stop_sequence" and m.stop_sequence == "nano", m
    assert ask(api, max_tokens=2).stop_reason == "max_tokens"


@case("anthropic")
def prefill(api):
    m = ask(api, messages=user("Hello") + [{"role": "assistant", "content": HELLO[:6]}])
    assert m.content[0].text == HELLO[6:], m


@case("anthropic")
def stream_helper(api):
    with client_of(api).messages.stream(**fields("Hello", {})) as s:
        text = "".join(s.text_stream)
        final = s.get_final_message()
    assert text == HELLO and final.stop_reason == "end_turn" and final.usage.output_tokens > 5, final


@case("anthropic")
def stream_raw(api):
    kinds = [e.type for e in ask(api, stream=True)]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"] and "content_block_delta" in kinds, kinds


@case("anthropic")
def tools(api):
    m = ask(api, ASK_TIME, tools=[TOOL])
    assert m.stop_reason == "tool_use" and m.content[-1].name == "get_time" and m.content[-1].input == {"city": "Paris"}, m
    with client_of(api).messages.stream(**fields(ASK_TIME, {"tools": [TOOL]})) as s:
        streamed = s.get_final_message()
    assert streamed.content[-1].input == {"city": "Paris"} and streamed.stop_reason == "tool_use", streamed


@case("anthropic")
def tool_loop(api):
    m = ask(api, ASK_TIME, tools=[TOOL])
    talk = user(ASK_TIME) + [{"role": "assistant", "content": m.content},
                             {"role": "user", "content": [{"type": "tool_result", "tool_use_id": m.content[-1].id, "content": "14:35"}]}]
    m = ask(api, messages=talk, tools=[TOOL], tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert "14:35" in m.content[0].text, m


@case("anthropic")
def tool_choice(api):
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_time"}):
        m = ask(api, tools=[TOOL], tool_choice=choice)
        assert m.content[-1].type == "tool_use" and m.content[-1].name == "get_time", m


@case("anthropic")
def thinking(api):
    m = ask(api, SUM, max_tokens=2000, thinking={"type": "enabled", "budget_tokens": 1024})
    assert [b.type for b in m.content] == ["thinking", "text"] and "42" in m.content[1].text, m
    again = ask(api, messages=user(SUM) + [{"role": "assistant", "content": m.content}] + user("Hello"))
    assert again.content, again


@case("anthropic")
def output_format(api):
    is_person(ask(api, extra_body={"temperature": 0, "output_config": {"format": {"type": "json_schema", "schema": PERSON}}}).content[0].text)


@case("anthropic")
def errors(api):
    import anthropic
    c = client_of(api)
    for kind, call in ((anthropic.BadRequestError, lambda: ask(api, messages=[])),
                       (anthropic.AuthenticationError, lambda: c.with_options(api_key="wrong").messages.create(**fields("Hello", {}))),
                       (anthropic.NotFoundError, lambda: c.messages.batches.list())):
        assert raises(kind, call).body["error"]["message"]


@case("anthropic")
def pictures(api):
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": PICTURE_URL.split(",")[1]}}
    messages = [{"role": "user", "content": [image, {"type": "text", "text": "What is this?"}]}]
    m = client_of(api).messages.create(model=MODEL, max_tokens=8, messages=messages, extra_body={"temperature": 0})
    n = client_of(api).messages.count_tokens(model=MODEL, messages=messages).input_tokens
    assert m.usage.input_tokens + m.usage.cache_read_input_tokens == n > 60 and m.usage.output_tokens > 0, (m, n)
