"""A media item to measure an encoder with: a gray image, or a second of silence."""

import io
import wave

from PIL import Image

from omnibus_models.contract import MediaEncoder, Prepared

_IMAGE_SIDE_PIXELS = 448  # about the size of images on web pages
_SAMPLE_RATE_HERTZ = 16_000


def sample_item(encoder: MediaEncoder) -> Prepared:
    """Return an item that ``encoder`` accepts."""
    if "image" in encoder.modalities:
        return encoder.prepare(memoryview(_grey_image()), "image")
    return encoder.prepare(memoryview(_silent_audio()), "audio")


def _grey_image() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (_IMAGE_SIDE_PIXELS, _IMAGE_SIDE_PIXELS), (128, 128, 128)).save(out, "PNG")
    return out.getvalue()


def _silent_audio() -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(_SAMPLE_RATE_HERTZ)
        file.writeframes(bytes(2 * _SAMPLE_RATE_HERTZ))
    return out.getvalue()
