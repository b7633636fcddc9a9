"""Every route rejects too large media before decoding: bytes, pixels, frames, seconds."""

import base64
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.unit.gateway.house import (
    OMNI,
    ToyGateway,
    build_chat_body,
    make_text_part,
    read_error_body,
    start_toy_gateway,
)
from tests.unit.gateway.samples import make_sample_picture, make_sample_sound, make_sample_video

ROUTES = {
    "/v1/chat/completions": "json",
    "/v1/images/generations": "json",
    "/v1/images/edits": "form",
    "/v1/audio/speech": "json",
    "/v1/audio/transcriptions": "form",
    "/v1/embeddings": "json",
    "/v1/rerank": "json",
    "/v1/videos": "json",
}


def patch_bytes(data: bytes, mark: bytes, offset: int, value: bytes) -> bytes:
    """Return ``data`` with ``value`` at ``offset`` bytes after the start of ``mark``."""
    at = data.index(mark) + offset
    return data[:at] + value + data[at + len(value) :]


def pack_number(number: int) -> bytes:
    return struct.pack(">I", number)


FILM = make_sample_video("mp4", "mpeg4")
VAST = patch_bytes(FILM, b"mp4v", 28, struct.pack(">HH", 4000, 2000))
CLAIMS: dict[str, tuple[str, bytes]] = {
    "50000000 pixels": ("image", patch_bytes(make_sample_picture("PNG"), b"IHDR", 4, pack_number(60_000) * 2)),
    "1800 seconds": ("audio", patch_bytes(make_sample_sound("flac", "flac", 0.5), b"fLaC", 22, pack_number(2**32 - 1))),
    "600 seconds": ("video", patch_bytes(FILM, b"mvhd", 20, pack_number(700_000))),
    "36000 frames": ("video", patch_bytes(FILM, b"stsz", 12, pack_number(36_001))),
    "pixels in all its frames": ("video", patch_bytes(VAST, b"stsz", 12, pack_number(20_000))),
}


@pytest.mark.parametrize("complaint", CLAIMS)
async def test_a_chat_refuses_what_its_header_says_is_too_large(home: ToyGateway, complaint: str):
    await home.all_of(OMNI)
    modality, data = CLAIMS[complaint]
    url = f"data:;base64,{base64.b64encode(data).decode()}"
    content = [make_text_part("what is this?"), {"type": f"{modality}_url", f"{modality}_url": {"url": url}}]

    response = await home.ask(OMNI, content)

    assert response.status_code == 413, response.text
    assert complaint in read_error_body(response)["message"]
    assert read_error_body(response)["param"] == f"messages[0].content[1].{modality}_url.url"
    await home.emptied()


async def test_a_transcription_refuses_a_sound_that_lasts_too_long(home: ToyGateway):
    await home.all_of(OMNI)
    _, data = CLAIMS["1800 seconds"]

    response = await home.http.post("/v1/audio/transcriptions", data={"model": OMNI}, files={"file": ("a.flac", data)})

    assert (response.status_code, read_error_body(response)["param"]) == (413, "file")
    await home.emptied()


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_of_too_many_bytes_is_refused(tmp_path: Path, path: str, declared: bool):
    body: Any = b"x" * 3000

    async def yield_body() -> Any:
        yield body

    kind = "application/json" if ROUTES[path] == "json" else "multipart/form-data; boundary=x"
    async with start_toy_gateway(tmp_path, max_body=2000) as home:
        request_body = body if declared else yield_body()
        response = await home.http.post(path, content=request_body, headers={"content-type": kind})

        assert response.status_code == 413, response.text
        assert "2000 bytes" in read_error_body(response)["message"]
        await home.emptied()


async def test_a_chat_takes_what_is_just_small_enough(home: ToyGateway):
    await home.all_of(OMNI)
    url = f"data:;base64,{base64.b64encode(patch_bytes(FILM, b'stsz', 12, pack_number(36_000))).decode()}"

    response = await home.http.post(
        "/v1/chat/completions", json=build_chat_body(OMNI, [{"type": "video_url", "video_url": {"url": url}}])
    )

    assert response.status_code == 200, response.text
    await home.emptied()
