"""Accepted formats, recognized by their first bytes, and the readers of their headers."""

from collections.abc import Callable

from services.gateway.media.headers import audio, image, video
from services.gateway.media.headers.base import Extent, mpeg_layer

# A reader raises ValueError, struct.error or IndexError on a malformed header. Headers can lie: the
# executor that decodes checks again.
READERS: dict[str, Callable[[bytes], Extent]] = {
    "image/jpeg": image.read_jpeg,
    "image/png": image.read_png,
    "image/webp": image.read_webp,
    "image/gif": image.read_gif,
    "audio/wav": audio.read_wav,
    "audio/flac": audio.read_flac,
    "audio/ogg": audio.read_ogg,
    "audio/mpeg": audio.read_mp3,
    "audio/aac": audio.read_adts,
    "audio/mp4": video.read_mp4,
    "video/mp4": video.read_mp4,
    "video/webm": video.read_matroska,
    "video/x-matroska": video.read_matroska,
}

_MAGIC = (
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"fLaC", "audio/flac"),
    (b"OggS", "audio/ogg"),
    (b"ID3", "audio/mpeg"),
)
_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
_LAYERS = {"mp3": "audio/mpeg", "adts": "audio/aac"}

# HEIF and AVIF stills share the box format of MP4 and are not on the list.
_FILM_BRANDS = (b"iso", b"mp4", b"M4V", b"avc", b"3gp", b"dby", b"f4v", b"qt ", b"MSN")


def sniff_mime(data: bytes) -> str:
    """The MIME type by magic, or "" for anything outside the allow-list."""
    for magic, mime in _MAGIC:
        if data.startswith(magic):
            return mime
    if data[:4] == b"RIFF":
        return _RIFF.get(data[8:12], "")
    if data[4:8] == b"ftyp":
        return _mime_of_brand(data[8:12])
    if data[:4] == b"\x1a\x45\xdf\xa3":
        return _mime_of_doctype(data[:64])
    return _LAYERS.get(mpeg_layer(data[:2]), "")


def _mime_of_brand(brand: bytes) -> str:
    if brand in (b"M4A ", b"M4B "):
        return "audio/mp4"
    return "video/mp4" if brand.startswith(_FILM_BRANDS) else ""


def _mime_of_doctype(head: bytes) -> str:
    _, _, doctype = head.partition(b"\x42\x82")
    if b"webm" in doctype:
        return "video/webm"
    return "video/x-matroska" if b"matroska" in doctype else ""
