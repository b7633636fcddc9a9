"""Requests of a run, and how to read and compare their answers; drawn by a seed."""

import base64
import json
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.chaos.stack import DIRECTOR, OMNI, PAINTER, SIMULATED, VL
from tests.e2e.questions import OMNI_QUESTIONS, VL_QUESTIONS

CHAT_DONE, SPEECH_DONE = b"data: [DONE]", b'data: {"type":"speech.audio.done"'
JSON = {"content-type": "application/json"}


@dataclass(frozen=True)
class ChaosRequest:
    """One request; ``read`` extracts from a good answer the comparable part.

    That part is the text, or the samples.
    """

    case: str
    path: str
    body: bytes
    read: Callable[[bytes], str | tuple[int, ...]]
    streamed: bool = False
    harmless: bool = True
    headers: dict[str, str] = field(default_factory=lambda: dict(JSON))
    end: bytes = CHAT_DONE  # beginning of the last event of a whole stream


def make_good(case: str, streamed: bool = False) -> ChaosRequest:
    """Request of this case, whole, or ``streamed`` if the route supports it."""
    return CASES[case](streamed)


def draw_request(dice: Random) -> ChaosRequest:
    """Draw one of the good requests; expensive ones are rare."""
    case = dice.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    return make_good(case, dice.random() < 0.4)


# Cases


def _make_chat(case: str, model: str, messages: list[Any], tokens: int, streamed: bool) -> ChaosRequest:
    body = {"model": model, "messages": messages, "max_tokens": tokens, "temperature": 0, "seed": 1, "stream": streamed}
    read = _streamed_chat if streamed else _chat_text
    return ChaosRequest(case, "/v1/chat/completions", json.dumps(body).encode(), read, streamed)


def _make_text(streamed: bool) -> ChaosRequest:
    return _make_chat("text", VL, VL_QUESTIONS["text"].messages, 12, streamed)


def _make_image(streamed: bool) -> ChaosRequest:
    return _make_chat("image", VL, VL_QUESTIONS["image"].messages, 12, streamed)


def _make_audio(streamed: bool) -> ChaosRequest:
    return _make_chat("audio", OMNI, OMNI_QUESTIONS["audio"].messages, 8, streamed)


def _make_simulated(streamed: bool) -> ChaosRequest:
    return _make_chat("simulated", SIMULATED, [{"role": "user", "content": "hello there"}], 8, streamed)


def _make_speech(_: bool) -> ChaosRequest:
    body = {"model": OMNI, "input": "hello there", "voice": "Chelsie", "response_format": "pcm", "seed": 1}
    # As events, because plain audio bytes cannot contain an error.
    body |= {"temperature": 0, "stream_format": "sse"}
    return ChaosRequest(
        "speech", "/v1/audio/speech", json.dumps(body).encode(), _read_samples, streamed=True, end=SPEECH_DONE
    )


def _make_picture(_: bool) -> ChaosRequest:
    body = {"model": PAINTER, "prompt": "a cat on a mat", "size": "64x64", "steps": 3, "seed": 1}
    return ChaosRequest("picture", "/v1/images/generations", json.dumps(body).encode(), _image_bytes)


def _make_app(_: bool) -> ChaosRequest:
    body = json.dumps({"text": "hello there"}).encode()
    return ChaosRequest("app", "/v1/apps/shout/invoke", body, _read_parts, streamed=True)


CASES: dict[str, Callable[[bool], ChaosRequest]] = {
    "text": _make_text,
    "image": _make_image,
    "audio": _make_audio,
    "simulated": _make_simulated,
    "speech": _make_speech,
    "picture": _make_picture,
    "app": _make_app,
}
WEIGHTS = {"text": 6, "image": 5, "audio": 3, "simulated": 3, "speech": 1, "picture": 2, "app": 4}
#: Which cases tell that executors of a model serve again.
OF_MODEL = {VL: ("text", "image"), OMNI: ("audio", "speech"), PAINTER: ("picture",), SIMULATED: ("simulated",)}

VIDEO = {
    "model": DIRECTOR,
    "prompt": "a cat sits on the mat",
    "seconds": "0.375",
    "size": "64x32",
    "steps": 4,
    "seed": 1,
}


def make_video(number: int) -> dict[str, object]:
    """A video like no other: of equal ones all are refused when two executors ended while they alone were there."""
    return {**VIDEO, "prompt": f"{VIDEO['prompt']}, take {number}"}


def cases_of(executor: str) -> tuple[str, ...]:
    """Cases that need the executor with this id; all cases if it is unknown."""
    for model, cases in OF_MODEL.items():
        if executor.startswith(re.sub(r"[^A-Za-z0-9_-]+", "_", model)):
            return cases
    return ("app",) if "shout" in executor.lower() else ()


# Readers


def _chat_text(body: bytes) -> str:
    return str(json.loads(body)["choices"][0]["message"]["content"])


def _streamed_chat(body: bytes) -> str:
    deltas = [event["choices"][0]["delta"] for event in read_events(body) if event.get("choices")]
    return "".join(delta.get("content") or "" for delta in deltas)


def _read_samples(body: bytes) -> tuple[int, ...]:
    deltas = [event["audio"] for event in read_events(body) if event["type"] == "speech.audio.delta"]
    body = b"".join(map(base64.b64decode, deltas))
    return struct.unpack(f"<{len(body) // 2}h", body[: len(body) // 2 * 2])


def _image_bytes(body: bytes) -> str:
    return str(json.loads(body)["data"][0]["b64_json"])


def _read_parts(body: bytes) -> str:
    return json.dumps(list(read_events(body)))


def read_events(body: bytes) -> list[Any]:
    """The JSON of every server-sent event but the closing mark."""
    lines = [line[6:] for line in body.split(b"\n\n") if line.startswith(b"data: ")]
    return [json.loads(line) for line in lines if line.strip() != b"[DONE]"]


# Hostile ones


def make_poison(modality: str, data: bytes, name: str) -> ChaosRequest:
    """A chat that carries this file."""
    text = base64.b64encode(data).decode()
    if modality == "audio":
        part: dict[str, Any] = {"type": "input_audio", "input_audio": {"data": text, "format": "wav"}}
    else:
        mime = {"image": "image/png", "video": "video/mp4"}[modality]
        part = {"type": f"{modality}_url", f"{modality}_url": {"url": f"data:{mime};base64,{text}"}}
    body = {"model": OMNI, "messages": [{"role": "user", "content": [part]}], "max_tokens": 1}
    return ChaosRequest(f"poison {name}", "/v1/chat/completions", json.dumps(body).encode(), _chat_text, harmless=False)


def make_fetching(url: str, name: str) -> ChaosRequest:
    """A chat whose image is at a hostile server."""
    part = {"type": "image_url", "image_url": {"url": url}}
    body = {"model": VL, "messages": [{"role": "user", "content": [part]}], "max_tokens": 1}
    return ChaosRequest(f"server {name}", "/v1/chat/completions", json.dumps(body).encode(), _chat_text, harmless=False)


def make_raw(name: str, body: bytes, path: str = "/v1/chat/completions") -> ChaosRequest:
    """A hostile body."""
    return ChaosRequest(f"body {name}", path, body, lambda data: data[:100].decode(errors="replace"), harmless=False)
