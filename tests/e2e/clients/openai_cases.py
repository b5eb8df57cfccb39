"""OpenAI's own client: models, chat, completions."""
import asyncio
import base64
import json

from .common import ASK_TIME, HELLO, KEY, MODEL, PERSON, PICTURE, PICTURE_URL, SUM, TOOL, case, is_person, is_time_call, person_model, raises, user


def client_of(api, **more):
    import openai
    return openai.OpenAI(base_url=api.v1, api_key=KEY, max_retries=0, timeout=120, **more)


def chat(api, text="Hello", **fields):
    return client_of(api).chat.completions.create(**{"model": MODEL, "messages": user(text), "temperature": 0, **fields})


@case("openai")
def models(api):
    c = client_of(api)
    name = c.models.list().data[0].id
    assert c.models.retrieve(name).id == name


@case("openai")
def chat_create(api):
    r = chat(api, seed=1, user="u")
    assert r.choices[0].message.content == HELLO and r.choices[0].finish_reason == "stop", r
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens


@case("openai")
def chat_stream(api):
    text, usage = "", None
    for c in chat(api, stream=True, stream_options={"include_usage": True}, store=False, metadata={"a": "b"}, service_tier="auto", extra_body={"a_new_field": 1}):
        text += c.choices[0].delta.content or "" if c.choices else ""
        usage = c.usage or usage
    assert text == HELLO and usage.completion_tokens == chat(api).usage.completion_tokens, (text, usage)
    assert usage.prompt_tokens_details.cached_tokens >= 0, usage


@case("openai")
def chat_stream_helper(api):
    with client_of(api).chat.completions.stream(model=MODEL, messages=user("Hello"), temperature=0) as stream:
        text = "".join(e.delta for e in stream if e.type == "content.delta")
        final = stream.get_final_completion()
    assert text == HELLO == final.choices[0].message.content, final


@case("openai")
def chat_async(api):
    import openai

    async def several():
        async with openai.AsyncOpenAI(base_url=api.v1, api_key=KEY, max_retries=0) as c:
            return await asyncio.gather(*(c.chat.completions.create(model=MODEL, messages=user("Hello"), temperature=0) for _ in range(4)))
    assert [r.choices[0].message.content for r in asyncio.run(several())] == [HELLO] * 4


@case("openai")
def chat_raw_response(api):
    r = client_of(api).chat.completions.with_raw_response.create(model=MODEL, messages=user("Hello"), temperature=0)
    assert r.status_code == 200 and r.headers["content-type"].startswith("application/json") and r.parse().choices[0].message.content == HELLO
    with client_of(api).chat.completions.with_streaming_response.create(model=MODEL, messages=user("Hello"), temperature=0) as s:
        assert json.loads(b"".join(s.iter_bytes()))["choices"][0]["message"]["content"] == HELLO


@case("openai")
def parts_and_roles(api):
    messages = [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": [{"type": "text", "text": "Hello"}], "name": "anna"},
                {"role": "assistant", "content": [{"type": "text", "text": HELLO}]}, {"role": "user", "content": "Hello"}]
    assert chat(api, messages=messages).choices[0].message.content


@case("openai")
def tools(api):
    c = chat(api, ASK_TIME, tools=[TOOL]).choices[0]
    assert c.finish_reason == "tool_calls", c
    is_time_call(c.message.tool_calls[0].function.name, c.message.tool_calls[0].function.arguments)


@case("openai")
def tools_streamed(api):
    name = arguments = ""
    for c in chat(api, ASK_TIME, tools=[TOOL], stream=True):
        for call in (c.choices[0].delta.tool_calls or []) if c.choices else []:
            name += call.function.name or ""
            arguments += call.function.arguments or ""
    is_time_call(name, arguments)
    with client_of(api).chat.completions.stream(model=MODEL, messages=user(ASK_TIME), tools=[TOOL], temperature=0) as stream:
        call = stream.get_final_completion().choices[0].message.tool_calls[0].function
    is_time_call(call.name, call.arguments)


@case("openai")
def tool_loop(api):
    talk = user(ASK_TIME)
    m = chat(api, messages=talk, tools=[TOOL]).choices[0].message
    talk += [m, {"role": "tool", "tool_call_id": m.tool_calls[0].id, "content": "14:35"}]
    assert "14:35" in chat(api, messages=talk, tools=[TOOL]).choices[0].message.content


@case("openai")
def tool_choice_required(api):
    c = chat(api, tools=[TOOL], tool_choice="required", max_tokens=200).choices[0]
    assert c.message.tool_calls[0].function.name == "get_time" and set(json.loads(c.message.tool_calls[0].function.arguments)) == {"city"}, c


@case("openai")
def tool_choice_named_and_none(api):
    other = {"type": "function", "function": {"name": "other", "description": "Other", "parameters": {"type": "object", "properties": {}}}}
    c = chat(api, ASK_TIME, tools=[TOOL, other], tool_choice={"type": "function", "function": {"name": "other"}}).choices[0]
    assert [t.function.name for t in c.message.tool_calls] == ["other"], c
    assert not chat(api, ASK_TIME, tools=[TOOL], tool_choice="none").choices[0].message.tool_calls


@case("openai")
def tools_strict_and_one_at_a_time(api):
    strict = {"type": "function", "function": {**TOOL["function"], "strict": True, "parameters": {**TOOL["function"]["parameters"], "additionalProperties": False}}}
    c = chat(api, ASK_TIME, tools=[strict], parallel_tool_calls=False).choices[0]
    assert c.finish_reason == "tool_calls" and len(c.message.tool_calls) == 1, c
    is_time_call(c.message.tool_calls[0].function.name, c.message.tool_calls[0].function.arguments)


@case("openai")
def response_format_json_object(api):
    c = chat(api, "Write an object as JSON.", response_format={"type": "json_object"}, max_tokens=600).choices[0]
    assert c.finish_reason == "length" or isinstance(json.loads(c.message.content), dict), c


@case("openai")
def response_format_json_schema(api):
    form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    is_person(chat(api, response_format=form).choices[0].message.content)
    is_person("".join(c.choices[0].delta.content or "" for c in chat(api, response_format=form, stream=True)))


@case("openai", "openai", "pydantic")
def parse(api):
    Person = person_model()
    r = client_of(api).chat.completions.parse(model=MODEL, messages=user("Anna is 30."), response_format=Person, temperature=0)
    assert isinstance(r.choices[0].message.parsed, Person), r


@case("openai", "openai", "pydantic")
def parse_tools(api):
    import openai
    Person = person_model()
    r = client_of(api).chat.completions.parse(model=MODEL, messages=user("Anna is 30."), tools=[openai.pydantic_function_tool(Person)], tool_choice="required", temperature=0)
    assert isinstance(r.choices[0].message.tool_calls[0].function.parsed_arguments, Person), r


@case("openai")
def logprobs(api):
    r = chat(api, logprobs=True, top_logprobs=3)
    tokens = r.choices[0].logprobs.content
    assert len(tokens) == r.usage.completion_tokens and all(len(t.top_logprobs) == 3 and t.logprob <= 0 for t in tokens), tokens
    assert all(t.top_logprobs[0].token == t.token for t in tokens)  # greedy


@case("openai")
def logprobs_streamed(api):
    got = []
    for c in chat(api, logprobs=True, stream=True):
        got += c.choices[0].logprobs.content if c.choices and c.choices[0].logprobs else []
    assert [t.token for t in got] == [t.token for t in chat(api, logprobs=True).choices[0].logprobs.content]


@case("openai")
def several_choices(api):
    two = chat(api, temperature=1, n=2, seed=3, logprobs=True, top_logprobs=2)
    assert [c.index for c in two.choices] == [0, 1] and all(len(t.top_logprobs) == 2 for c in two.choices for t in c.logprobs.content), two


@case("openai")
def sampling_fields(api):
    ask = dict(temperature=1.5, top_p=.9, seed=7, presence_penalty=.2, frequency_penalty=.1, logit_bias={"700": -5}, max_completion_tokens=20)
    assert chat(api, **ask).choices[0].message.content == chat(api, **ask).choices[0].message.content
    c = chat(api, stop=["nano", "xyzzy"]).choices[0]
    assert c.message.content == HELLO[:HELLO.index("nano")] and c.finish_reason == "stop", c
    assert chat(api, max_tokens=2).choices[0].finish_reason == "length"


@case("openai")
def vllm_fields(api):
    extra = {"top_k": 20, "min_p": .01, "repetition_penalty": 1.05, "guided_choice": ["yes", "no"], "chat_template_kwargs": {"enable_thinking": False}}
    assert chat(api, extra_body=extra).choices[0].message.content in ("yes", "no")
    assert len(chat(api, extra_body={"structured_outputs": {"regex": "[0-9]{4}"}}).choices[0].message.content) == 4


@case("openai")
def reasoning(api):
    r = chat(api, SUM, extra_body={"chat_template_kwargs": {"enable_thinking": True}})
    assert r.choices[0].message.reasoning_content and "42" in r.choices[0].message.content, r
    r = chat(api, SUM, reasoning_effort="high")
    assert r.choices[0].message.reasoning_content, r
    thought = "".join(getattr(c.choices[0].delta, "reasoning_content", None) or "" for c in chat(api, SUM, reasoning_effort="high", stream=True))
    assert thought == r.choices[0].message.reasoning_content


@case("openai")
def completions(api):
    c = client_of(api)
    assert c.completions.create(model=MODEL, prompt="Hello", max_tokens=4, temperature=0).usage.completion_tokens <= 4
    whole = c.completions.create(model=MODEL, prompt="Hello", max_tokens=8, temperature=0).choices[0].text
    assert whole == "".join(x.choices[0].text for x in c.completions.create(model=MODEL, prompt="Hello", max_tokens=8, temperature=0, stream=True))


@case("openai")
def completions_several_prompts(api):
    r = client_of(api).completions.create(model=MODEL, prompt=["Hello", "What is"], max_tokens=3, n=2, seed=1)
    assert [c.index for c in r.choices] == [0, 1, 2, 3], r
    r = client_of(api).completions.create(model=MODEL, prompt=[[2, 300], [2, 301]], max_tokens=3, best_of=2)
    assert len(r.choices) == 2, r


@case("openai")
def completions_echo_logprobs(api):
    r = client_of(api).completions.create(model=MODEL, prompt=["Hello", "What is"], max_tokens=0, echo=True, logprobs=1)
    assert [c.text for c in r.choices] == ["Hello", "What is"] and r.choices[0].logprobs.token_logprobs[0] is None, r


@case("openai")
def errors(api):
    import openai
    c = client_of(api)
    for kind, call in ((openai.BadRequestError, lambda: chat(api, n=99)),
                       (openai.BadRequestError, lambda: chat(api, "word " * 20000)),
                       (openai.BadRequestError, lambda: chat(api, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}})),
                       (openai.NotFoundError, lambda: c.models.retrieve("other")),
                       (openai.InternalServerError, lambda: c.embeddings.create(model=MODEL, input="x")),
                       (openai.AuthenticationError, lambda: c.with_options(api_key="wrong").models.list())):
        assert raises(kind, call).body["message"]


@case("openai")
def pictures_and_sound(api):
    import openai
    sound = base64.b64encode((PICTURE.parents[1] / "mono16k.flac").read_bytes()).decode()
    parts = [{"type": "image_url", "image_url": {"url": PICTURE_URL, "detail": "low"}}, {"type": "text", "text": "What is this?"},
             {"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}}]
    r = client_of(api).chat.completions.create(model=MODEL, messages=[{"role": "user", "content": parts}], temperature=0, max_tokens=8)
    details = r.usage.prompt_tokens_details
    assert details.image_tokens > 50 and details.audio_tokens > 0 and r.choices[0].message.content, r
    broken = [{"type": "image_url", "image_url": {"url": PICTURE_URL[:400]}}]
    raises(openai.BadRequestError, lambda: client_of(api).chat.completions.create(model=MODEL, messages=[{"role": "user", "content": broken}]))
