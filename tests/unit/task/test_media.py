"""Media that an app creates, and their file formats."""

import io
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from omnibus.errors import BadMedia, PlaceholderError
from omnibus.task import Audio, ChatInput, Media
from omnibus.testing import LocalRuntime

PIXELS = np.random.default_rng(0).integers(0, 255, (5, 7, 3), dtype=np.uint8)


async def place_media(source: Any, **more: Any) -> tuple[dict[str, Any], bytes]:
    with LocalRuntime([]) as runtime:
        literal = await Media.of(source, **more)
    (file,) = runtime.media
    return literal, file


async def test_pixels_become_a_png_file_with_the_same_pixels() -> None:
    literal, file = await place_media(PIXELS)

    assert literal["modality"] == "image"
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(file))), PIXELS)


@pytest.mark.parametrize(
    ("source", "rate"),
    [
        (np.array([0.0, 0.5, -1.0], np.float32), 16_000),
        (np.array([0, 16384, -32767], np.int16), 16_000),
        (Audio(rate=16_000, array=np.array([0.0, 0.5, -1.0], np.float32)), 8_000),
    ],
    ids=["float", "int16", "Audio"],
)
async def test_samples_become_a_wav_file_at_their_rate(source: Any, rate: int) -> None:
    literal, file = await place_media(source, rate=rate)

    assert literal["modality"] == "audio"
    with wave.open(io.BytesIO(file)) as sound:
        assert (sound.getframerate(), sound.getnchannels(), sound.getsampwidth()) == (16_000, 1, 2)
        assert np.frombuffer(sound.readframes(3), "<i2").tolist() == [0, 16384, -32767]


async def test_bytes_and_paths_are_placed_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"any")

    assert (await place_media(tmp_path / "a.bin", modality="video"))[1] == b"any"
    assert (await place_media(b"any", modality="video"))[0]["modality"] == "video"


@pytest.mark.parametrize(
    ("source", "more", "message"),
    [
        (np.zeros((2, 2), np.uint8), {}, "is not a medium"),
        (np.zeros(0, np.float32), {}, "is not a medium"),
        (7, {}, "not a value of type int"),
        ("/no/such/file", {}, "No such file"),
        (PIXELS, {"modality": "audio"}, "is an image, not audio"),
    ],
    ids=["two dimensions", "nothing", "a number", "no file", "other modality"],
)
async def test_what_is_no_medium_is_refused(source: Any, more: dict[str, Any], message: str) -> None:
    with pytest.raises(BadMedia, match=message):
        await place_media(source, **more)


async def test_media_are_placed_where_something_runs() -> None:
    with pytest.raises(PlaceholderError, match="in an app's `serve`"):
        await Media.of(PIXELS)


async def test_a_chat_names_media_before_its_text() -> None:
    image, _ = await place_media(PIXELS)
    sound, _ = await place_media(np.zeros(4, np.float32))

    chat_input = ChatInput.of("what is this?", media=[image, sound])

    assert chat_input.modalities == ("image", "audio")
    assert chat_input.messages[0]["content"] == [
        {"type": "image"}, {"type": "audio"}, {"type": "text", "text": "what is this?"},
    ]  # fmt: skip
