"""Real media files for these tests, made by Pillow and FFmpeg."""

from fractions import Fraction
from io import BytesIO
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image


def make_sample_tone(seconds: float = 1.0, rate: int = 24000) -> NDArray[np.float32]:
    """Return a quiet 440 Hz sine, [n] float32."""
    return (0.5 * np.sin(2 * np.pi * 440 * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def make_sample_picture(format: str, size: tuple[int, int] = (37, 23), mode: str = "RGB", **options: Any) -> bytes:
    pixels = np.arange(size[0] * size[1] * 4, dtype=np.uint8).reshape(size[1], size[0], 4)
    out = BytesIO()
    Image.fromarray(pixels, "RGBA").convert(mode).save(out, format, **options)
    return out.getvalue()


class MediaPipe:
    """A file for muxers that cannot seek."""

    def __init__(self) -> None:
        self._out = BytesIO()

    def write(self, data: bytes) -> int:
        return self._out.write(data)

    def getvalue(self) -> bytes:
        return self._out.getvalue()


def make_sample_sound(
    container: str,
    codec: str,
    seconds: float = 2.0,
    rate: int = 48000,
    *,
    layout: str = "mono",
    piped: bool = False,
    **options: str,
) -> bytes:
    out = MediaPipe() if piped else BytesIO()
    with av.open(out, "w", format=container, options=options) as file:
        stream: Any = file.add_stream(codec, rate=rate, layout=layout)
        _encode_sound(file, stream, seconds, rate)
    return out.getvalue()


def make_sample_video(
    container: str,
    codec: str,
    size: tuple[int, int] = (64, 48),
    frames: int = 20,
    audio: str = "",
    *,
    piped: bool = False,
    **options: str,
) -> bytes:
    """Return a video at 10 frames per second. It has an audio track if ``audio`` names a codec."""
    out = MediaPipe() if piped else BytesIO()
    with av.open(out, "w", format=container, options=options) as file:
        stream: Any = file.add_stream(codec, rate=10)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        track: Any = file.add_stream(audio, rate=48000, layout="mono") if audio else None
        for index in range(frames):
            frame = av.VideoFrame.from_ndarray(np.full((size[1], size[0], 3), index, np.uint8), format="rgb24")
            frame.pts, frame.time_base = index, Fraction(1, 10)
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
        if track is not None:
            _encode_sound(file, track, frames / 10, 48000)
    return out.getvalue()


def _encode_sound(file: Any, stream: Any, seconds: float, rate: int) -> None:
    layout = stream.layout.name
    samples = np.repeat(make_sample_tone(seconds, rate)[None, :], stream.layout.nb_channels, 0)
    frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout=layout)
    frame.sample_rate, frame.pts = rate, 0
    file.mux(stream.encode(frame))
    file.mux(stream.encode(None))
