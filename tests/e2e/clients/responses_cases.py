"""OpenAI's client and its responses."""
import json

from .common import ASK_TIME, CITY, HELLO, MODEL, PERSON, SUM, case, is_person, is_time_call, person_model, raises, user
from .openai_cases import client_of

TOOL = {"type": "function", "name": "get_time", "description": "Get the local time", "strict": False, "parameters": CITY}


def ask(api, said="Hello", **fields):
    return client_of(api).responses.create(**{"model": MODEL, "input": said, "temperature": 0, **fields})


@case("openai")
def responses_create(api):
    r = ask(api)
    assert r.output_text == HELLO and r.status == "completed" and r.id.startswith("resp_") and r.output[0].id.startswith("msg_"), r
    assert r.usage.total_tokens == r.usage.input_tokens + r.usage.output_tokens and r.usage.input_tokens_details.cached_tokens >= 0, r
    r = ask(api, "Tell me a story", max_output_tokens=3)
    assert r.status == "incomplete" and r.incomplete_details.reason == "max_output_tokens" and r.usage.output_tokens == 3, r
    assert ask(api, instructions="Be kind.").output_text


@case("openai")
def responses_stream(api):
    events = list(ask(api, [{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}], stream=True, extra_body={"timings_per_token": True, "return_progress": True}))
    assert [e.sequence_number for e in events] == list(range(len(events))), events
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == HELLO == events[-1].response.output_text, events
    assert events[0].type == "response.created" and events[-1].type == "response.completed" and events[-1].timings["predicted_n"] > 0, events
    assert any(getattr(e, "prompt_progress", None) for e in events if e.type == "response.in_progress"), events
    with client_of(api).responses.stream(model=MODEL, input="Hello", temperature=0) as stream:  # the client checks the order of events itself
        stream.until_done()
        assert stream.get_final_response().output_text == HELLO


@case("openai")
def responses_tools(api):
    talk = user(ASK_TIME)
    asked = ask(api, talk, tools=[TOOL])
    call = asked.output[-1]
    assert call.type == "function_call", asked
    is_time_call(call.name, call.arguments)
    done = [e for e in ask(api, talk, tools=[TOOL], stream=True) if e.type == "response.function_call_arguments.done"]
    assert len(done) == 1 and json.loads(done[0].arguments) == {"city": "Paris"}, done
    talk += [item.model_dump() for item in asked.output] + [{"type": "function_call_output", "call_id": call.call_id, "output": "14:35"}]
    assert "14:35" in ask(api, talk, tools=[TOOL]).output_text


@case("openai")
def responses_tool_choice(api):
    forced = ask(api, tools=[TOOL], tool_choice={"type": "function", "name": "get_time"})
    assert forced.output[-1].name == "get_time" and "city" in json.loads(forced.output[-1].arguments), forced
    assert ask(api, tools=[TOOL], tool_choice="required", max_output_tokens=200).output[-1].type == "function_call"


@case("openai")
def responses_reasoning(api):
    thought = ask(api, SUM, reasoning={"effort": "high"})
    assert thought.output[0].type == "reasoning" and thought.output[0].content[0].text and "42" in thought.output_text, thought
    again = user(SUM) + [i.model_dump() for i in thought.output] + user("Hello")
    assert ask(api, again).output_text


@case("openai", "openai", "pydantic")
def responses_parse(api):
    Person = person_model()
    r = client_of(api).responses.parse(model=MODEL, input="Anna is 30.", text_format=Person, temperature=0)
    assert isinstance(r.output_parsed, Person), r
    is_person(ask(api, text={"format": {"type": "json_schema", "name": "p", "schema": PERSON, "strict": True}}).output_text)


@case("openai")
def responses_logprobs(api):
    r = ask(api, include=["message.output_text.logprobs"], top_logprobs=2)
    assert len(r.output[0].content[0].logprobs[0].top_logprobs) == 2, r


@case("openai")
def responses_refusals_and_count(api):
    import openai
    for fields in ({"previous_response_id": "resp_1"}, {"background": True}, {"conversation": "c"}):
        assert raises(openai.BadRequestError, lambda: ask(api, **fields)).param
    assert ask(api, tools=[{"type": "web_search_preview"}]).output  # left out
    c = client_of(api)
    count = c.responses.input_tokens.count(model=MODEL, input="Hello") if hasattr(c.responses, "input_tokens") else None
    assert count is None or count.input_tokens > 3, count
