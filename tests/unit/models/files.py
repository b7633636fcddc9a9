"""Small generated media files; every test names the content it needs."""

import io
import tempfile
import wave
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from PIL import Image


def make_picture(seed: int, width: int = 90, height: int = 60, kind: str = "PNG") -> bytes:
    """Return noise as an image file."""
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def make_tone(seconds: float, seed: int = 0, rate: int = 16_000, channels: int = 1) -> bytes:
    """Return a tone in noise as a 16-bit WAV file."""
    count = int(seconds * rate)
    noise = np.random.default_rng(seed).standard_normal(count)
    samples = 0.3 * np.sin(np.arange(count) * (300 + 100 * seed) * 2 * np.pi / rate) + 0.01 * noise
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.repeat((samples * 32767).astype("<i2"), channels).tobytes())
    return out.getvalue()


def encode_tone(seconds: float, codec: str, container: str, rate: int = 16_000) -> bytes:
    """Return a tone encoded with an audio codec, e.g. ``flac`` in ``flac``."""
    out = io.BytesIO()
    with av.open(out, "w", format=container) as file:
        stream = file.add_stream(codec, rate=rate, layout="mono")
        samples = (0.3 * 32767 * np.sin(np.arange(int(seconds * rate)) / 10)).astype(np.int16)
        frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
        frame.rate = rate
        for resampled_frame in av.AudioResampler(stream.format, "mono", rate).resample(frame):
            file.mux(stream.encode(resampled_frame))
        file.mux(stream.encode(None))
    return out.getvalue()


def make_film(
    seconds: float | Fraction, seed: int = 0, fps: int | Fraction = 4, width: int = 64, height: int = 48
) -> bytes:
    """Return noise as H.264 in MP4. The index comes first, so that the end can be cut off."""
    random = np.random.default_rng(seed)
    # The index is moved to the front in a second pass, which needs a file with a name.
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/film.mp4"
        with av.open(path, "w", options={"movflags": "faststart"}) as file:
            stream = file.add_stream("libx264", rate=fps, options={"preset": "ultrafast"})
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            for _ in range(int(seconds * fps)):
                coarse = random.integers(0, 255, (height // 8, width // 8, 3), dtype=np.uint8)
                frame = av.VideoFrame.from_ndarray(coarse.repeat(8, 0).repeat(8, 1), format="rgb24")
                file.mux(stream.encode(frame))
            file.mux(stream.encode(None))
        return Path(path).read_bytes()
