"""Uses a running server through Pydantic AI: pydantic_ai_client.py http://127.0.0.1:8080

The server has to serve the checkpoint of checkpoint.py. Needs the package `pydantic-ai-slim[openai]`. Prints each check, and fails
at the first difference.
"""

import asyncio
import json
import sys
from typing import Literal

import openai
from pydantic import BaseModel, Field
from pydantic_ai import Agent, ModelHTTPError, ModelRequest, NativeOutput, ToolDefinition
from pydantic_ai.direct import model_request
from pydantic_ai.messages import SystemPromptPart, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

ADDRESS = sys.argv[1] + "/v1"
CLIENT = openai.AsyncOpenAI(base_url=ADDRESS, api_key="none", max_retries=0)
NAME = openai.OpenAI(base_url=ADDRESS, api_key="none").models.list().data[0].id
MODEL = OpenAIChatModel(NAME, provider=OpenAIProvider(openai_client=CLIENT))
QUESTION = "Name three colours."
SETTINGS = {"max_tokens": 600, "temperature": 0.0}


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=150)
    mood: Literal["calm", "glad"]


async def chat():
    agent = Agent(MODEL, instructions="Be brief.", model_settings=SETTINGS | {"max_tokens": 16})
    whole = await agent.run(QUESTION)
    assert whole.usage.output_tokens <= 16 and whole.usage.input_tokens > 0, whole.usage
    async with agent.run_stream(QUESTION) as stream:
        parts = [part async for part in stream.stream_text(delta=True, debounce_by=None)]
    assert "".join(parts) == whole.output, (parts, whole.output)
    assert stream.usage.output_tokens == whole.usage.output_tokens, (stream.usage, whole.usage)
    again = await agent.run("And one more?", message_history=whole.all_messages())
    assert isinstance(again.output, str)
    print("chat: whole and streamed answers are the same, and a second turn")


async def structured():
    native = Agent(MODEL, output_type=NativeOutput(Person), model_settings=SETTINGS)
    assert isinstance((await native.run(QUESTION)).output, Person)
    async with native.run_stream(QUESTION) as stream:
        assert isinstance(await stream.get_output(), Person)
    by_tool = Agent(MODEL, output_type=Person, model_settings=SETTINGS)
    assert isinstance((await by_tool.run(QUESTION)).output, Person)
    async with by_tool.run_stream(QUESTION) as stream:
        assert isinstance(await stream.get_output(), Person)
    print("chat: structured output by a schema and by a tool, whole and streamed")


async def tools():
    schema = {
        "type": "object",
        "properties": {"a": {"enum": [1, 2, 3]}, "b": {"enum": [4, 5]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    offered = ToolDefinition(name="add", description="Adds two numbers", parameters_json_schema=schema)
    forced = ModelRequestParameters(function_tools=[offered], allow_text_output=False)
    messages = [ModelRequest([SystemPromptPart("Be brief."), UserPromptPart(QUESTION)])]
    call = await model_request(MODEL, messages, model_settings=SETTINGS, model_request_parameters=forced)
    calls = [part for part in call.parts if isinstance(part, ToolCallPart)]
    assert calls and call.finish_reason == "tool_call", call
    results = [ToolReturnPart(part.tool_name, sum(part.args_as_dict().values()), part.tool_call_id) for part in calls]
    messages += [call, ModelRequest(results)]
    last = await model_request(MODEL, messages, model_settings=SETTINGS, model_request_parameters=ModelRequestParameters())
    assert any(isinstance(part, TextPart) for part in last.parts), last
    print("chat: a tool is called, and its result is part of the next turn")


async def logprobs():
    settings = {"max_tokens": 8, "temperature": 0.0, "openai_logprobs": True, "openai_top_logprobs": 2}
    result = await Agent(MODEL, model_settings=settings).run(QUESTION)
    tokens = result.all_messages()[-1].provider_details["logprobs"]
    assert len(tokens) == 8 and all(len(token["top_logprobs"]) == 2 for token in tokens), tokens
    print("chat: log-probabilities")


async def errors():
    other = OpenAIChatModel(NAME + ":other", provider=OpenAIProvider(openai_client=CLIENT))
    for model, settings, status in [(MODEL, {"temperature": -1}, 400), (other, {}, 404)]:
        try:
            await Agent(model, model_settings=settings).run(QUESTION)
            raise SystemExit(f"{model.model_name} with {settings} was accepted")
        except ModelHTTPError as e:
            assert e.status_code == status and e.body["message"], e
            json.dumps(e.body)
    print("errors have the client's types")


async def main():
    await chat()
    await structured()
    await tools()
    await logprobs()
    await errors()


asyncio.run(main())
