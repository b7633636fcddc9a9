"""Images of responses: drawn where the model calls the image tool, or as the whole answer of an image model."""

import asyncio
import base64
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import UNSET
from openai import AsyncOpenAI
from openai.types.responses import Response
from PIL import Image

from omnibus.cli.invocations import invocation_lines
from omnibus.executor.runner import Job
from omnibus.recording.waterfall import build_waterfall
from omnibus.store import Store
from omnibus.structured.calls import call_head
from tests.unit.gateway.house import PAINTER, TEXT, ToyGateway, paint_latents, read_error_body, start_toy_gateway
from tests.unit.gateway.responses_house import (
    PATH,
    ResponseReader,
    ResponsesPair,
    events_of,
    post_response,
    read_response_body,
)
from tests.unit.sidecar.node import wait_until

DRAW: dict[str, Any] = {"type": "image_generation", "size": "64x32"}


class Artist:
    """A thinker that calls the image tool and a function. It records its input."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.params: dict[str, Any] = {}
        self.prompts = ["a red cat"]

    async def __call__(self, job: Job) -> None:
        self.messages, self.params = await job.value("messages"), job.inputs["params"]
        await job.send("text", {"text": "Look.", "ids": [1]})
        for prompt in self.prompts:
            arguments = json.dumps({"prompt": prompt})
            await job.send("text", {"calls": call_head("image_generation") + arguments[:5], "ids": [2]})
            await job.send("text", {"calls": arguments[5:], "ids": [3]})
        job.close("text", {"finish_reason": "stop", "usage": {"prompt_tokens": 5, "completion_tokens": 3}})


@pytest.fixture
def artist() -> Artist:
    return Artist()


@pytest.fixture
async def studio(tmp_path: Path, store: Store, artist: Artist) -> AsyncIterator[ToyGateway]:
    """A chat model and an image model."""
    async with start_toy_gateway(tmp_path, store) as gateway:
        gateway.serve(TEXT, PAINTER)
        assert gateway.router.plan is not None
        for model, works in ((TEXT, {"thinker": artist}), (PAINTER, {})):
            for option, spec in gateway.router.plan.models[model].options.items():
                await gateway.executor(model, option, *spec.components, **works)
        yield gateway


def read_picture(data: str) -> Any:
    """Return the pixels of a file in base64."""
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"))


def read_images(response: dict[str, Any]) -> list[Any]:
    """Return the pixels of a response's images."""
    return [read_picture(item["result"]) for item in response["output"] if "result" in item]


async def test_an_image_is_drawn_where_the_model_calls_for_it(studio: ToyGateway, artist: Artist) -> None:
    response = read_response_body(await post_response(studio, "draw a cat", tools=[DRAW]))
    again = read_response_body(await post_response(studio, "draw a cat", tools=[DRAW]))

    message, image = response["output"]
    assert message["content"][0]["text"] == "Look."
    assert (image["type"], image["status"]) == ("image_generation_call", "completed")
    assert image["revised_prompt"] == "a red cat"
    assert (image["size"], image["output_format"]) == ("64x32", "png")
    [pixels] = read_images(response)
    assert pixels.shape == (32, 64, 3)
    assert pixels[0, 0, 1] == 3  # words of the prompt, as the toy draws
    assert again["output"][1]["result"] == image["result"]  # by the response's seed
    assert response["tools"] == [DRAW]
    [tool] = artist.params["tools"]
    assert (tool["function"]["name"], tool["function"]["parameters"]["required"]) == ("image_generation", ["prompt"])


async def test_its_events_are_those_of_openai(studio: ToyGateway) -> None:
    events = events_of((await post_response(studio, "draw", tools=[{**DRAW, "partial_images": 2}], stream=True)).text)

    kinds = [event["type"].removeprefix("response.") for event in events]
    begin = kinds.index("output_item.added", kinds.index("output_item.done"))
    assert kinds[begin:] == [
        "output_item.added", "image_generation_call.in_progress", "image_generation_call.generating",
        "image_generation_call.partial_image", "image_generation_call.partial_image",
        "image_generation_call.completed", "output_item.done", "completed",
    ]  # fmt: skip
    added_event, partial, done_event = events[begin], events[begin + 3], events[-2]
    assert (added_event["item"]["status"], added_event["item"]["result"]) == ("in_progress", None)
    assert [each["partial_image_index"] for each in events[begin + 3 : begin + 5]] == [0, 1]
    assert read_picture(partial["partial_image_b64"]).shape == (32, 64, 3)
    assert {event["item_id"] for event in events[begin + 1 : -2]} == {added_event["item"]["id"]}
    assert events[-1]["response"]["output"][1] == done_event["item"]


async def test_openais_client_reads_it_strictly(studio: ToyGateway) -> None:
    async with AsyncOpenAI(
        base_url="http://localhost/v1",
        api_key="none",
        max_retries=0,
        http_client=studio.http,
        _strict_response_validation=True,
    ) as client:
        tools: Any = [{**DRAW, "partial_images": 1}]
        choice: Any = {"type": "image_generation"}
        response = await client.responses.create(model=TEXT, input="draw", tools=tools, tool_choice=choice)
        stream = await client.responses.create(model=TEXT, input="draw", tools=tools, stream=True)
        kinds = {event.type async for event in stream}

    assert isinstance(response, Response)
    assert [item.type for item in response.output] == ["message", "image_generation_call"]
    assert {"response.image_generation_call.partial_image", "response.image_generation_call.completed"} <= kinds


async def test_the_model_is_made_to_draw_by_the_choice_of_the_tool(studio: ToyGateway, artist: Artist) -> None:
    read_response_body(await post_response(studio, "draw", tools=[DRAW], tool_choice={"type": "image_generation"}))
    assert artist.params["tool_choice"] == "required"
    assert artist.params["allowed_tools"] == ["image_generation"]


async def test_several_are_drawn_one_after_the_other_as_many_as_are_allowed(studio: ToyGateway, artist: Artist) -> None:
    artist.prompts = ["a cat", "a very big dog", "", "a mouse"]

    response = read_response_body(await post_response(studio, "draw", tools=[DRAW], max_tool_calls=3))

    assert [item.get("status") for item in response["output"][1:]] == ["completed", "completed", "failed"]
    assert [pixels[0, 0, 1] for pixels in read_images({"output": response["output"][1:3]})] == [2, 4]
    assert response["output"][1]["result"] != response["output"][2]["result"]


async def test_the_records_of_a_chat_and_of_its_images_name_each_other(studio: ToyGateway, artist: Artist) -> None:
    artist.prompts = ["a cat", "a dog"]
    invocations: list[Any] = []
    studio.records.on_end = lambda running, _: invocations.append(running.invocation)

    read_response_body(await post_response(studio, "draw", tools=[DRAW]))
    await wait_until(lambda: len(invocations) == 3)

    [chat] = [each for each in invocations if each.model == TEXT]
    drawings = [each for each in invocations if each.model == PAINTER]
    record = await studio.records.find(chat.id)
    assert record.ended is not None
    assert record.ended.called == (drawings[0].id, drawings[1].id)
    assert build_waterfall(*record).called == record.ended.called
    assert any(line.startswith("called") and drawings[1].id in line for line in invocation_lines(*record))
    for each in drawings:
        image = await studio.records.find(each.id)
        assert image.ended is not None
        assert (image.ended.caller, image.ended.called) == (chat.id, UNSET)
        assert f"for     {chat.id}" in "\n".join(invocation_lines(*image))


async def test_a_conversation_goes_on_without_its_images(studio: ToyGateway, artist: Artist) -> None:
    first = read_response_body(await post_response(studio, "draw", tools=[DRAW]))

    read_response_body(await post_response(studio, "thanks", previous_response_id=first["id"]))
    assert [message["role"] for message in artist.messages] == ["user", "assistant", "user"]
    read_response_body(
        await post_response(studio, [*first["output"], {"role": "user", "content": "again"}], store=False)
    )
    assert [message["role"] for message in artist.messages] == ["assistant", "user"]


async def test_a_model_that_draws_answers_with_an_image(studio: ToyGateway) -> None:
    messages: Any = [{"role": "user", "content": "a small"}, {"role": "user", "content": "blue fish"}]
    response = read_response_body(await post_response(studio, messages, model=PAINTER, tools=[DRAW]))
    events = events_of((await post_response(studio, "a fish", model=PAINTER, tools=[DRAW], stream=True)).text)

    [image] = response["output"]
    [pixels] = read_images(response)
    assert (image["type"], image["revised_prompt"]) == ("image_generation_call", "a small\nblue fish")
    assert pixels.shape == (32, 64, 3)
    assert (pixels[0, 0, 0], pixels[0, 0, 1]) == (5, 4)  # the request's seed, and the words
    assert (response["status"], response["usage"]["input_tokens"], response["usage"]["output_tokens"]) == (
        "completed",
        4,
        8,
    )
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "image_generation_call.in_progress"]
    assert kinds[-2:] == ["output_item.done", "completed"]


async def test_a_stream_with_an_image_goes_on_at_another_gateway(pair: ResponsesPair) -> None:
    go = asyncio.Event()

    async def paint_later(job: Job) -> None:
        await go.wait()
        await paint_latents(job)

    await pair.serve(PAINTER, vae=paint_later)
    body = {
        "model": PAINTER,
        "input": "a blue fish",
        "seed": 5,
        "stream": True,
        "tools": [{**DRAW, "partial_images": 1}],
    }
    reading = ResponseReader(pair.first, "POST", PATH, json=body)
    await reading.until("partial_image")
    had = reading.events
    reading.client.leave()
    await asyncio.wait_for(reading.task, 10)

    go.set()
    query = {"stream": "true", "starting_after": had[-1]["sequence_number"]}
    rest = events_of((await pair.second.http.get(f"{PATH}/{had[0]['response']['id']}", params=query)).text)

    kinds = [event["type"].removeprefix("response.") for event in (*had, *rest)]
    assert kinds == [
        "created", "in_progress", "output_item.added",
        *(f"image_generation_call.{state}" for state in ("in_progress", "generating", "partial_image", "completed")),
        "output_item.done", "completed",
    ]  # fmt: skip
    [pixels] = read_images(rest[-1]["response"])
    assert (pixels[0, 0, 0], pixels[0, 0, 1]) == (5, 3)


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"tools": [{"type": "image_generation", "model": "nobody"}]}, 404, "tools"),
        ({"tools": [{"type": "image_generation", "model": TEXT}]}, 400, "model"),
        ({"model": PAINTER, "input": [{"role": "assistant", "content": "x"}]}, 400, "input"),
        ({"model": PAINTER, "tools": [{"type": "image_generation", "size": "63x32"}]}, 400, "size"),
        ({"model": PAINTER, "tools": [{"type": "function", "name": "f"}]}, 400, "tools"),
    ],
)
async def test_what_cannot_be_drawn_is_refused(
    studio: ToyGateway, fields: dict[str, Any], status: int, param: str
) -> None:
    response = await post_response(studio, **fields)

    assert (response.status_code, read_error_body(response)["param"]) == (status, param), response.text
