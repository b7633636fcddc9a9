"""A gateway accepts another one's spoken answer ids and files."""

import base64
from typing import Any

import openai
import pytest

from tests.e2e.routes.conftest import PAINTER
from tests.e2e.system import OMNI, System

pytestmark = pytest.mark.e2e

ASKED: dict[str, Any] = {
    "model": OMNI,
    "modalities": ["text", "audio"],
    "audio": {"voice": "Chelsie", "format": "mp3", "max_tokens": 24},
    "max_tokens": 8,
    "temperature": 0,
    "seed": 7,
}
HELLO: dict[str, Any] = {"role": "user", "content": "hello there"}
AGAIN: dict[str, Any] = {"role": "user", "content": "say that again"}


async def send_chat(client: openai.AsyncOpenAI, *turns: Any, **more: Any) -> Any:
    fields = {**ASKED, "messages": [HELLO, *turns], **more}
    return await client.chat.completions.create(**fields)


async def test_a_spoken_answer_is_known_by_its_id(
    client: openai.AsyncOpenAI, other_client: openai.AsyncOpenAI, system: System
):
    first = (await send_chat(client)).choices[0].message.audio
    text_turn = {"role": "assistant", "content": first.transcript}
    audio_turn = {"role": "assistant", "audio": {"id": first.id}}

    answers = [
        (await send_chat(each, turn, AGAIN)) for each in (client, other_client) for turn in (text_turn, audio_turn)
    ]

    texts = [answer.choices[0].message.content for answer in answers]
    assert texts == [texts[0]] * 4
    usages = [answer.usage.prompt_tokens for answer in answers]
    assert usages == [usages[0]] * 4
    await system.ledger_is_empty()


async def test_a_streamed_answer_is_known_and_its_sound_can_be_fetched(
    client: openai.AsyncOpenAI, other_client: openai.AsyncOpenAI
):
    chunks = [chunk.model_dump() async for chunk in await send_chat(client, stream=True)]
    parts = [chunk["choices"][0]["delta"].get("audio") or {} for chunk in chunks if chunk["choices"]]
    [id] = [part["id"] for part in parts if part.get("id")]
    sound = b"".join(base64.b64decode(part.get("data") or "") for part in parts)

    file = await other_client.files.content(id)
    again = await send_chat(other_client, {"role": "assistant", "audio": {"id": id}}, AGAIN)

    assert file.content == sound
    assert file.response.headers["content-type"] == "audio/mpeg"
    assert again.choices[0].message.content


async def test_an_unknown_answer_is_refused_with_its_place(client: openai.AsyncOpenAI):
    with pytest.raises(openai.BadRequestError) as error:
        await send_chat(client, {"role": "assistant", "audio": {"id": "audio_" + "0" * 48}}, AGAIN)

    assert error.value.param == "messages[1].audio.id"


async def test_a_picture_is_fetched_and_removed_at_another_gateway(
    client: openai.AsyncOpenAI, other_client: openai.AsyncOpenAI
):
    response = await client.images.generate(
        model=PAINTER, prompt="a boat", size="64x64", response_format="url", extra_body={"steps": 2}
    )

    assert response.data is not None
    id = (response.data[0].url or "").split("/")[-2]
    assert (await other_client.files.content(id)).content.startswith(b"\x89PNG")
    await other_client.files.delete(id)
    with pytest.raises(openai.NotFoundError):
        await client.files.content(id)
