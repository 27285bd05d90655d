"""The client of OpenAI for Python. Arguments: what to do, and the address of the server."""

import asyncio
import json
import sys
import typing
import urllib.request

import openai
import pydantic
from openai import AsyncOpenAI, OpenAI

what, url, *given = sys.argv[1:]
client = OpenAI(base_url=f"{url}/v1", api_key="secret")


def embed(**options):
    return client.embeddings.create(**{"model": "embedder", **options})


def shown(call):
    try:
        return call()
    except openai.APIStatusError as error:
        return [type(error).__name__, error.status_code, error.code, error.param, error.message]


def calls():
    models = client.models.list()
    return {
        "models": [model.id for model in models],
        "one": embed(input="rows").data[0].embedding,
        "float": embed(input="rows", encoding_format="float").data[0].embedding,
        "list": [
            [each.index, len(each.embedding)] for each in embed(input=["A batch", "rows", "x"]).data
        ],
        "short": len(embed(input="rows", dimensions=8).data[0].embedding),
        "usage": embed(input=["rows", "x"]).usage.prompt_tokens,
        "errors": [
            shown(lambda: embed(model="nix", input="a")),
            shown(lambda: embed(input=[[1, 2], [3]])),
            shown(lambda: client.with_options(api_key="wrong").models.list()),
        ],
    }


def speech():
    def hear(**options):
        with open(given[0], "rb") as file:
            return client.audio.transcriptions.create(**{"file": file, "model": "ear", **options})

    verbose = hear(response_format="verbose_json")
    timed = hear(response_format="verbose_json", timestamp_granularities=["word"], prompt="Names")
    with open(given[0], "rb") as file:
        events = list(client.audio.transcriptions.create(file=file, model="ear", stream=True))
    return {
        "text": hear().text,
        "plain": hear(response_format="text"),
        "segments": [[each.text, each.start, each.end] for each in verbose.segments],
        "words": [[each.word, each.start, each.end] for each in timed.words],
        "only_words": timed.segments is None,
        "language": verbose.language,
        "events": [event.type for event in events],
        "errors": [
            shown(lambda: hear(model="nix")),
            shown(lambda: hear(file=b"no audio")),
        ],
    }


def chat():
    options = {"model": "writer", "messages": json.loads(given[0]), "temperature": 0, "max_tokens": 12}
    whole = client.chat.completions.create(**options)
    stream = client.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    return {
        "text": whole.choices[0].message.content,
        "reason": whole.choices[0].finish_reason,
        "usage": whole.usage.completion_tokens,
        "streamed": "".join(c.choices[0].delta.content or "" for c in chunks if c.choices),
        "streamedUsage": chunks[-1].usage.completion_tokens,
        "errors": [
            shown(lambda: client.chat.completions.create(**options, n=2)),
            shown(lambda: client.chat.completions.create(**options, tools=[{"type": "x"}])),
        ],
    }


class Visit(pydantic.BaseModel):
    city: typing.Literal["Paris"]
    days: typing.Literal[3]


def forms():
    messages = [{"role": "user", "content": "Where to?"}]
    options = {"model": "caller", "max_tokens": 200}
    parsed = client.chat.completions.parse(**options, messages=messages, response_format=Visit)
    called = client.chat.completions.parse(
        **options,
        messages=messages,
        tools=[openai.pydantic_function_tool(Visit, name="travel")],
        tool_choice={"type": "function", "function": {"name": "travel"}},
    )
    response = client.responses.parse(
        model="caller", input="Where to?", max_output_tokens=200, text_format=Visit
    )
    with client.responses.stream(
        model="caller",
        input="Where to?",
        max_output_tokens=200,
        tools=[openai.pydantic_function_tool(Visit, name="travel")],
        tool_choice="required",
        parallel_tool_calls=False,
    ) as stream:
        types = [event.type for event in stream]
    return {
        "parsed": parsed.choices[0].message.parsed.model_dump(),
        "called": [
            call.function.parsed_arguments.model_dump()
            for call in called.choices[0].message.tool_calls
        ],
        "response": response.output_parsed.model_dump(),
        "events": sorted(set(types)),
        "completion": client.completions.create(
            model="caller", prompt="a", temperature=0
        ).usage.completion_tokens,
    }


def retry():
    return len(embed(model="busy", input="a").data)


async def leave():
    leaving = AsyncOpenAI(base_url=f"{url}/v1", api_key="secret", max_retries=0)
    call = asyncio.create_task(leaving.embeddings.create(model="busy", input=["a", "b", "c"]))
    await asyncio.to_thread(lambda: urllib.request.urlopen(f"{url}/queued").read())
    call.cancel()
    try:
        await call
    except asyncio.CancelledError:
        return "CancelledError"


def abort():
    return asyncio.run(leave())


print(json.dumps({"calls": calls, "chat": chat, "forms": forms, "speech": speech, "retry": retry, "abort": abort}[what]()))
