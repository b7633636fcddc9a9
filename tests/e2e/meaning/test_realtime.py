"""Voice conversations with the trained world model, through a common client."""

import asyncio
import base64
import json
from typing import Any

import numpy as np
import pytest
from openai.resources.realtime.realtime import AsyncRealtimeConnection
from websockets.exceptions import InvalidStatus

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


def tones(row: tuple[str, ...], seed: int) -> str:
    """Tones as 24 kHz samples in base64."""
    sound = tone_synth.synthesize_tones(list(row), np.random.default_rng(seed))
    times = np.arange(len(sound) * 3 // 2) / 24000
    samples = np.interp(times, np.arange(len(sound)) / tone_synth.INPUT_RATE_HERTZ, sound)
    return base64.b64encode((samples * 32767).astype("<i2").tobytes()).decode()


async def respond(socket: AsyncRealtimeConnection, item: str, **more: Any) -> tuple[Any, np.ndarray, str]:
    """Response to one item: its last event, its audio, and its transcript.

    Audio is float [n] at 24 kHz. Training did not include conversations, so the model gets one question at a time.
    """
    await socket.response.create(response={"input": [{"type": "item_reference", "id": item}], **more})
    return await collect(socket)


async def collect(socket: AsyncRealtimeConnection) -> tuple[Any, np.ndarray, str]:
    """The response under way."""
    sound, said = b"", ""
    while (event := await next_event(socket)).type != "response.done":
        if event.type == "response.output_audio.delta":
            sound += base64.b64decode(event.delta)
        elif event.type == "response.output_audio_transcript.delta":
            said += event.delta
    return event.response, np.frombuffer(sound, "<i2") / 32767, said


async def next_event(socket: AsyncRealtimeConnection, type: str = "") -> Any:
    """The next event, of ``type`` if one is named."""
    async with asyncio.timeout(PATIENCE):
        while (event := await socket.recv()).type != type and type:
            assert event.type != "error", event
    assert event.type != "error", event
    return event


async def ask(socket: AsyncRealtimeConnection, *content: Any) -> str:
    """A message of the user; its id."""
    await socket.conversation.item.create(item={"type": "message", "role": "user", "content": list(content)})
    return str((await next_event(socket, "conversation.item.done")).item.id)


async def speak(socket: AsyncRealtimeConnection, row: tuple[str, ...], seed: int) -> str:
    """Send tones in a microphone's format; return the id of their message."""
    sound = base64.b64decode(tones(row, seed))
    for at in range(0, len(sound), 4800):
        await socket.input_audio_buffer.append(audio=base64.b64encode(sound[at : at + 4800]).decode())
    await socket.input_audio_buffer.commit()
    return str((await next_event(socket, "conversation.item.done")).item.id)


async def test_a_conversation_by_voice_with_an_interruption_a_picture_and_a_tool(house: System):
    random, scene = np.random.default_rng(3), scenes.held_out_scenes()[0]
    picture = {
        "type": "input_image",
        "image_url": data_url("image/png", scenes.encode_png(scenes.draw_scene(scene, random))),
    }
    async with house.client() as client, client.realtime.connect(model=OMNI) as socket:
        await socket.session.update(session={"type": "realtime", "temperature": 0, "audio": BY_HAND})  # type: ignore[typeddict-unknown-key]
        for seed, row in enumerate([("low",), ("middle",)]):
            response, sound, said = await respond(socket, await speak(socket, row, seed))
            assert (response.status, said.split(), audio_oracle.recognize_words(sound)) == ("completed", [*row], [*row])
            assert response.usage.input_token_details.audio_tokens > 0

        asked = await ask(socket, picture, {"type": "input_text", "text": "What do you see?"})
        shown, sound, said = await respond(socket, asked)
        assert (said, audio_oracle.recognize_words(sound)) == (scene.caption, scene.caption.split())

        asked = await ask(socket, {"type": "input_text", "text": f"Say {scene.caption}"})
        made = socket.response.create(response={"input": [{"type": "item_reference", "id": asked}]})
        await asyncio.gather(made, socket.response.cancel())  # at once, or it may be over before
        assert (await next_event(socket, "response.done")).response.status == "cancelled"
        await socket.conversation.item.truncate(item_id=shown.output[0].id, content_index=0, audio_end_ms=10)
        await next_event(socket, "conversation.item.truncated")

        tool = {"type": "function", "name": "play", "parameters": TONE}
        asked = await ask(socket, {"type": "input_text", "text": "Say low"})
        how = {"tools": [tool], "tool_choice": "required", "output_modalities": ["text"], "max_output_tokens": 64}
        call = (await respond(socket, asked, **how))[0].output[-1]
        assert (call.type, call.name) == ("function_call", "play")
        assert json.loads(call.arguments)["tone"] in tone_synth.TONES

        response, sound, said = await respond(socket, await speak(socket, ("high", "low"), 7))
        assert (said.split(), audio_oracle.recognize_words(sound)) == (["high", "low"], ["high", "low"])
    await house.ledger_is_empty()


async def test_a_turn_is_found_in_what_a_microphone_gives_and_answered_aloud(house: System):
    async with house.client() as client, client.realtime.connect(model=OMNI) as socket:
        await socket.session.update(session={"type": "realtime", "temperature": 0})  # type: ignore[typeddict-unknown-key]
        for part in (SILENCE, tones(("low",), 0), SILENCE):
            await socket.input_audio_buffer.append(audio=part)
        started = await next_event(socket, "input_audio_buffer.speech_started")
        stopped = await next_event(socket, "input_audio_buffer.speech_stopped")
        response, sound, said = await collect(socket)
        await socket.conversation.item.retrieve(item_id=started.item_id)
        taken = base64.b64decode((await next_event(socket, "conversation.item.retrieved")).item.content[0].audio)

    # Without a question in words, the model's answer is untrained.
    assert 600 <= started.audio_start_ms <= 1000 < stopped.audio_end_ms
    assert audio_oracle.recognize_tones(np.frombuffer(taken, "<i2") / 32767, 24000) == ["low"]
    assert (response.status, bool(said), len(sound) > 0) == ("completed", True, True)
    await house.ledger_is_empty()


async def test_an_unknown_model_is_refused_as_everywhere(house: System):
    async with house.client() as client:
        with pytest.raises(InvalidStatus) as caught:
            async with client.realtime.connect(model="nobody"):
                pass
    assert caught.value.response.status_code == 404
