"""Encoders from samples to audio files: whole, or in pieces while they are generated.

WAV and PCM are written here, all other formats by PyAV. Audio is mono, float32 [n] in [-1, 1].
"""

import struct
from fractions import Fraction
from io import BytesIO
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.float32]
SoundFormat = Literal["wav", "pcm16", "mp3", "flac", "opus", "aac"]
#: Formats without a file header, at a fixed rate: G.711 mu-law and A-law at 8 kHz, 16-bit PCM at 24 kHz.
TelephoneFormat = Literal["pcmu", "pcma", "pcm24k"]

#: MIME types of files. Those of PCM have no header: rate and width must be known.
MIME: dict[SoundFormat, str] = {
    "wav": "audio/wav",
    "pcm16": "audio/pcm",
    "mp3": "audio/mpeg",
    "flac": "audio/flac",
    "opus": "audio/ogg",
    "aac": "audio/aac",
}
#: Voices that clients of OpenAI send by default; one of the model's own voices replaces each.
OPENAI_VOICES = (
    "alloy", "ash", "ballad", "coral", "echo", "fable", "nova", "onyx", "sage", "shimmer", "verse", "marin", "cedar",
)  # fmt: skip
#: Bounds of the factor by which audio is slowed down or sped up.
MIN_SPEED, MAX_SPEED = 0.25, 4.0

_UNKNOWN_SIZE_BYTES = 0xFFFF_FFFF  # the size of a stream; readers use the available bytes
_MIN_SECONDS = 0.01  # seconds; encoders fail on empty input


class _Codec(NamedTuple):
    """Codec of an audio format.

    ``rate`` is in samples per second, None for any. ``bits`` is per second, None for lossless. ``streamed`` are the
    options of a container that cannot seek back in its output, and must not buffer much of it.
    """

    container: str
    name: str
    rate: int | None
    bits: int | None
    streamed: dict[str, str]


_CODECS: dict[str, _Codec] = {
    "mp3": _Codec("mp3", "libmp3lame", 44100, 96_000, {"write_xing": "0"}),
    "flac": _Codec("flac", "flac", None, None, {}),
    "opus": _Codec("ogg", "libopus", 48000, 64_000, {"page_duration": "100000"}),
    "aac": _Codec("adts", "aac", 44100, 96_000, {}),
    "pcmu": _Codec("mulaw", "pcm_mulaw", 8000, None, {}),
    "pcma": _Codec("alaw", "pcm_alaw", 8000, None, {}),
    "pcm24k": _Codec("s16le", "pcm_s16le", 24000, None, {}),
}


def to_pcm16(samples: Samples) -> bytes:
    """Return ``samples`` as 16-bit little-endian PCM, clipped and rounded."""
    if not len(samples):
        return b""  # answers often have no audio
    return (np.clip(samples, -1.0, 1.0) * 32767.0).round().astype("<i2").tobytes()


def encode_wav(pcm: bytes, rate: int) -> bytes:
    """Return a WAV file of 16-bit samples."""
    return _wav_header(rate, len(pcm)) + pcm


def encode_audio(samples: Samples, rate: int, format: SoundFormat) -> bytes:
    """Return a whole file. mp3, aac and opus are resampled to 44.1 or 48 kHz.

    Compressed audio lasts at least 10 ms, padded with silence. Its encoding takes a while, so call this in a thread.
    """
    if format == "pcm16":
        return to_pcm16(samples)
    if format == "wav":
        return encode_wav(to_pcm16(samples), rate)
    out = BytesIO()
    file = _CompressedFile(out, _CODECS[format], rate, {})
    file.write(samples)
    file.close()
    return out.getvalue()


class StreamingAudioEncoder:
    """Encoder of a file while its samples arrive. The results of ``push`` and ``close``, concatenated, are the file.

    ``speed`` makes the speech slower or faster and keeps its pitch, by overlapping and adding (FFmpeg's atempo). If
    ``slow``, its calls take a while: make them in a thread, one at a time.
    """

    def __init__(self, format: SoundFormat | TelephoneFormat, rate: int, speed: float = 1.0) -> None:
        self._tempo = _TempoFilter(rate, speed) if speed != 1.0 else None
        self._out = _Sink()
        self._file: _CompressedFile | None = None
        if format in _CODECS:
            codec = _CODECS[format]
            self._file = _CompressedFile(self._out, codec, rate, {"flush_packets": "1", **codec.streamed})
        elif format == "wav":
            self._out.write(_wav_header(rate, _UNKNOWN_SIZE_BYTES))
        self.slow = self._file is not None or self._tempo is not None

    def push(self, samples: Samples) -> bytes:
        """Encode samples and return the finished bytes of the file, possibly none."""
        return self._write_samples(samples if self._tempo is None else self._tempo.push(samples))

    def close(self) -> bytes:
        """Return the rest of the file."""
        data = self._write_samples(self._tempo.close()) if self._tempo is not None else b""
        if self._file is not None:
            self._file.close()
        return data + self._out.take_written()

    def _write_samples(self, samples: Samples) -> bytes:
        if self._file is not None:
            self._file.write(samples)
        else:
            self._out.write(to_pcm16(samples))
        return self._out.take_written()


class _Sink:
    """Output of FFmpeg that cannot seek."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def take_written(self) -> bytes:
        """Return the bytes written since the last call."""
        parts, self._parts = self._parts, []
        return b"".join(parts)


class _CompressedFile:
    """File that FFmpeg encodes to ``out``."""

    def __init__(self, out: Any, codec: _Codec, rate: int, options: dict[str, str]) -> None:
        import av  # 16 MiB that a process without compressed audio does not need

        self._av = av
        self._rate = rate
        self._count = 0
        self._file = av.open(out, "w", format=codec.container, container_options=options)
        self._stream: Any = self._file.add_stream(codec.name, rate=codec.rate or rate)
        self._stream.layout = "mono"
        if codec.bits is not None:
            self._stream.bit_rate = codec.bits

    def write(self, samples: Samples) -> None:
        if not len(samples):
            return
        data = np.frombuffer(to_pcm16(samples), "<i2")[None, :]
        frame = self._av.AudioFrame.from_ndarray(data, format="s16", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = self._rate, self._count, Fraction(1, self._rate)
        self._count += len(samples)
        # The encoder resamples and cuts frames to its own size.
        self._file.mux(self._stream.encode(frame))

    def close(self) -> None:
        missing = int(self._rate * _MIN_SECONDS) - self._count
        if missing > 0:
            self.write(np.zeros(missing, np.float32))
        self._file.mux(self._stream.encode(None))
        self._file.close()


class _TempoFilter:
    """Filter that changes the duration of speech. One filter accepts factors from 0.5 on, so slower ones use two."""

    def __init__(self, rate: int, speed: float) -> None:
        import av

        self._av = av
        self._rate = rate
        self._count = 0
        self._graph: Any = av.filter.Graph()
        source = self._graph.add_abuffer(
            format="flt", sample_rate=rate, layout="mono", time_base=Fraction(1, rate), name="in"
        )
        factors = [speed] if speed >= 0.5 else [0.5, speed / 0.5]
        filters = [self._graph.add("atempo", str(factor)) for factor in factors]
        for before, after in zip([source, *filters], [*filters, self._graph.add("abuffersink")], strict=True):
            before.link_to(after)
        self._graph.configure()

    def push(self, samples: Samples) -> Samples:
        if len(samples):
            data = np.ascontiguousarray(samples, np.float32)[None, :]
            frame = self._av.AudioFrame.from_ndarray(data, format="flt", layout="mono")
            frame.sample_rate, frame.pts, frame.time_base = self._rate, self._count, Fraction(1, self._rate)
            self._count += len(samples)
            self._graph.push(frame)
        return self._pull_samples()

    def close(self) -> Samples:
        if not self._count:
            return np.zeros(0, np.float32)
        self._graph.push(None)
        return self._pull_samples()

    def _pull_samples(self) -> Samples:
        chunks: list[Samples] = []
        while True:
            try:
                chunks.append(self._graph.pull().to_ndarray().reshape(-1))
            except (self._av.error.BlockingIOError, self._av.error.EOFError):
                return np.concatenate(chunks) if chunks else np.zeros(0, np.float32)


def _wav_header(rate: int, nbytes: int) -> bytes:
    whole = min(nbytes + 36, _UNKNOWN_SIZE_BYTES)
    form = struct.pack("<4sI4s4sIHHIIHH", b"RIFF", whole, b"WAVE", b"fmt ", 16, 1, 1, rate, rate * 2, 2, 16)
    return form + struct.pack("<4sI", b"data", nbytes)
