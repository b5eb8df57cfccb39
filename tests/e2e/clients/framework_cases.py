"""Frameworks for agents and pipelines: LangChain, pydantic-ai, OpenAI's agents, LlamaIndex, smolagents, DSPy."""
import asyncio
import os

from .common import ASK_TIME, HELLO, KEY, MODEL, PERSON, case, is_person, is_time_call, person_model, user


def get_time(city: str) -> str:
    """Get the local time

    Args:
        city: City name
    """
    called.append(city)
    return "14:35"


called = []


def is_time_loop(out):
    assert called == ["Paris"] and "14:35" in str(out), (called, out)


# --- LangChain

def langchain(api, **more):
    from langchain_openai import ChatOpenAI
    return ChatOpenAI(model=MODEL, base_url=api.v1, api_key=KEY, temperature=0, max_tokens=400, **more)


@case("langchain-openai")
def invoke_and_stream(api):
    assert langchain(api).invoke("Hello").text == HELLO
    assert "".join(c.text for c in langchain(api).stream("Hello")) == HELLO


@case("langchain-openai")
def batch(api):
    assert [m.text for m in langchain(api).batch(["Hello"] * 3)] == [HELLO] * 3


@case("langchain-openai")
def structured_json_schema(api):
    assert type(langchain(api).with_structured_output(person_model(), method="json_schema").invoke("Anna is 30.")).__name__ == "Person"


@case("langchain-openai")
def structured_function_calling(api):
    assert type(langchain(api).with_structured_output(person_model(), method="function_calling").invoke("Anna is 30.")).__name__ == "Person"


@case("langchain-openai")
def responses_api(api):
    chat = langchain(api, use_responses_api=True)
    assert chat.invoke("Hello").text == HELLO
    assert "".join(c.text for c in chat.stream("Hello")) == HELLO
    assert type(chat.with_structured_output(person_model(), method="json_schema").invoke("Anna is 30.")).__name__ == "Person"


@case("langchain-openai")
def tool_loop(api):
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool
    called.clear()
    time = tool(get_time)
    chat, talk = langchain(api).bind_tools([time]), [HumanMessage(ASK_TIME)]
    talk.append(chat.invoke(talk))
    call = talk[-1].tool_calls[0]
    is_time_call(call["name"], call["args"])
    talk.append(ToolMessage(time.invoke(call["args"]), tool_call_id=call["id"]))
    is_time_loop(chat.invoke(talk).text)


@case("langchain-openai")
def logprobs(api):
    m = langchain(api).bind(logprobs=True, top_logprobs=2).invoke("Hello")
    assert len(m.response_metadata["logprobs"]["content"]) > 5, m


@case("langchain-anthropic")
def anthropic_invoke_and_tools(api):
    from langchain_anthropic import ChatAnthropic
    chat = ChatAnthropic(model=MODEL, base_url=api.url, api_key=KEY, max_tokens=200, temperature=0)
    assert chat.invoke("Hello").text == HELLO
    from langchain_core.tools import tool
    call = chat.bind_tools([tool(get_time)]).invoke(ASK_TIME).tool_calls[0]
    is_time_call(call["name"], call["args"])


# --- pydantic-ai

def pydantic_agent(api, **more):
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
    return Agent(OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=api.v1, api_key=KEY)), model_settings={"temperature": 0, "max_tokens": 400}, **more)


@case("pydantic-ai-slim", "pydantic_ai", "openai")
def agent_tool_loop(api):
    called.clear()
    is_time_loop(pydantic_agent(api, tools=[get_time]).run_sync(ASK_TIME).output)


@case("pydantic-ai-slim", "pydantic_ai", "openai")
def agent_output_type(api):
    assert type(pydantic_agent(api, output_type=person_model()).run_sync("Anna is 30 years old.").output).__name__ == "Person"


@case("pydantic-ai-slim", "pydantic_ai", "openai")
def agent_native_output(api):
    from pydantic_ai import NativeOutput
    assert type(pydantic_agent(api, output_type=NativeOutput(person_model())).run_sync("Anna is 30 years old.").output).__name__ == "Person"


@case("pydantic-ai-slim", "pydantic_ai", "openai")
def agent_stream(api):
    async def text():
        async with pydantic_agent(api).run_stream("Hello") as r:
            return "".join([t async for t in r.stream_text(delta=True, debounce_by=None)])
    assert asyncio.run(text()) == HELLO


# --- OpenAI's agents

def agents_run(api, text, model="OpenAIChatCompletionsModel", **more):
    import agents
    import openai
    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=api.v1, api_key=KEY)
    agent = agents.Agent(name="a", instructions="", model=getattr(agents, model)(model=MODEL, openai_client=client),
                         model_settings=agents.ModelSettings(temperature=0, max_tokens=400), **more)
    return agents.Runner.run_sync(agent, text).final_output


@case("openai-agents", "agents")
def chat_tool_loop(api):
    from agents import function_tool
    called.clear()
    is_time_loop(agents_run(api, ASK_TIME, tools=[function_tool(get_time, strict_mode=False)]))


@case("openai-agents", "agents")
def responses_tool_loop(api):
    from agents import function_tool
    called.clear()
    is_time_loop(agents_run(api, ASK_TIME, "OpenAIResponsesModel", tools=[function_tool(get_time, strict_mode=False)]))


@case("openai-agents", "agents")
def output_type(api):
    for model in ("OpenAIChatCompletionsModel", "OpenAIResponsesModel"):
        assert type(agents_run(api, "Anna is 30.", model, output_type=person_model())).__name__ == "Person", model


# --- LlamaIndex

def llama_index(api):
    from llama_index.llms.openai_like import OpenAILike
    return OpenAILike(model=MODEL, api_base=api.v1, api_key=KEY, is_chat_model=True, is_function_calling_model=True, temperature=0, max_tokens=400, context_window=4096)


@case("llama-index-llms-openai-like", "llama_index.llms.openai_like")
def chat_and_stream(api):
    from llama_index.core.llms import ChatMessage
    hello = [ChatMessage(role="user", content="Hello")]
    assert llama_index(api).chat(hello).message.content == HELLO
    assert "".join(c.delta or "" for c in llama_index(api).stream_chat(hello)) == HELLO


@case("llama-index-llms-openai-like", "llama_index.llms.openai_like")
def function_call(api):
    from llama_index.core.tools import FunctionTool
    called.clear()
    is_time_loop(llama_index(api).predict_and_call([FunctionTool.from_defaults(get_time)], ASK_TIME))


@case("llama-index-llms-openai-like", "llama_index.llms.openai_like")
def structured(api):
    from llama_index.core.prompts import PromptTemplate
    got = llama_index(api).structured_predict(person_model(), PromptTemplate("Anna is 30 years old."))
    assert type(got).__name__ == "Person", got


# --- smolagents

def smol(api):
    from smolagents import OpenAIServerModel
    return OpenAIServerModel(model_id=MODEL, api_base=api.v1, api_key=KEY, temperature=0, max_tokens=400)


@case("smolagents", "smolagents", "openai")
def generate(api):
    assert smol(api).generate(user("Hello")).content == HELLO
    assert "".join(d.content or "" for d in smol(api).generate_stream(user("Hello"))) == HELLO


@case("smolagents", "smolagents", "openai")
def tool_call(api):
    from smolagents import tool
    m = smol(api).generate(user(ASK_TIME), tools_to_call_from=[tool(get_time)])
    is_time_call(m.tool_calls[0].function.name, m.tool_calls[0].function.arguments)


# --- DSPy

def dspy_model(api, **more):
    import dspy
    return dspy.LM(f"openai/{MODEL}", api_base=api.v1, api_key=KEY, temperature=0, max_tokens=400, cache=False, **more)


@case("dspy")
def language_model(api):
    lm = dspy_model(api)
    assert lm("Hello")[0] == HELLO
    assert lm(messages=user("Hello"))[0] == HELLO


@case("dspy")
def response_format(api):
    form = {"type": "json_schema", "json_schema": {"name": "p", "strict": True, "schema": PERSON}}
    is_person(dspy_model(api)("Anna is 30 years old.", response_format=form)[0])


os.environ.setdefault("OPENAI_AGENTS_DISABLE_TRACING", "1")
