"""OpenAI's client for Python: chat, streams, tools, structured output, responses, errors."""

import json
import os

import openai

url = os.environ["KVASIR_URL"]
key = os.environ["KVASIR_KEY"]
MODEL = "smol"
client = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
messages = [{"role": "user", "content": "What is the weather in Oslo for the next days?"}]
schema = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
chat = {"model": MODEL, "messages": messages, "temperature": 0, "max_completion_tokens": 24}

assert any(model.id == MODEL for model in client.models.list())

whole = client.chat.completions.create(**chat)
text = whole.choices[0].message.content
assert text and whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
chunks = list(client.chat.completions.create(**chat, stream=True, stream_options={"include_usage": True}))
assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens

answer = client.chat.completions.create(
    model=MODEL,
    messages=messages,
    response_format={"type": "json_schema", "json_schema": {"name": "weather", "strict": True, "schema": schema}},
)
assert set(json.loads(answer.choices[0].message.content)) == {"city", "days"}

tool = {"name": "weather", "description": "The weather in a city", "parameters": schema}
called = client.chat.completions.create(
    model=MODEL, messages=messages, tools=[{"type": "function", "function": tool}], tool_choice="required"
)
assert called.choices[0].finish_reason == "tool_calls"
assert json.loads(called.choices[0].message.tool_calls[0].function.arguments)["city"] in ("Oslo", "Rome")

assert client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=8).choices[0].text

question = {"model": MODEL, "input": messages[0]["content"], "temperature": 0, "max_output_tokens": 24}
response = client.responses.create(**question)
assert response.output_text
with client.responses.stream(**question) as stream:
    events = list(stream)
assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == response.output_text
assert events[-1].response.output_text == response.output_text
following = client.responses.create(
    model=MODEL, previous_response_id=response.id, input="Go on", max_output_tokens=8
)
assert following.previous_response_id == response.id

for kind, fields in (
    (openai.NotFoundError, {"model": "another"}),
    (openai.BadRequestError, {"messages": []}),
    (openai.BadRequestError, {"messages": [{"role": "user", "content": "many words " * 20_000}]}),
):
    try:
        client.chat.completions.create(**{**chat, **fields})
        raise SystemExit(f"{fields} was not refused")
    except kind:
        pass
try:
    openai.OpenAI(base_url=f"{url}/v1", api_key="wrong").models.list()
    raise SystemExit("a wrong key was not refused")
except openai.AuthenticationError:
    pass
