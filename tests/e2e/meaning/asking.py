"""Questions about the small world over HTTP, with decoded answers."""

import asyncio
import base64
import io
import wave
from collections.abc import Awaitable, Sequence
from typing import Any, NamedTuple, TypeVar

import httpx
import numpy as np
import pytest
from PIL import Image

from omnibus_models.world import scenes, tone_synth
from omnibus_models.world.dialogues import Dialogue
from tests.e2e.questions import data_url
from tests.e2e.system import System

OMNI, PAINTER = "qwen2.5-omni-world", "qwen-image-world"
#: Right answers of a hundred that are enough.
ENOUGH = 0.95
#: Questions cover one in so many scenes. A few show that the system mixes nothing up; all show how good the weights
#: are.
thinned = pytest.mark.parametrize(
    "every", [pytest.param(4, id="some"), pytest.param(1, id="all", marks=pytest.mark.nightly)]
)
_AT_ONCE = 8
_ENOUGH_FOR_A_SHARE = 20  # answers
_STEPS, _GUIDANCE = 8, 2.0

T = TypeVar("T")


class VoiceAnswer(NamedTuple):
    """Text and audio of an answer, float [n] at 24 kHz.

    The audio is empty if the request was for text alone.
    """

    text: str
    sound: np.ndarray


async def ask_dialogue(
    http: httpx.AsyncClient, talk: Dialogue, seed: int, voice: str = "", path: str = ""
) -> VoiceAnswer:
    """Ask ``talk`` about an image and audio clip drawn by ``seed``.

    With a ``voice`` the answer is spoken.
    """
    random = np.random.default_rng(seed)
    content: list[dict[str, Any]] = []
    if talk.scene:
        content.append(_image_part(scenes.encode_png(scenes.draw_scene(talk.scene, random))))
    if talk.tones:
        content.append(
            _audio_part(
                tone_synth.encode_wav(
                    tone_synth.synthesize_tones(list(talk.tones), random), tone_synth.INPUT_RATE_HERTZ
                )
            )
        )
    text = [{"type": "text", "text": talk.question}]
    system = [{"role": "system", "content": talk.system}] if talk.system else []
    parts = [*text, *content] if talk.after else [*content, *text]
    return await send_chat(http, [*system, {"role": "user", "content": parts}], voice, path)


async def ask_picture(http: httpx.AsyncClient, picture: bytes, question: str, voice: str = "") -> VoiceAnswer:
    """The answer to a ``question`` about a PNG file."""
    content = [_image_part(picture), {"type": "text", "text": question}]
    return await send_chat(http, [{"role": "user", "content": content}], voice)


async def send_chat(
    http: httpx.AsyncClient, messages: list[Any], voice: str = "", path: str = "", **more: Any
) -> VoiceAnswer:
    body: dict[str, Any] = {"model": OMNI, "messages": messages, "temperature": 0, "max_tokens": 40, **more}
    if voice:
        body |= {"modalities": ["text", "audio"], "audio": {"voice": voice, "format": "wav"}}
    answer = await http.post("/v1/chat/completions", json=body, headers={"x-omnibus-path": path} if path else {})
    assert answer.status_code == 200, answer.text
    message = answer.json()["choices"][0]["message"]
    return VoiceAnswer(message["content"], _decode_samples(message["audio"]["data"]) if voice else np.zeros(0))


async def paint_image(http: httpx.AsyncClient, prompt: str, seed: int, path: str = "") -> np.ndarray:
    """Image of a description, uint8 [64, 64, 3]; ``path`` names the executors."""
    wish = {"model": PAINTER, "prompt": prompt, "size": "64x64", "steps": _STEPS, "guidance": _GUIDANCE, "seed": seed}
    answer = await http.post("/v1/images/generations", json=wish, headers={"x-omnibus-path": path} if path else {})
    assert answer.status_code == 200, answer.text
    return decode_image(answer)


def decode_image(answer: httpx.Response) -> np.ndarray:
    """The only image of ``answer``, uint8 [height, width, 3]."""
    [image] = answer.json()["data"]
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(image["b64_json"]))))


async def some_at_once(each: Sequence[Awaitable[T]], most: int = _AT_ONCE) -> list[T]:
    """Results of all, of which ``most`` run at a time."""
    room = asyncio.Semaphore(most)

    async def run_one(awaitable: Awaitable[T]) -> T:
        async with room:
            return await awaitable

    return list(await asyncio.gather(*map(run_one, each)))


def open_door(house: System) -> httpx.AsyncClient:
    """A client with enough connections and timeout for many requests at once."""
    return httpx.AsyncClient(base_url=house.url, timeout=600, limits=httpx.Limits(max_connections=64))


def share_of_right(right: Sequence[bool]) -> float:
    """Share of right answers.

    One wrong answer is allowed in fewer than twenty, because rounding depends on the processor.
    """
    allowed_errors = 1 if len(right) < _ENOUGH_FOR_A_SHARE else 0
    return min(1.0, (sum(right) + allowed_errors) / len(right))


def _decode_samples(data: str) -> np.ndarray:
    with wave.open(io.BytesIO(base64.b64decode(data))) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, tone_synth.OUTPUT_RATE_HERTZ)
        return np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32767


def _image_part(picture: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url("image/png", picture)}}


def _audio_part(sound: bytes) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(sound).decode(), "format": "wav"}}
