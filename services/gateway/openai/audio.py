"""Samples to sound files. WAV and PCM are written here; the rest through PyAV, imported when first used."""

import asyncio
import struct
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.gateway.openai.schema import OutputFormat

_UNKNOWN = 0xFFFF_FFFF  # the size of a stream; readers take what is there

# Container, codec, samples per second the codec can take (None: any), bits per second (None: lossless).
_CODECS: dict[str, tuple[str, str, int | None, int | None]] = {
    "mp3": ("mp3", "libmp3lame", 44100, 96_000),
    "flac": ("flac", "flac", None, None),
    "opus": ("ogg", "libopus", 48000, 64_000),
    "aac": ("adts", "aac", 44100, 96_000),
}


def pcm16(samples: NDArray[np.float32]) -> bytes:
    """Float samples in [-1, 1], clipped, to 16-bit little-endian."""
    return (np.clip(samples, -1.0, 1.0) * 32767.0).round().astype("<i2").tobytes()


def wav(pcm: bytes, rate: int) -> bytes:
    """A mono 16-bit WAV file."""
    return _wav_header(rate, len(pcm)) + pcm


def stream_wav_header(rate: int) -> bytes:
    """The 44 bytes before a WAV stream whose length is not known yet."""
    return _wav_header(rate, _UNKNOWN)


async def render(samples: NDArray[np.float32], rate: int, format: OutputFormat) -> bytes:
    """``encode_audio`` that keeps the event loop free: compressed formats run in a thread."""
    if format in _CODECS:
        return await asyncio.to_thread(encode_audio, samples, rate, format)
    return encode_audio(samples, rate, format)


def encode_audio(samples: NDArray[np.float32], rate: int, format: OutputFormat) -> bytes:
    """Mono float32 samples [n] in [-1, 1] at ``rate`` per second as a file of ``format``.

    pcm16 is headerless and keeps ``rate``; mp3, aac and opus are resampled to 44.1 or 48 kHz.
    Compressed sound lasts at least 10 ms, filled up with silence.
    """
    if format == "pcm16":
        return pcm16(samples)
    if format == "wav":
        return wav(pcm16(samples), rate)
    return _compress(pcm16(samples), rate, format)


def _wav_header(rate: int, nbytes: int) -> bytes:
    whole = min(nbytes + 36, _UNKNOWN)
    form = struct.pack("<4sI4s4sIHHIIHH", b"RIFF", whole, b"WAVE", b"fmt ", 16, 1, 1, rate, rate * 2, 2, 16)
    return form + struct.pack("<4sI", b"data", nbytes)


def _compress(pcm: bytes, rate: int, format: str) -> bytes:
    import av  # 16 MiB that a gateway without compressed audio does not need

    container, codec, codec_rate, bit_rate = _CODECS[format]
    pcm = pcm.ljust(rate // 100 * 2, b"\0")  # encoders fail on an empty frame
    out = BytesIO()
    with av.open(out, "w", format=container) as file:
        stream: Any = file.add_stream(codec, rate=codec_rate or rate)
        stream.layout = "mono"
        if bit_rate is not None:
            stream.bit_rate = bit_rate
        frame = av.AudioFrame.from_ndarray(np.frombuffer(pcm, "<i2")[None, :], format="s16", layout="mono")
        frame.sample_rate = rate
        frame.pts = 0
        # The encoder resamples and cuts frames to its own size by itself.
        file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return out.getvalue()
