"""Uses a running server through LangChain: langchain_client.py http://127.0.0.1:8080

The server has to serve the checkpoint of checkpoint.py. Needs the package `langchain-openai`. Prints each check, and fails at the
first difference.
"""

import asyncio
import sys
from typing import Literal

import openai
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, Field

ADDRESS = sys.argv[1] + "/v1"
MODEL = openai.OpenAI(base_url=ADDRESS, api_key="none").models.list().data[0].id
SETTINGS = dict(base_url=ADDRESS, api_key="none", model=MODEL, max_retries=0, temperature=0)
QUESTION = [SystemMessage("Be brief."), HumanMessage("Name three colours.")]


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=150)
    mood: Literal["calm", "glad"]


@tool
def add(a: Literal[1, 2, 3], b: Literal[4, 5]) -> int:
    """Adds two numbers."""
    return a + b


def chat():
    model = ChatOpenAI(**SETTINGS, max_tokens=16, stream_usage=True)
    whole = model.invoke(QUESTION)
    assert whole.usage_metadata["output_tokens"] <= 16, whole
    assert whole.response_metadata["finish_reason"] in ("length", "stop"), whole
    parts = list(model.stream(QUESTION))
    joined = parts[0]
    for part in parts[1:]:
        joined += part
    assert joined.content == whole.content, (joined, whole)
    for key in ["input_tokens", "output_tokens", "total_tokens"]:
        assert joined.usage_metadata[key] == whole.usage_metadata[key], (joined, whole)
    batch = model.batch([QUESTION] * 4)
    assert [each.content for each in batch] == [whole.content] * 4
    assert asyncio.run(ask_async(model)) == whole.content
    print("chat: whole, streamed, batched and asynchronous answers are the same")


async def ask_async(model):
    return (await model.ainvoke(QUESTION)).content


def parts_and_stop():
    model = ChatOpenAI(**SETTINGS, max_tokens=16)
    parts = [HumanMessage([{"type": "text", "text": "Name three "}, {"type": "text", "text": "colours."}])]
    assert model.invoke(parts).content == model.invoke([HumanMessage("Name three colours.")]).content
    text = model.invoke(QUESTION).content
    stop = text[4:6]
    assert model.invoke(QUESTION, stop=[stop]).content == text[: text.index(stop)], (text, stop)
    print("chat: content in parts, and stop strings")


def logprobs():
    model = ChatOpenAI(**SETTINGS, max_tokens=8).bind(logprobs=True, top_logprobs=3)
    tokens = model.invoke(QUESTION).response_metadata["logprobs"]["content"]
    assert len(tokens) == 8, tokens
    for token in tokens:
        # The first of the most probable tokens is the chosen one, as the temperature is 0.
        assert len(token["top_logprobs"]) == 3 and token["logprob"] == token["top_logprobs"][0]["logprob"] <= 0, token
    print("chat: log-probabilities")


def structured():
    # Without `strict`, schemas allow more properties, and random weights would add them without end.
    for method in ["json_schema", "function_calling"]:
        model = ChatOpenAI(**SETTINGS, max_tokens=600).with_structured_output(Person, method=method, strict=True)
        person = model.invoke(QUESTION)
        assert isinstance(person, Person), person
    model = ChatOpenAI(**SETTINGS, max_tokens=600).with_structured_output(Person, method="json_schema", strict=True)
    assert isinstance(list(model.stream(QUESTION))[-1], Person)
    print("chat: structured output by a schema and by a tool, whole and streamed")


def tools():
    model = ChatOpenAI(**SETTINGS, max_tokens=600)
    forced = model.bind_tools([add], tool_choice="required", strict=True)
    call = forced.invoke(QUESTION)
    assert call.tool_calls and not call.invalid_tool_calls, call
    assert call.response_metadata["finish_reason"] == "tool_calls", call
    parts = list(forced.stream(QUESTION))
    joined = parts[0]
    for part in parts[1:]:
        joined += part
    same = lambda message: [(each["name"], each["args"]) for each in message.tool_calls]
    assert same(joined) == same(call), (joined, call)
    results = [add.invoke(each) for each in call.tool_calls]
    assert all(isinstance(each, ToolMessage) and each.content for each in results), results
    second = model.bind_tools([add], tool_choice="none", strict=True).invoke([*QUESTION, call, *results])
    assert isinstance(second, AIMessage) and not second.tool_calls, second
    named = model.bind_tools([add], tool_choice="add", strict=True).invoke([*QUESTION, call, *results])
    assert named.tool_calls[0]["name"] == "add", named
    print("chat: a tool is called, and its result is part of the next turn")


def completions():
    model = OpenAI(**SETTINGS, max_tokens=8)
    text = model.invoke("Once")
    assert "".join(model.stream("Once")) == text
    result = model.generate(["Once", "Twice"])
    assert len(result.generations) == 2 and result.generations[0][0].text == text
    print("completions: whole, streamed and several prompts")


def errors():
    wrong = [
        (SETTINGS | {"temperature": -1}, openai.BadRequestError),
        (SETTINGS | {"model": MODEL + ":other"}, openai.NotFoundError),
    ]
    for settings, error in wrong:
        try:
            ChatOpenAI(**settings).invoke(QUESTION)
            raise SystemExit(f"{settings} was accepted")
        except error as e:
            assert e.body["message"] and e.body["type"], e.body
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    try:
        ChatOpenAI(**SETTINGS).invoke([HumanMessage([image])])
        raise SystemExit("an image was accepted")
    except openai.BadRequestError as e:
        assert e.body["param"].startswith("messages"), e.body
    print("errors have the client's types")


for check in [chat, parts_and_stop, logprobs, structured, tools, completions, errors]:
    check()
