#!/usr/bin/env python3
"""OpenAI's client and its responses against `facet serve`: responses_client_test.py PROGRAM. Skipped without the package."""
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
TOOL = {"type": "function", "name": "get_time", "description": "Get the local time", "strict": False,
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "City name"}}, "required": ["city"]}}


def check(client):
    r = client.responses.create(model="m", input="Hello", temperature=0)
    assert r.output_text == HELLO and r.status == "completed" and r.id.startswith("resp_") and r.output[0].id.startswith("msg_"), r
    assert r.usage.total_tokens == r.usage.input_tokens + r.usage.output_tokens and r.usage.input_tokens_details.cached_tokens >= 0, r

    events = list(client.responses.create(model="m", input=[{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}], temperature=0, stream=True,
                                          extra_body={"timings_per_token": True, "return_progress": True}))
    assert [e.sequence_number for e in events] == list(range(len(events))), events
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == HELLO == events[-1].response.output_text, events
    assert events[0].type == "response.created" and events[-1].type == "response.completed" and events[-1].timings["predicted_n"] > 0, events
    assert any(getattr(e, "prompt_progress", None) for e in events if e.type == "response.in_progress"), events
    with client.responses.stream(model="m", input="Hello", temperature=0) as stream:  # the client checks the order of events itself
        stream.until_done()
        assert stream.get_final_response().output_text == HELLO

    cut = client.responses.create(model="m", input="Tell me a story", max_output_tokens=3, temperature=0)
    assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens" and cut.usage.output_tokens == 3, cut

    talk = [{"role": "user", "content": "What time is it in Paris?"}]
    asked = client.responses.create(model="m", input=talk, tools=[TOOL], temperature=0)
    call = asked.output[-1]
    assert call.type == "function_call" and call.name == "get_time" and json.loads(call.arguments) == {"city": "Paris"}, asked
    streamed = [e for e in client.responses.create(model="m", input=talk, tools=[TOOL], temperature=0, stream=True)]
    done = [e for e in streamed if e.type == "response.function_call_arguments.done"]
    assert len(done) == 1 and json.loads(done[0].arguments) == {"city": "Paris"}, streamed
    talk += [item.model_dump() for item in asked.output] + [{"type": "function_call_output", "call_id": call.call_id, "output": "14:35"}]
    told = client.responses.create(model="m", input=talk, tools=[TOOL], temperature=0)
    assert "14:35" in told.output_text, told
    forced = client.responses.create(model="m", input="Hello", tools=[TOOL], tool_choice={"type": "function", "name": "get_time"}, temperature=0)
    assert forced.output[-1].name == "get_time" and "city" in json.loads(forced.output[-1].arguments), forced

    thought = client.responses.create(model="m", input="What is 12 + 30?", reasoning={"effort": "high"}, temperature=0)
    assert thought.output[0].type == "reasoning" and thought.output[0].content[0].text and "42" in thought.output_text, thought
    again = [{"role": "user", "content": "What is 12 + 30?"}] + [i.model_dump() for i in thought.output] + [{"role": "user", "content": "Hello"}]
    assert client.responses.create(model="m", input=again, temperature=0).output_text

    import pydantic

    class City(pydantic.BaseModel):
        name: str
        people: int
    parsed = client.responses.parse(model="m", input="Name a city", text_format=City, temperature=0, max_output_tokens=200)
    assert isinstance(parsed.output_parsed, City), parsed
    logged = client.responses.create(model="m", input="Hello", temperature=0, include=["message.output_text.logprobs"], top_logprobs=2)
    assert len(logged.output[0].content[0].logprobs[0].top_logprobs) == 2, logged

    for call in (lambda: client.responses.create(model="m", input="Hello", previous_response_id="resp_1"),
                 lambda: client.responses.create(model="m", input="Hello", background=True),
                 lambda: client.responses.create(model="m", input="Hello", tools=[{"type": "web_search_preview"}])):
        try:
            call()
            raise AssertionError("accepted")
        except openai.BadRequestError as e:
            assert e.param, e
    count = client.responses.input_tokens.count(model="m", input="Hello") if hasattr(client.responses, "input_tokens") else None
    assert count is None or count.input_tokens > 3, count


def main():
    server = subprocess.Popen([PROGRAM, "serve", "-m", str(MODEL), "--port", "0", "-c", "4096"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        url = server.stdout.readline().split()[-1]
        check(openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0))
        print(f"passed with openai {openai.__version__}")
    finally:
        server.terminate()
        assert server.wait(30) == 0


main()
