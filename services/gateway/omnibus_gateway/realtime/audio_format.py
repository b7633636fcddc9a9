"""Audio formats of a session: bytes to samples, durations, and files for models."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from omnibus.encoding.audio import TelephoneFormat, encode_wav
from omnibus_gateway.openai.realtime.session import (
    G711_RATE_HERTZ,
    PCM_RATE_HERTZ,
    ALawFormat,
    AudioFormat,
    MuLawFormat,
    PcmFormat,
)

_MU_LAW_BIAS = 0x84


def rate_of(format: AudioFormat) -> int:
    """Samples per second."""
    return PCM_RATE_HERTZ if isinstance(format, PcmFormat) else G711_RATE_HERTZ


def sample_bytes(format: AudioFormat) -> int:
    """Bytes of one sample."""
    return 2 if isinstance(format, PcmFormat) else 1


def to_milliseconds(nbytes: int, format: AudioFormat) -> int:
    """Return the duration of ``nbytes`` of audio in milliseconds."""
    return nbytes // sample_bytes(format) * 1000 // rate_of(format)


def to_bytes(milliseconds: int, format: AudioFormat) -> int:
    """Return the number of bytes of this much audio, in whole samples."""
    return milliseconds * rate_of(format) // 1000 * sample_bytes(format)


def encoder_format(format: AudioFormat) -> TelephoneFormat:
    """Return the name of this format in ``omnibus.encoding.audio``."""
    if isinstance(format, MuLawFormat):
        return "pcmu"
    return "pcma" if isinstance(format, ALawFormat) else "pcm24k"


def to_wav(data: bytes | bytearray, format: AudioFormat) -> bytes:
    """``data`` as a WAV file of 16-bit samples."""
    return encode_wav(to_pcm(data, format), rate_of(format))


def to_pcm(data: bytes | bytearray, format: AudioFormat) -> bytes:
    """Return ``data`` as 16-bit little-endian samples, without an incomplete last sample."""
    if isinstance(format, PcmFormat):
        return bytes(data[: len(data) // 2 * 2])
    table = _mu_law_samples() if isinstance(format, MuLawFormat) else _a_law_samples()
    return table[np.frombuffer(data, np.uint8)].tobytes()


@cache
def _mu_law_samples() -> NDArray[np.int16]:
    """The sample of each byte: int16 [256] (ITU-T G.711, table 2a)."""
    code = ~np.arange(256, dtype=np.uint8)
    exponent, mantissa = (code >> 4 & 7).astype(np.int32), (code & 15).astype(np.int32)
    size = (((mantissa << 3) + _MU_LAW_BIAS) << exponent) - _MU_LAW_BIAS
    return np.where(code & 0x80, -size, size).astype("<i2")


@cache
def _a_law_samples() -> NDArray[np.int16]:
    """The sample of each byte: int16 [256] (ITU-T G.711, table 1a)."""
    code = np.arange(256, dtype=np.uint8) ^ 0x55
    exponent, mantissa = (code >> 4 & 7).astype(np.int32), (code & 15).astype(np.int32)
    size = np.where(exponent == 0, (mantissa << 4) + 8, ((mantissa << 4) + 0x108) << np.maximum(exponent - 1, 0))
    return np.where(code & 0x80, size, -size).astype("<i2")
