"""Voice conversations with the trained world model, through a common client."""

import asyncio
import base64
import json
from typing import Any

import numpy as np
import pytest
from openai.resources.realtime.realtime import AsyncRealtimeConnection

from omnibus_models.world import audio_oracle, scenes, tone_synth
from tests.e2e.meaning.asking import OMNI
from tests.e2e.questions import data_url
from tests.e2e.system import System

pytestmark = pytest.mark.e2e

PATIENCE = 120.0
BY_HAND = {"input": {"turn_detection": None}}
SILENCE = base64.b64encode(bytes(2 * 24000)).decode()
TONE = {
    "type": "object",
    "properties": {"tone": {"enum": list(tone_synth.TONES)}},
    "required": ["tone"],
    "additionalProperties": False,
}


def make_tones(row: tuple[str, ...], seed: int) -> str:
    """Tones as 24 kHz samples in base64."""
    sound = tone_synth.synthesize_tones(list(row), np.random.default_rng(seed))
    times = np.arange(len(sound) * 3 // 2) / 24000
    samples = np.interp(times, np.arange(len(sound)) / tone_synth.INPUT_RATE_HERTZ, sound)
    return base64.b64encode((samples * 32767).astype("<i2").tobytes()).decode()


async def request_response(socket: AsyncRealtimeConnection, item: str, **more: Any) -> tuple[Any, np.ndarray, str]:
    """Response to one item: its last event, its audio, and its transcript.

    Audio is float [n] at 24 kHz. Training did not include conversations, so the model gets one question at a time.
    """
    await socket.response.create(response={"input": [{"type": "item_reference", "id": item}], **more})
    return await collect_response(socket)


async def collect_response(socket: AsyncRealtimeConnection) -> tuple[Any, np.ndarray, str]:
    """The response under way."""
    sound, transcript = b"", ""
    while (event := await next_event(socket)).type != "response.done":
        if event.type == "response.output_audio.delta":
            sound += base64.b64decode(event.delta)
        elif event.type == "response.output_audio_transcript.delta":
            transcript += event.delta
    return event.response, np.frombuffer(sound, "<i2") / 32767, transcript


async def next_event(socket: AsyncRealtimeConnection, type: str = "") -> Any:
    """The next event, of ``type`` if one is named."""
    async with asyncio.timeout(PATIENCE):
        while (event := await socket.recv()).type != type and type:
            assert event.type != "error", event
    assert event.type != "error", event
    return event


async def send_message(socket: AsyncRealtimeConnection, *content: Any) -> str:
    """A message of the user; its id."""
    await socket.conversation.item.create(item={"type": "message", "role": "user", "content": list(content)})
    return str((await next_event(socket, "conversation.item.done")).item.id)


async def send_tones(socket: AsyncRealtimeConnection, row: tuple[str, ...], seed: int) -> str:
    """Send tones in a microphone's format; return the id of their message."""
    sound = base64.b64decode(make_tones(row, seed))
    for at in range(0, len(sound), 4800):
        await socket.input_audio_buffer.append(audio=base64.b64encode(sound[at : at + 4800]).decode())
    await socket.input_audio_buffer.commit()
    return str((await next_event(socket, "conversation.item.done")).item.id)


async def test_a_conversation_by_voice_with_an_interruption_a_picture_and_a_tool(world_system: System):
    random, scene = np.random.default_rng(3), scenes.held_out_scenes()[0]
    picture = {
        "type": "input_image",
        "image_url": data_url("image/png", scenes.encode_png(scenes.draw_scene(scene, random))),
    }
    async with world_system.client() as client, client.realtime.connect(model=OMNI) as socket:
        await socket.session.update(session={"type": "realtime", "temperature": 0, "audio": BY_HAND})  # type: ignore[typeddict-unknown-key]
        for seed, row in enumerate([("low",), ("middle",)]):
            response, sound, transcript = await request_response(socket, await send_tones(socket, row, seed))
            assert (response.status, transcript.split(), audio_oracle.recognize_words(sound)) == (
                "completed",
                [*row],
                [*row],
            )
            assert response.usage.input_token_details.audio_tokens > 0

        message_id = await send_message(socket, picture, {"type": "input_text", "text": "What do you see?"})
        answer, sound, transcript = await request_response(socket, message_id)
        assert (transcript, audio_oracle.recognize_words(sound)) == (scene.caption, scene.caption.split())

        message_id = await send_message(socket, {"type": "input_text", "text": f"Say {scene.caption}"})
        creation = socket.response.create(response={"input": [{"type": "item_reference", "id": message_id}]})
        await asyncio.gather(creation, socket.response.cancel())  # at once, or it may be over before
        assert (await next_event(socket, "response.done")).response.status == "cancelled"
        await socket.conversation.item.truncate(item_id=answer.output[0].id, content_index=0, audio_end_ms=10)
        await next_event(socket, "conversation.item.truncated")

        tool = {"type": "function", "name": "play", "parameters": TONE}
        message_id = await send_message(socket, {"type": "input_text", "text": "Say low"})
        how = {"tools": [tool], "tool_choice": "required", "output_modalities": ["text"], "max_output_tokens": 64}
        call = (await request_response(socket, message_id, **how))[0].output[-1]
        assert (call.type, call.name) == ("function_call", "play")
        assert json.loads(call.arguments)["tone"] in tone_synth.TONES

        response, sound, transcript = await request_response(socket, await send_tones(socket, ("high", "low"), 7))
        assert (transcript.split(), audio_oracle.recognize_words(sound)) == (["high", "low"], ["high", "low"])
    await world_system.ledger_is_empty()


async def test_a_turn_is_found_in_what_a_microphone_gives_and_answered_aloud(world_system: System):
    async with world_system.client() as client, client.realtime.connect(model=OMNI) as socket:
        await socket.session.update(session={"type": "realtime", "temperature": 0})  # type: ignore[typeddict-unknown-key]
        for part in (SILENCE, make_tones(("low",), 0), SILENCE):
            await socket.input_audio_buffer.append(audio=part)
        start_event = await next_event(socket, "input_audio_buffer.speech_started")
        stop_event = await next_event(socket, "input_audio_buffer.speech_stopped")
        response, sound, transcript = await collect_response(socket)
        await socket.conversation.item.retrieve(item_id=start_event.item_id)
        data = base64.b64decode((await next_event(socket, "conversation.item.retrieved")).item.content[0].audio)

    # Without a question in words, the model's answer is untrained.
    assert 600 <= start_event.audio_start_ms <= 1000 < stop_event.audio_end_ms
    assert audio_oracle.recognize_tones(np.frombuffer(data, "<i2") / 32767, 24000) == ["low"]
    assert (response.status, bool(transcript), len(sound) > 0) == ("completed", True, True)
    await world_system.ledger_is_empty()


async def test_an_unknown_model_is_an_error_event(world_system: System):
    async with world_system.client() as client, client.realtime.connect(model="nobody") as connection:
        event = await connection.recv()

    assert event.type == "error"
    assert (event.error.code, event.error.param) == ("not_found", "model")
