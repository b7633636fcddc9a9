"""Requests to a running system, and how long their answers take."""

import asyncio
import base64
import io
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import httpx
from PIL import Image

ANSWER_WITHIN = 120.0  # seconds
_RATE = 24_000  # samples a second of speech


class StreamedAnswer(NamedTuple):
    """``first`` and ``whole``: seconds until the first piece of text or speech, and until the end.

    ``speech`` is in seconds of audio; 0 without any.
    """

    text: str
    first: float
    whole: float
    speech: float = 0.0


async def stream_answer(http: httpx.AsyncClient, route: str, body: Mapping[str, Any], path: str = "") -> StreamedAnswer:
    """Send a request for text or speech, and read its stream. ``path`` is the options that shall run it."""
    begin, text, first, samples = time.perf_counter(), "", 0.0, 0
    headers = {"x-omnibus-path": path} if path else {}
    async with http.stream("POST", route, json={**body, "stream": True}, headers=headers) as response:
        if response.status_code != 200:
            raise RuntimeError(f"{route} answered {response.status_code}: {(await response.aread()).decode()}")
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            content, audio = _read_piece(json.loads(line[6:]))
            text, samples = text + content, samples + len(audio) // 2
            # A spoken answer starts with its audio.
            if not first and (audio if "audio" in body.get("modalities", ()) else content):
                first = time.perf_counter() - begin
    return StreamedAnswer(text, first, time.perf_counter() - begin, samples / _RATE)


def _read_piece(event: Mapping[str, Any]) -> tuple[str, bytes]:
    if "error" in event:
        raise RuntimeError(f"the stream ended with {event['error']}")
    [choice] = event["choices"] or [{}]
    delta = choice.get("delta") or {}
    audio = delta.get("audio") or {}
    text = choice.get("text") or delta.get("content") or audio.get("transcript") or ""
    return text, base64.b64decode(audio.get("data", ""))


async def post(http: httpx.AsyncClient, route: str, **request: Any) -> dict[str, Any]:
    response = await http.post(route, **request)
    if response.status_code != 200:
        raise RuntimeError(f"{route} answered {response.status_code}: {response.text}")
    return dict(response.json())


async def time_together(calls: Sequence[Callable[[], Awaitable[Any]]]) -> tuple[float, list[Any]]:
    """Return the seconds until all ``calls``, sent at once, are answered, and the answers."""
    begin = time.perf_counter()
    answers = await asyncio.gather(*(call() for call in calls))
    return time.perf_counter() - begin, answers


def ask_about(image: Image.Image, text: str) -> list[dict[str, Any]]:
    """Return the messages of a chat about one image."""
    file = io.BytesIO()
    image.save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
    return [{"role": "user", "content": content}]
