"""Media of an app: arrays, bytes and files, converted for encoders."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np

from omnibus.encoding.audio import encode_wav, to_pcm16
from omnibus.encoding.image import encode_image
from omnibus.errors import BadMedia
from omnibus.task.library.media import PlacedMedia
from omnibus.task.library.speech import Audio
from omnibus.task.runtime import place_media

#: Samples per second of audio without a given rate: that of the speech models.
DEFAULT_RATE = 24_000


class Media:
    """Media of an app, for ``EncodeInput.media`` and ``ChatInput.media``."""

    @staticmethod
    async def of(
        source: "np.ndarray | Audio | bytes | str | Path", *, modality: str = "", rate: int = DEFAULT_RATE
    ) -> dict[str, Any]:
        """Place ``source`` for encoders; ``await`` it in ``serve`` or in an async ``invoke``.

        ``source`` is one of these:

                - an image, uint8 [height, width, 3]
                - audio, float [samples] in [-1, 1] or int16 [samples], at ``rate`` samples per second
                - ``Audio``, as speech models make it
                - the bytes of a file of any format that clients may send
                - the path of such a file

        ``modality`` is ``image``, ``video`` or ``audio``; by default it is detected from the first bytes. Images are
        sent as PNG, audio as 16-bit WAV: a client that uploads these files gets equal answers.

        Raises ``BadMedia`` for another value or an unknown format, and ``TooLarge`` for more than a client may send.
        """
        data, media_type = await asyncio.to_thread(_as_file, source, rate)
        if modality and media_type and modality != media_type:
            raise BadMedia(f"an array like this is an {media_type}, not {modality}", param="media")
        return await place_media(data, modality or media_type)

    @staticmethod
    def content(media: PlacedMedia | np.ndarray) -> memoryview:
        """Return the bytes of the file ``media`` in a unit task's ``run``.

        ``omnibus_models.media`` decodes them to samples or pixels. Raises ``BadMedia`` for an image of another task,
        which is an array of pixels already.
        """
        if not isinstance(media, np.ndarray) or media.ndim != 1 or media.dtype != np.uint8:
            raise BadMedia("this is not a placed file: in `run`, one is an array uint8 [n]", param="media")
        return np.ascontiguousarray(media).data


def _as_file(source: Any, rate: int) -> tuple[bytes, str]:
    """Return the bytes of a file, and its modality; "" if only its bytes show it."""
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
        f"media must be an array, `Audio`, bytes or a path, not a value of type {type(source).__name__}", param="media"
    )


def encode_array(array: np.ndarray, rate: int = DEFAULT_RATE) -> tuple[bytes, str]:
    """Encode an array as a file, without loss for uint8 and int16.

    Returns the file, PNG for images and WAV for audio, and its modality. ``array`` is uint8 [height, width, 3], or
    float or int16 [samples] at ``rate`` per second. Raises ``BadMedia``.
    """
    if array.dtype == np.uint8 and array.ndim == 3 and array.shape[2] == 3 and array.size:
        return encode_image(array, "png"), "image"
    if array.ndim == 1 and array.size and array.dtype == np.int16:
        return encode_wav(array.astype("<i2").tobytes(), rate), "audio"
    if array.ndim == 1 and array.size and array.dtype.kind == "f":
        return encode_wav(to_pcm16(array.astype(np.float32)), rate), "audio"
    raise BadMedia(
        f"an array of {array.dtype} {list(array.shape)} is not a medium: images are uint8 [height, width, 3], audio is "
        "float or int16 [samples]",
        param="media",
    )
