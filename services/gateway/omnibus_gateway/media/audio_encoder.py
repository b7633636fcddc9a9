"""Audio of answers as files; slow encoders run in a thread."""

import asyncio

import numpy as np
from numpy.typing import NDArray

from omnibus.encoding import audio
from omnibus.encoding.audio import SoundFormat, StreamingAudioEncoder

#: Formats that take negligible time.
UNCOMPRESSED_FORMATS = ("wav", "pcm16")


async def encode_audio_file(samples: NDArray[np.float32], rate: int, format: SoundFormat) -> bytes:
    """Return a whole file of mono samples [n]."""
    if format in UNCOMPRESSED_FORMATS:
        return audio.encode_audio(samples, rate, format)
    return await asyncio.to_thread(audio.encode_audio, samples, rate, format)


class AudioFileStream:
    """A file that is sent while its samples arrive. It starts with the first samples, which determine the rate."""

    def __init__(self, format: SoundFormat, speed: float = 1.0) -> None:
        self._format = format
        self._speed = speed
        self._quick = format in UNCOMPRESSED_FORMATS and speed == 1.0
        self._encoder: StreamingAudioEncoder | None = None

    async def push(self, samples: NDArray[np.float32], rate: int) -> bytes:
        """Take mono samples [n]; returns the bytes of the file that are ready, possibly none."""
        if self._quick:
            return self.push_now(samples, rate)
        return await asyncio.to_thread(self.push_now, samples, rate)

    def push_now(self, samples: NDArray[np.float32], rate: int) -> bytes:
        """Push samples on the event loop, for uncompressed formats."""
        return self._get_encoder(rate).push(samples)

    async def close(self, rate: int) -> bytes:
        """Return the rest of the file; ``rate`` is used only if no sample arrived."""
        if self._quick:
            return self.close_now(rate)
        return await asyncio.to_thread(lambda: self._get_encoder(rate).close())

    def close_now(self, rate: int) -> bytes:
        """Close on the event loop, for uncompressed formats."""
        return self._get_encoder(rate).close()

    def _get_encoder(self, rate: int) -> StreamingAudioEncoder:
        if self._encoder is None:
            self._encoder = StreamingAudioEncoder(self._format, rate, self._speed)
        return self._encoder
