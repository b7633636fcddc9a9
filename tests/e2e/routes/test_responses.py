"""``/v1/responses`` and ``/v1/conversations`` with a real model and the official client.

The client checks each answer against its own types.
"""

import base64
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from tests.e2e.routes.conftest import OMNI
from tests.e2e.system import System
from tests.unit.gateway.responses_house import events_of
from tests.unit.gateway.samples import make_sample_picture, make_sample_sound

pytestmark = pytest.mark.e2e

PNG = f"data:image/png;base64,{base64.b64encode(make_sample_picture('PNG', (32, 32))).decode()}"
#: Answers of a tiny model have no meaning, so they are short and always the same.
SHORT: dict[str, Any] = {"model": OMNI, "max_output_tokens": 16, "extra_body": {"seed": 3}}


@pytest.fixture
async def strict_client(system: System) -> AsyncIterator[openai.AsyncOpenAI]:
    await system.becomes_ready()
    async with openai.AsyncOpenAI(
        base_url=f"{system.url}/v1", api_key="none", max_retries=0, timeout=60, _strict_response_validation=True
    ) as new_client:
        yield new_client


async def test_a_response_is_made_and_retrieved_at_every_gateway(
    strict_client: openai.AsyncOpenAI, other_client: openai.AsyncOpenAI
):
    response = await strict_client.responses.create(input="hello", instructions="be kind", metadata={"a": "b"}, **SHORT)

    assert response.output_text
    assert response.usage is not None
    assert (await other_client.responses.retrieve(response.id)).to_dict() == response.to_dict()
    items = [item async for item in await strict_client.responses.input_items.list(response.id)]
    assert [item.to_dict()["content"] for item in items] == [[{"type": "input_text", "text": "hello"}]]
    await strict_client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        await other_client.responses.retrieve(response.id)


async def test_a_stream_says_the_same_and_comes_again_elsewhere(
    strict_client: openai.AsyncOpenAI, other_client: openai.AsyncOpenAI
):
    whole = await strict_client.responses.create(input="hello", **SHORT)
    events = [event async for event in await strict_client.responses.create(input="hello", stream=True, **SHORT)]

    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    id = events[0].response.id  # type: ignore[union-attr]
    rest = [event async for event in await other_client.responses.retrieve(id, stream=True, starting_after=3)]
    assert [event.to_dict() for event in rest] == [event.to_dict() for event in events[4:]]


async def test_a_response_in_the_background_is_polled_elsewhere(
    strict_client: openai.AsyncOpenAI, other_client: openai.AsyncOpenAI
):
    response = await strict_client.responses.create(input="hello", background=True, **SHORT)

    assert response.status == "queued"
    while (now := await other_client.responses.retrieve(response.id)).status in ("queued", "in_progress"):
        pass
    assert now.status in ("completed", "incomplete")
    assert now.output_text
    assert (await other_client.responses.cancel(response.id)).status == now.status  # it is over


async def test_state_is_kept_in_responses_and_in_conversations(
    strict_client: openai.AsyncOpenAI, other_client: openai.AsyncOpenAI
):
    first = await strict_client.responses.create(input="hello", **SHORT)
    by_id = await other_client.responses.create(input="and then?", previous_response_id=first.id, **SHORT)
    history: list[Any] = [{"role": "user", "content": "hello"}, *(item.to_dict() for item in first.output)]
    by_hand = await strict_client.responses.create(input=[*history, {"role": "user", "content": "and then?"}], **SHORT)
    conversation = await strict_client.conversations.create(metadata={"a": "b"})
    await strict_client.responses.create(input="hello", conversation=conversation.id, **SHORT)
    in_conversation = await other_client.responses.create(input="and then?", conversation=conversation.id, **SHORT)

    assert by_id.output_text == by_hand.output_text == in_conversation.output_text
    items = [item async for item in await strict_client.conversations.items.list(conversation.id, order="asc")]
    assert [getattr(item, "role", "") for item in items] == ["user", "assistant", "user", "assistant"]
    one = await strict_client.conversations.items.retrieve(items[0].id or "", conversation_id=conversation.id)
    assert one.to_dict() == items[0].to_dict()
    await strict_client.conversations.update(conversation.id, metadata={"c": "d"})
    assert (await other_client.conversations.retrieve(conversation.id)).metadata == {"c": "d"}
    await strict_client.conversations.delete(conversation.id)
    with pytest.raises(openai.NotFoundError):
        await other_client.conversations.retrieve(conversation.id)


async def test_pictures_and_sound_go_in_and_speech_comes_out(strict_client: openai.AsyncOpenAI, system: System):
    wav = base64.b64encode(make_sample_sound("wav", "pcm_s16le", 0.3, 16000)).decode()
    content: list[Any] = [
        {"type": "input_text", "text": "what is this?"},
        {"type": "input_image", "image_url": PNG, "detail": "auto"},
        {"type": "input_audio", "input_audio": {"data": wav, "format": "wav"}},
    ]
    response = await strict_client.responses.create(input=[{"role": "user", "content": content}], **SHORT)

    assert response.usage is not None
    details = response.usage.input_tokens_details.to_dict()
    assert details["image_tokens"]
    assert details["audio_tokens"]
    speech_fields = {"modalities": ["text", "audio"], "audio": {"voice": "Chelsie", "format": "wav", "max_tokens": 40}}
    async with system.http() as http:  # our own part of messages, which the client's types do not know
        body = {"model": OMNI, "input": "hello", "max_output_tokens": 8, "seed": 3, "stream": True, **speech_fields}
        events = events_of((await http.post("/v1/responses", json=body)).text)
    part = events[-1]["response"]["output"][0]["content"][-1]
    deltas = "".join(event["delta"] for event in events if event["type"] == "response.audio.delta")
    assert base64.b64decode(part["data"])[:4] == b"RIFF"
    assert base64.b64decode(deltas) == base64.b64decode(part["data"])


async def test_a_conversation_goes_on_over_a_websocket_without_being_stored(strict_client: openai.AsyncOpenAI):
    kind: Any = {"type": "response.create", "model": OMNI, "max_output_tokens": 16, "seed": 3, "store": False}
    async with strict_client.responses.connect() as connection:
        ends: list[Any] = []
        for input in ("hello", "and then?"):
            before = {"previous_response_id": ends[-1].id} if ends else {}
            await connection.send({**kind, "input": input, **before})
            async for event in connection:
                if event.type in ("response.completed", "response.incomplete", "error"):
                    ends.append(event.response)
                    break
    first = await strict_client.responses.create(input="hello", **SHORT)
    second = await strict_client.responses.create(input="and then?", previous_response_id=first.id, **SHORT)

    assert [each.output_text for each in ends] == [first.output_text, second.output_text]
    with pytest.raises(openai.NotFoundError):
        await strict_client.responses.retrieve(ends[-1].id)
