"""Uses a running server by the official client: openai_client.py http://127.0.0.1:8080 [ENCODER]

The server has to serve the checkpoint of clients/checkpoint.py. ENCODER is the address of a second server, of an encoder, whose
embeddings are tried then.

Needs the package `openai`. Prints what it tried, and fails with the first difference.
"""

import asyncio
import json
import sys
from concurrent.futures import ThreadPoolExecutor

from openai import APIConnectionError, APIStatusError, AsyncOpenAI, BadRequestError, NotFoundError, OpenAI

client = OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
model = client.models.list().data[0].id
assert client.models.retrieve(model).id == model

ask = dict(model=model, messages=[{"role": "user", "content": "Name three colours."}], max_tokens=16)
whole = client.chat.completions.create(**ask, temperature=0)
text = whole.choices[0].message.content
assert whole.usage.completion_tokens <= 16 and whole.choices[0].finish_reason in ("length", "stop")
stream = client.chat.completions.create(**ask, temperature=0, stream=True, stream_options={"include_usage": True})
parts = list(stream)
assert "".join(p.choices[0].delta.content or "" for p in parts if p.choices) == text
counts = lambda usage: (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens)
assert counts(parts[-1].usage) == counts(whole.usage), parts[-1]
print("chat: whole and streamed texts are the same")

several = client.chat.completions.create(**ask, n=3, temperature=1, seed=4, logprobs=True, top_logprobs=2)
again = client.chat.completions.create(**ask, n=3, temperature=1, seed=4)
texts = [choice.message.content for choice in several.choices]
assert texts == [choice.message.content for choice in again.choices] and len(texts) == 3
assert all(len(t.top_logprobs) == 2 for t in several.choices[0].logprobs.content)
print("chat: seeds, n and logprobs")

completion = client.completions.create(model=model, prompt=["Once", "Twice"], max_tokens=8, temperature=0, logprobs=1)
assert [choice.index for choice in completion.choices] == [0, 1]
assert len(completion.choices[0].logprobs.token_logprobs) == 8
streamed = client.completions.create(model=model, prompt="Once", max_tokens=8, temperature=0, stream=True)
assert "".join(p.choices[0].text for p in streamed if p.choices) == completion.choices[0].text
print("completions: several prompts, streamed")

tokens = completion.choices[0].logprobs.tokens
echoed = client.completions.create(model=model, prompt="Once", max_tokens=8, temperature=0, logprobs=1, echo=True).choices[0]
assert echoed.text == "Once" + completion.choices[0].text, echoed
# The first token of a prompt follows nothing.
assert echoed.logprobs.token_logprobs[0] is None and echoed.logprobs.tokens[-8:] == tokens, echoed
assert all(value <= 0 for value in echoed.logprobs.token_logprobs[1:]), echoed
scored = client.completions.create(model=model, prompt="Once", max_tokens=0, logprobs=1, echo=True).choices[0]
assert scored.text == "Once" and len(scored.logprobs.tokens) == len(echoed.logprobs.tokens) - 8, scored
print("completions: log-probabilities of the prompt")

schema = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
ask["max_tokens"] = 90
answer = client.chat.completions.create(
    **ask, temperature=1, seed=1,
    response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": schema}},
)
person = json.loads(answer.choices[0].message.content)
assert set(person) == {"name", "age"} and 0 <= person["age"] <= 150
print("chat: output keeps to a schema")

schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}, "b": {"enum": [3, 4]}}, "required": ["a", "b"]}
schema["additionalProperties"] = False
tools = [{"type": "function", "function": {"name": "add", "description": "Adds two numbers", "parameters": schema}}]
forced = dict(ask, tools=tools, tool_choice="required", temperature=0)
choice = client.chat.completions.create(**forced).choices[0]
call = choice.message.tool_calls[0]
assert choice.finish_reason == "tool_calls" and choice.message.content is None, choice
assert call.type == "function" and call.function.name == "add" and set(json.loads(call.function.arguments)) == {"a", "b"}, call
parts = [part.choices[0] for part in client.chat.completions.create(**forced, stream=True) if part.choices]
streamed = [each for part in parts for each in part.delta.tool_calls or []]
assert "".join(each.function.arguments or "" for each in streamed) == call.function.arguments, streamed
assert streamed[0].id and streamed[0].index == 0 and parts[-1].finish_reason == "tool_calls", parts
total = str(sum(json.loads(call.function.arguments).values()))
result = {"role": "tool", "tool_call_id": call.id, "content": total}
history = [*ask["messages"], choice.message, result]
second = client.chat.completions.create(**dict(ask, messages=history, tools=tools, tool_choice="none")).choices[0]
assert second.message.content is not None and not second.message.tool_calls, second
print("chat: a tool is called, and its result is part of the next turn")


async def all_at_once():
    other = AsyncOpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
    several = await asyncio.gather(*(other.chat.completions.create(**dict(ask, max_tokens=16, temperature=0)) for _ in range(8)))
    return [each.choices[0].message.content for each in several]


assert asyncio.run(all_at_once()) == [text] * 8
print("chat: the asynchronous client")

for wrong, error in [({"temperature": -1}, BadRequestError), ({"model": model + ":other"}, NotFoundError)]:
    try:
        client.chat.completions.create(**{**ask, **wrong})
        raise SystemExit(f"{wrong} was accepted")
    except error as e:
        assert e.body["message"], e
try:
    client.embeddings.create(model=model, input="a")
    raise SystemExit("there are embeddings")
except APIStatusError as e:
    assert e.status_code == 501
try:
    OpenAI(base_url="http://127.0.0.1:9/v1", api_key="none", max_retries=0).models.list()
    raise SystemExit("there is a server at port 9")
except APIConnectionError:
    pass
print("errors have the client's types")


def one(seed):
    return client.completions.create(model=model, prompt=f"Number {seed}", max_tokens=12, seed=seed, temperature=0.8).choices[0].text


alone = [one(seed) for seed in range(12)]
with ThreadPoolExecutor(12) as pool:
    assert list(pool.map(one, range(12))) == alone
print("requests at the same time give what each gives alone")

if len(sys.argv) > 2:
    encoder = OpenAI(base_url=sys.argv[2] + "/v1", api_key="none", max_retries=0)
    model = encoder.models.list().data[0].id
    texts = ["Rabbit", "Down, down, down.", "Rabbit"]
    # The client asks for base64 unless it is told otherwise.
    packed = encoder.embeddings.create(model=model, input=texts)
    plain = encoder.embeddings.create(model=model, input=texts, encoding_format="float")
    vectors = [item.embedding for item in packed.data]
    assert [item.index for item in packed.data] == [0, 1, 2] and packed.usage.prompt_tokens > 6
    assert vectors[0] == vectors[2] != vectors[1]
    for ours, theirs in zip(vectors, plain.data):
        assert max(abs(a - b) for a, b in zip(ours, theirs.embedding)) < 1e-6
    short = encoder.embeddings.create(model=model, input="Rabbit", dimensions=4)
    assert len(short.data[0].embedding) == 4
    print("embeddings: base64 and numbers, several texts, fewer dimensions")
