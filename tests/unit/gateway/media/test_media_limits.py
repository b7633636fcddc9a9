"""Every route rejects too large media before decoding: bytes, pixels, frames, seconds."""

import base64
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.unit.gateway.house import OMNI, House, error, house, question, text
from tests.unit.gateway.samples import film, picture, sound

ROUTES = {
    "/v1/chat/completions": "json",
    "/v1/images/generations": "json",
    "/v1/images/edits": "form",
    "/v1/audio/speech": "json",
    "/v1/audio/transcriptions": "form",
    "/v1/embeddings": "json",
    "/v1/videos": "json",
}


def patched(data: bytes, mark: bytes, offset: int, value: bytes) -> bytes:
    """Return ``data`` with ``value`` at ``offset`` bytes after the start of ``mark``."""
    at = data.index(mark) + offset
    return data[:at] + value + data[at + len(value) :]


def big(number: int) -> bytes:
    return struct.pack(">I", number)


FILM = film("mp4", "mpeg4")
VAST = patched(FILM, b"mp4v", 28, struct.pack(">HH", 4000, 2000))
CLAIMS: dict[str, tuple[str, bytes]] = {
    "50000000 pixels": ("image", patched(picture("PNG"), b"IHDR", 4, big(60_000) * 2)),
    "1800 seconds": ("audio", patched(sound("flac", "flac", 0.5), b"fLaC", 22, big(2**32 - 1))),
    "600 seconds": ("video", patched(FILM, b"mvhd", 20, big(700_000))),
    "36000 frames": ("video", patched(FILM, b"stsz", 12, big(36_001))),
    "pixels in all its frames": ("video", patched(VAST, b"stsz", 12, big(20_000))),
}


@pytest.mark.parametrize("complaint", CLAIMS)
async def test_a_chat_refuses_what_its_header_says_is_too_large(home: House, complaint: str):
    await home.all_of(OMNI)
    modality, data = CLAIMS[complaint]
    url = f"data:;base64,{base64.b64encode(data).decode()}"
    content = [text("what is this?"), {"type": f"{modality}_url", f"{modality}_url": {"url": url}}]

    response = await home.ask(OMNI, content)

    assert response.status_code == 413, response.text
    assert complaint in error(response)["message"]
    assert error(response)["param"] == f"messages[0].content[1].{modality}_url.url"
    await home.emptied()


async def test_a_transcription_refuses_a_sound_that_lasts_too_long(home: House):
    await home.all_of(OMNI)
    _, data = CLAIMS["1800 seconds"]

    response = await home.http.post("/v1/audio/transcriptions", data={"model": OMNI}, files={"file": ("a.flac", data)})

    assert (response.status_code, error(response)["param"]) == (413, "file")
    await home.emptied()


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_of_too_many_bytes_is_refused(tmp_path: Path, path: str, declared: bool):
    body: Any = b"x" * 3000

    async def pieces() -> Any:
        yield body

    kind = "application/json" if ROUTES[path] == "json" else "multipart/form-data; boundary=x"
    async with house(tmp_path, max_body=2000) as home:
        given = body if declared else pieces()
        response = await home.http.post(path, content=given, headers={"content-type": kind})

        assert response.status_code == 413, response.text
        assert "2000 bytes" in error(response)["message"]
        await home.emptied()


async def test_a_chat_takes_what_is_just_small_enough(home: House):
    await home.all_of(OMNI)
    url = f"data:;base64,{base64.b64encode(patched(FILM, b'stsz', 12, big(36_000))).decode()}"

    response = await home.http.post(
        "/v1/chat/completions", json=question(OMNI, [{"type": "video_url", "video_url": {"url": url}}])
    )

    assert response.status_code == 200, response.text
    await home.emptied()
