"""Media that an app has or makes: arrays, bytes and files become what encoders read."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np

from omnibus.encoding.audio import encode_wav, to_pcm16
from omnibus.encoding.image import encode_image
from omnibus.errors import BadMedia
from omnibus.task.library.speech import Audio
from omnibus.task.runtime import place_media

#: Samples per second of sound whose rate is not given: that of the models that speak.
DEFAULT_RATE = 24_000


class Media:
    """Media of an app's own, for ``EncodeInput.media`` and ``ChatInput.media``."""

    @staticmethod
    async def of(
        source: "np.ndarray | Audio | bytes | str | Path", *, modality: str = "", rate: int = DEFAULT_RATE
    ) -> dict[str, Any]:
        """Place ``source`` where encoders read it; ``await`` it in ``serve`` or in an async ``invoke``.

        ``source`` is an image, uint8 [height, width, 3]; sound, float [samples] in [-1, 1] or int16 [samples], at
        ``rate`` samples per second; ``Audio``, as speech models make it; the bytes of a file of any format that
        clients may send; or the path of one. ``modality`` is ``image``, ``video`` or ``audio``; left out, the first
        bytes say it. Images travel as PNG, sound as 16-bit WAV: a client that uploads these files gets equal answers.

        Raises ``BadMedia`` for what is none of these, or of no known format, and ``TooLarge`` for more than a client
        may send.
        """
        data, found = await asyncio.to_thread(_as_file, source, rate)
        if modality and found and modality != found:
            raise BadMedia(f"an array like this is an {found}, not {modality}", param="media")
        return await place_media(data, modality or found)


def _as_file(source: Any, rate: int) -> tuple[bytes, str]:
    """The bytes of a file, and its modality; "" where only its bytes tell it."""
    if isinstance(source, Audio):
        source, rate = np.zeros(0, np.float32) if source.array is None else source.array, source.rate
    if isinstance(source, np.ndarray):
        return encode_array(source, rate)
    if isinstance(source, str | Path):
        try:
            return Path(source).read_bytes(), ""
        except OSError as error:
            raise BadMedia(f"{source} cannot be read: {error.strerror}", param="media") from error
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source), ""
    raise BadMedia(
        f"media are an array, `Audio`, bytes or a path, not a value of type {type(source).__name__}", param="media"
    )


def encode_array(array: np.ndarray, rate: int = DEFAULT_RATE) -> tuple[bytes, str]:
    """An array as a file, without loss for uint8 and int16: images as PNG, sound as WAV; and its modality.

    ``array`` is uint8 [height, width, 3], or float or int16 [samples] at ``rate`` per second. Raises ``BadMedia``.
    """
    if array.dtype == np.uint8 and array.ndim == 3 and array.shape[2] == 3 and array.size:
        return encode_image(array, "png"), "image"
    if array.ndim == 1 and array.size and array.dtype == np.int16:
        return encode_wav(array.astype("<i2").tobytes(), rate), "audio"
    if array.ndim == 1 and array.size and array.dtype.kind == "f":
        return encode_wav(to_pcm16(array.astype(np.float32)), rate), "audio"
    raise BadMedia(
        f"an array of {array.dtype} {list(array.shape)} is no medium: images are uint8 [height, width, 3], sound is "
        "float or int16 [samples]",
        param="media",
    )
