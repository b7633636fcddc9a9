"""Requests for the HTTP API, and the same ones for the monolith."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.unit.models import files

#: What the API calls a file of each kind.
_MIME = {"image": "image/png", "video": "video/mp4", "audio": "audio/wav"}


@dataclass(frozen=True)
class Question:
    """One user turn: ``("text", str)``, ``("image", bytes)``, ``("audio", bytes)``, ``("video", bytes)``."""

    parts: tuple[tuple[str, Any], ...]

    @property
    def messages(self) -> list[Any]:
        """For the HTTP API."""
        return [{"role": "user", "content": [_content_part(kind, value) for kind, value in self.parts]}]

    @property
    def plain(self) -> list[dict[str, Any]]:
        """Question for the monolith, with media by name and as separate files."""
        content = [{"type": kind, **({"text": value} if kind == "text" else {})} for kind, value in self.parts]
        return [{"role": "user", "content": content}]

    @property
    def media(self) -> Mapping[str, list[bytes]]:
        kinds = {kind for kind, _ in self.parts if kind != "text"}
        return {kind: [value for other, value in self.parts if other == kind] for kind in kinds}


def make_question(*parts: str | tuple[str, bytes]) -> Question:
    """A question of plain strings (text) and media."""
    return Question(tuple(("text", part) if isinstance(part, str) else part for part in parts))


def make_image(seed: int, width: int = 90, height: int = 60) -> tuple[str, bytes]:
    return "image", files.make_picture(seed, width, height)


def make_audio(seconds: float, seed: int = 0) -> tuple[str, bytes]:
    return "audio", files.make_tone(seconds, seed)


def make_video(seconds: float, seed: int = 0) -> tuple[str, bytes]:
    return "video", files.make_film(seconds, seed)


def data_url(mime: str, data: bytes) -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


def _content_part(kind: str, value: Any) -> dict[str, Any]:
    if kind == "text":
        return {"type": "text", "text": value}
    if kind == "audio":
        return {"type": "input_audio", "input_audio": {"data": base64.b64encode(value).decode(), "format": "wav"}}
    return {"type": f"{kind}_url", f"{kind}_url": {"url": data_url(_MIME[kind], value)}}


VL_QUESTIONS = {
    "text": make_question("hello world, how are you today?"),
    "image": make_question(make_image(1), "what is in this picture?"),
    "two images": make_question(make_image(2), "and", make_image(3, 120, 200), "describe the image"),
    "video": make_question(make_video(2), "summarise the video please."),
}
OMNI_QUESTIONS = {
    "text": make_question("hello world, how are you today?"),
    "image": make_question(make_image(1), "what is in this picture?"),
    "audio": make_question(make_audio(1.5), "what do you hear in this audio clip?"),
    "video": make_question(make_video(2), "summarise the video please."),
    "image and audio": make_question(make_image(2), make_audio(1.1, 1), "describe"),
}
