"""litellm, instructor, llm: clients that translate to other people's APIs."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from .common import ASK_TIME, HELLO, KEY, MODEL, PERSON, SUM, TOOL, case, is_person, is_time_call, person_model, user


def lite(api, model="openai/", call="completion", text="Hello", **fields):
    import litellm
    litellm.suppress_debug_info = True
    base = api.url if model.split("/")[0] in ("anthropic", "ollama_chat", "ollama") else api.v1
    return getattr(litellm, call)(**{"model": model + MODEL, "api_base": base, "api_key": KEY, "messages": user(text), "temperature": 0, **fields})


@case("litellm")
def openai_and_vllm(api):
    for provider in ("openai/", "hosted_vllm/"):
        assert lite(api, provider).choices[0].message.content == HELLO, provider


@case("litellm")
def stream(api):
    assert "".join(c.choices[0].delta.content or "" for c in lite(api, stream=True)) == HELLO


@case("litellm")
def anthropic(api):
    assert lite(api, "anthropic/", max_tokens=50).choices[0].message.content == HELLO
    assert "".join(c.choices[0].delta.content or "" for c in lite(api, "anthropic/", max_tokens=50, stream=True)) == HELLO


@case("litellm")
def ollama(api):
    assert lite(api, "ollama_chat/").choices[0].message.content == HELLO


@case("litellm")
def tools(api):
    call = lite(api, text=ASK_TIME, tools=[TOOL]).choices[0].message.tool_calls[0].function
    is_time_call(call.name, call.arguments)
    call = lite(api, text=ASK_TIME, tools=[TOOL], tool_choice="required", parallel_tool_calls=False).choices[0].message.tool_calls[0].function
    is_time_call(call.name, call.arguments)


@case("litellm")
def response_format(api):
    is_person(lite(api, response_format={"type": "json_schema", "json_schema": {"name": "p", "strict": True, "schema": PERSON}}).choices[0].message.content)
    is_person(lite(api, response_format=person_model()).choices[0].message.content)


@case("litellm")
def reasoning(api):
    r = lite(api, text=SUM, reasoning_effort="high", allowed_openai_params=["reasoning_effort"])
    assert r.choices[0].message.reasoning_content and "42" in r.choices[0].message.content, r


@case("litellm")
def text_completion(api):
    import litellm
    r = litellm.text_completion(model=f"text-completion-openai/{MODEL}", api_base=api.v1, api_key=KEY, prompt="Hello", max_tokens=4)
    assert r.usage.completion_tokens <= 4, r


@case("litellm")
def responses(api):
    import litellm
    r = litellm.responses(model=f"openai/{MODEL}", api_base=api.v1, api_key=KEY, input="Hello", temperature=0)
    assert r.output[-1].content[0].text == HELLO, r


def instruct(api, mode, **more):
    import instructor
    import openai
    client = instructor.from_openai(openai.OpenAI(base_url=api.v1, api_key=KEY), mode=getattr(instructor.Mode, mode))
    return client.chat.completions.create(**{"model": MODEL, "response_model": person_model(), "messages": user("Anna is 30 years old."), "temperature": 0, "max_retries": 0, "max_tokens": 400, **more})


@case("instructor", "instructor", "openai")
def mode_tools(api):
    assert type(instruct(api, "TOOLS")).__name__ == "Person"


@case("instructor", "instructor", "openai")
def mode_json_schema(api):
    assert type(instruct(api, "JSON_SCHEMA")).__name__ == "Person"


@case("instructor", "instructor", "openai")
def partial(api):
    import instructor
    pieces = list(instruct(api, "JSON_SCHEMA", response_model=instructor.Partial[person_model()], stream=True))
    assert pieces and pieces[-1].age is not None, pieces


@case("instructor", "instructor", "anthropic")
def anthropic_tools(api):
    import anthropic as a
    import instructor
    client = instructor.from_anthropic(a.Anthropic(base_url=api.url, api_key=KEY), mode=instructor.Mode.ANTHROPIC_TOOLS)
    p = client.messages.create(model=MODEL, response_model=person_model(), messages=user("Anna is 30 years old."), max_tokens=400, max_retries=0, extra_body={"temperature": 0})
    assert type(p).__name__ == "Person", p


def llm_cli(api, *arguments, text="Hello"):
    """The command line program `llm`, with the server as a model of extra-openai-models.yaml."""
    with tempfile.TemporaryDirectory() as d:
        more = "\n  can_stream: true\n  supports_schema: true\n  supports_tools: true"
        pathlib.Path(d, "extra-openai-models.yaml").write_text(f"- model_id: facet\n  model_name: {MODEL}\n  api_base: {api.v1}\n  api_key_name: facet{more}\n")
        pathlib.Path(d, "keys.json").write_text(json.dumps({"facet": KEY}))
        out = subprocess.run([sys.executable, "-m", "llm", "prompt", "-m", "facet", "-o", "temperature", "0", *arguments, text], env={**os.environ, "LLM_USER_PATH": d},
                             capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    assert out.returncode == 0, out.stderr[-2000:]
    return out.stdout.strip()


@case("llm")
def prompt(api):
    assert llm_cli(api) == HELLO


@case("llm")
def prompt_not_streamed(api):
    assert llm_cli(api, "--no-stream", "-s", "Be kind.")


@case("llm")
def schema(api):
    is_person(llm_cli(api, "--schema", json.dumps(PERSON), text="Anna is 30 years old."))


@case("llm")
def tool_loop(api):
    source = 'def get_time(city: str) -> str:\n    "Get the local time"\n    return "14:35"\n'
    assert "14:35" in llm_cli(api, "--functions", source, text=ASK_TIME)
