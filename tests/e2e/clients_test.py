#!/usr/bin/env python3
"""Other people's clients against `facet serve`, on the shipped model: clients_test.py PROGRAM [CASE...]. A case whose package is not installed is skipped, with a reason."""
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import traceback

PROGRAM = sys.argv[1] if len(sys.argv) > 1 else "build/release/facet"
ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "facet-nano-Q8_0.gguf"
HELLO = "Hello! I am facet-nano. How can I help you?"
CASES = {}


class Skip(Exception):
    pass


def case(*packages):
    def add(f):
        CASES[f.__name__] = (packages, f)
        return f
    return add


def user(text):
    return [{"role": "user", "content": text}]


@case("litellm")
def litellm(url):
    import litellm as l
    l.suppress_debug_info = True
    for provider in ("openai/", "hosted_vllm/"):
        r = l.completion(model=provider + "nano", api_base=url + "/v1", api_key="none", messages=user("Hello"), temperature=0)
        assert r.choices[0].message.content == HELLO, r
    text = "".join(c.choices[0].delta.content or "" for c in l.completion(model="openai/nano", api_base=url + "/v1", api_key="none", messages=user("Hello"), temperature=0, stream=True))
    assert text == HELLO, text
    r = l.completion(model="anthropic/nano", api_base=url, api_key="none", messages=user("Hello"), temperature=0, max_tokens=50)
    assert r.choices[0].message.content == HELLO, r
    tool = {"type": "function", "function": {"name": "get_time", "description": "Get the local time", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "description": "City name"}}, "required": ["city"]}}}
    r = l.completion(model="openai/nano", api_base=url + "/v1", api_key="none", messages=user("What time is it in Paris?"), tools=[tool], temperature=0)
    assert json.loads(r.choices[0].message.tool_calls[0].function.arguments) == {"city": "Paris"}, r
    r = l.text_completion(model="text-completion-openai/nano", api_base=url + "/v1", api_key="none", prompt="Hello", max_tokens=4)
    assert r.usage.completion_tokens <= 4, r


@case("instructor", "openai")
def instructor(url):
    import instructor as i
    import openai
    import pydantic

    class Person(pydantic.BaseModel):
        name: str
        age: int
    for mode in (i.Mode.TOOLS, i.Mode.JSON_SCHEMA):  # JSON leaves the form to the model
        client = i.from_openai(openai.OpenAI(base_url=url + "/v1", api_key="none"), mode=mode)
        p = client.chat.completions.create(model="nano", response_model=Person, messages=user("Anna is 30 years old."), temperature=0, max_retries=0, max_tokens=400)
        assert isinstance(p, Person), (mode, p)


@case("langchain_openai")
def langchain(url):
    import pydantic
    from langchain_openai import ChatOpenAI

    class City(pydantic.BaseModel):
        """A city."""
        name: str
        people: int
    for more in ({}, {"use_responses_api": True}):
        chat = ChatOpenAI(model="nano", base_url=url + "/v1", api_key="none", temperature=0, max_tokens=400, **more)
        assert chat.invoke("Hello").text == HELLO, more
        assert "".join(c.text for c in chat.stream("Hello")) == HELLO, more
        for method in ("json_schema", "function_calling") if not more else ("json_schema",):
            got = chat.with_structured_output(City, method=method).invoke("Name a city.")
            assert isinstance(got, City), (method, got)


@case("pydantic_ai")
def pydantic_ai(url):
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
    called = []
    agent = Agent(OpenAIChatModel("nano", provider=OpenAIProvider(base_url=url + "/v1", api_key="none")), model_settings={"temperature": 0})

    @agent.tool_plain
    def get_time(city: str) -> str:
        """Get the local time

        Args:
            city: City name
        """
        called.append(city)
        return "14:35"
    out = agent.run_sync("What time is it in Paris?").output
    assert called == ["Paris"] and "14:35" in out, (called, out)


@case("agents")
def openai_agents(url):
    import openai
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
    set_tracing_disabled(True)
    called = []

    @function_tool(strict_mode=False)
    def get_time(city: str) -> str:
        """Get the local time

        Args:
            city: City name
        """
        called.append(city)
        return "14:35"
    client = openai.AsyncOpenAI(base_url=url + "/v1", api_key="none")
    for model in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        called.clear()
        agent = Agent(name="a", instructions="", tools=[get_time], model=model(model="nano", openai_client=client), model_settings=ModelSettings(temperature=0))
        out = Runner.run_sync(agent, "What time is it in Paris?").final_output
        assert called == ["Paris"] and "14:35" in out, (model, called, out)


@case("lm_eval")
def lm_eval(url):
    with tempfile.TemporaryDirectory() as d:
        docs = pathlib.Path(d, "docs.jsonl")
        docs.write_text("".join(json.dumps({"q": q, "choices": ["Hello!", "xyzzy"], "gold": 0}) + "\n" for q in ("Hello", "Good morning", "Hi")))
        pathlib.Path(d, "pick.yaml").write_text(f"""task: facet_pick
dataset_path: json
dataset_kwargs: {{data_files: {{test: {docs}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "<|turn>user\\n{{{{q}}}}<turn|>\\n<|turn>model\\n<|channel>thought\\n<channel|>"
doc_to_target: "{{{{gold}}}}"
doc_to_choice: "{{{{choices}}}}"
target_delimiter: ""
metric_list: [{{metric: acc}}]
""")
        pathlib.Path(d, "say.yaml").write_text(f"""task: facet_say
dataset_path: json
dataset_kwargs: {{data_files: {{test: {docs}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{q}}}}"
doc_to_target: "Hello! I am facet-nano. How can I help you?"
generation_kwargs: {{until: ["zzz"], max_gen_toks: 64, temperature: 0}}
metric_list: [{{metric: exact_match}}]
""")
        env = {**os.environ, "OPENAI_API_KEY": "none", "HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": d, "TOKENIZERS_PARALLELISM": "false"}

        def run(model, path, task, *more):
            out = subprocess.run([sys.executable, "-m", "lm_eval", "--model", model, "--model_args", f"base_url={url}{path},model=nano,num_concurrent=2,max_retries=1,tokenizer_backend=None",
                                  "--tasks", task, "--include_path", d, "--output_path", d, *more], env=env, capture_output=True, text=True, timeout=600)
            assert out.returncode == 0, out.stdout[-3000:] + out.stderr[-3000:]
            return json.loads(next(pathlib.Path(d).rglob("results*.json")).read_text())["results"][task]
        pick = run("local-completions", "/v1/completions", "facet_pick")
        assert pick["acc,none"] == 1.0, pick
        for f in pathlib.Path(d).rglob("results*.json"):
            f.unlink()
        say = run("local-chat-completions", "/v1/chat/completions", "facet_say", "--apply_chat_template")
        assert say["exact_match,none"] > 0, say


@case("schemathesis")
def schemathesis(url):
    out = subprocess.run([sys.executable, "-m", "schemathesis.cli", "run", str(ROOT / "docs/openapi.yaml"), "--url", url, "--phases", "examples,coverage,fuzzing", "--max-examples",
                          os.environ.get("FACET_SCHEMATHESIS_EXAMPLES", "15"), "--mode", "positive", "--seed", "1", "--generation-database", "none", "--checks",
                          "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"],
                         capture_output=True, text=True, timeout=900)
    assert out.returncode == 0, out.stdout[-6000:] + out.stderr[-3000:]


def main():
    wanted = sys.argv[2:] or list(CASES)
    server = subprocess.Popen([PROGRAM, "serve", "-m", str(MODEL), "--port", "0", "-c", "2048", "-n", "512"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    failed, ran = [], 0
    try:
        url = server.stdout.readline().split()[-1]
        for name in wanted:
            packages, f = CASES[name]
            missing = [p for p in packages if importlib.util.find_spec(p) is None]
            if missing:
                print(f"{name}: skipped, {', '.join(missing)} is not installed")
                continue
            ran += 1
            try:
                f(url)
                print(f"{name}: passed", flush=True)
            except Exception:
                failed.append(name)
                traceback.print_exc()
                print(f"{name}: FAILED", flush=True)
    finally:
        server.terminate()
        code = server.wait(60)
    assert code == 0 and not failed, (code, failed)
    sys.exit(0 if ran else 77)


main()
