"""Generated images, audio and videos of a given size: the same seed gives the same bytes."""

import io
import struct
import wave
import zlib

import numpy as np

from omnibus.errors import BadRequest

#: Samples per second of audio, frames per second of a video.
SAMPLE_RATE_HERTZ, FRAMES_PER_SECOND = 16_000, 4
#: Pixels of one side of a square whose colour is drawn; the rest follows, so that files stay small.
_BLOCK_SIDE_PIXELS = 14


def make_image(width: int, height: int, seed: int) -> bytes:
    """Return a PNG of ``width`` x ``height`` pixels."""
    rows = _random_pixels(np.random.default_rng(seed), width, height)
    raw = np.concatenate([np.zeros((height, 1), np.uint8), rows.reshape(height, width * 3)], axis=1)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(raw.tobytes(), 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_png_chunk(kind, data) for kind, data in parts)


def make_audio(seconds: float, seed: int) -> bytes:
    """Return a WAV file, mono, 16 bit: a tone in noise."""
    count = max(1, round(seconds * SAMPLE_RATE_HERTZ))
    noise = np.random.default_rng(seed).standard_normal(count)
    tone = np.sin(np.arange(count) * (250 + 10 * (seed % 50)) * 2 * np.pi / SAMPLE_RATE_HERTZ)
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE_HERTZ)
        file.writeframes(((0.3 * tone + 0.01 * noise) * 32000).astype("<i2").tobytes())
    return out.getvalue()


def make_video(width: int, height: int, seconds: float, seed: int) -> bytes:
    """Return an MP4. Raises ``BadRequest`` if PyAV is not installed."""
    try:
        import av
    except ImportError as error:
        raise BadRequest(f"videos of a size need PyAV (`pip install av`), or name files instead: {error}") from error
    random = np.random.default_rng(seed)
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as file:
        stream = file.add_stream("mpeg4", rate=FRAMES_PER_SECOND)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for _ in range(max(1, round(seconds * FRAMES_PER_SECOND))):
            frame = av.VideoFrame.from_ndarray(_random_pixels(random, width, height), format="rgb24")
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return out.getvalue()


def _random_pixels(random: np.random.Generator, width: int, height: int) -> np.ndarray:
    coarse = random.integers(
        0, 255, (-(-height // _BLOCK_SIDE_PIXELS), -(-width // _BLOCK_SIDE_PIXELS), 3), dtype=np.uint8
    )
    return np.ascontiguousarray(coarse.repeat(_BLOCK_SIDE_PIXELS, 0).repeat(_BLOCK_SIDE_PIXELS, 1)[:height, :width])


def _png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
