"""Accepted formats, identified by their first bytes, and their header readers."""

import struct
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from omnibus_gateway.media.headers import avi, flac, image, matroska, mp4, mpeg_audio, ogg, wav
from omnibus_gateway.media.headers.base import Extent


class Format(NamedTuple):
    """A format: its name in errors, and its names in ``input_audio.format``."""

    name: str
    #: Raises ValueError, struct.error or IndexError on a malformed header. Headers can lie: the executor that decodes
    #: checks again.
    read: Callable[[bytes], Extent]
    short: tuple[str, ...] = ()


_MP4_NAMES = ("m4a", "mp4", "aac", "mov", "3gp")

FORMATS: dict[str, Format] = {
    "image/jpeg": Format("JPEG", image.read_jpeg),
    "image/png": Format("PNG", image.read_png),
    "image/webp": Format("WebP", image.read_webp),
    "image/gif": Format("GIF", image.read_gif),
    "image/bmp": Format("BMP", image.read_bmp),
    "image/tiff": Format("TIFF", image.read_tiff),
    "image/avif": Format("AVIF", image.read_heif),
    "image/heic": Format("HEIC", image.read_heif),
    "audio/wav": Format("WAV", wav.read_wav, ("wav",)),
    "audio/mpeg": Format("MP3", mpeg_audio.read_mp3, ("mp3", "mpeg", "mpga")),
    "audio/flac": Format("FLAC", flac.read_flac, ("flac",)),
    "audio/ogg": Format("Ogg", ogg.read_ogg, ("ogg", "oga", "opus", "flac")),
    "audio/aac": Format("AAC", mpeg_audio.read_adts, ("aac",)),
    # Many encoders write a video brand into M4A files.
    "audio/mp4": Format("MP4", mp4.read_mp4, _MP4_NAMES),
    "audio/aiff": Format("AIFF", wav.read_aiff, ("aiff",)),
    "audio/basic": Format("AU", wav.read_au, ("au",)),
    "audio/x-caf": Format("CAF", wav.read_caf, ("caf",)),
    "audio/x-w64": Format("W64", wav.read_w64, ("w64", "wav")),
    "audio/amr": Format("AMR", mpeg_audio.read_amr, ("amr",)),
    "video/mp4": Format("MP4", mp4.read_mp4, _MP4_NAMES),
    "video/webm": Format("WebM", matroska.read_matroska, ("webm", "opus")),
    "video/x-matroska": Format("Matroska", matroska.read_matroska, ("mka", "mkv", "webm")),
    "video/ogg": Format("Ogg", ogg.read_ogg, ("ogg",)),
    "video/x-msvideo": Format("AVI", avi.read_avi, ("avi",)),
}
READERS: dict[str, Callable[[bytes], Extent]] = {mime: each.read for mime, each in FORMATS.items()}
#: Containers of video of which a client may send only the audio track.
AUDIO_OR_VIDEO = frozenset(mime for mime in FORMATS if mime.startswith("video/"))

_MAGIC = (
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"II*\0", "image/tiff"),
    (b"MM\0*", "image/tiff"),
    (b"II+\0\x08\0", "image/tiff"),
    (b"MM\0+\0\x08", "image/tiff"),
    (b"fLaC", "audio/flac"),
    (b".snd", "audio/basic"),
    (b"caff\0\1", "audio/x-caf"),
    (b"#!AMR\n", "audio/amr"),
    (b"#!AMR-WB\n", "audio/amr"),
    (wav.W64_MAGIC, "audio/x-w64"),
)
_IFF_MAGIC = frozenset({b"RIFF", b"RF64", b"BW64", b"FORM"})
_IFF = dict.fromkeys((b"AIFF", b"AIFC"), "audio/aiff") | {
    b"WEBP": "image/webp",
    b"WAVE": "audio/wav",
    b"AVI ": "video/x-msvideo",
}
#: Sizes of the header of a bitmap.
_BMP_HEADERS = frozenset({12, 40, 52, 56, 64, 108, 124})

# Images share the box format of MP4. The major brand of a file identifies its kind. If that only means "an image", the
# compatible brands do.
_IMAGE_BRANDS = {b"avif": "image/avif", b"avis": "image/avif"} | dict.fromkeys(
    (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx"), "image/heic"
)
_ANY_IMAGE = frozenset({b"mif1", b"msf1", b"mif2", b"miaf", b"jpeg", b"1pic"})
_AUDIO_BRANDS = frozenset({b"M4A ", b"M4B ", b"M4P ", b"F4A ", b"F4B "})
#: Boxes with which a MOV without brands may start.
_MOV_BOXES = frozenset({b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot"})


def sniff_mime(data: bytes) -> str:
    """Return the MIME type by magic, or "" if it is not allowed."""
    mime = _sniff_start(data)
    if mime:
        return mime
    start = mpeg_audio.skip_tags(data)
    if start >= len(data):
        return "audio/mpeg" if start else ""
    if start and data[start : start + 4] == b"fLaC":
        return "audio/flac"
    return mpeg_audio.sniff_mpeg(data, start)


def sniff_content(data: bytes) -> str:
    """Return the MIME type of a file, "" if it is not accepted. A video container without a video has an audio type."""
    mime = sniff_mime(data)
    if mime in AUDIO_OR_VIDEO:
        with suppress(ValueError, struct.error, IndexError):
            return mime if read_header(data, mime).width else mime.replace("video/", "audio/")
    return mime


def read_header(data: bytes, mime: str) -> Extent:
    """Read the header of a file of type ``mime``. Raises ValueError, struct.error or IndexError."""
    is_tagged = mime == "audio/flac" and data[:3] == b"ID3"
    return FORMATS[mime].read(data[mpeg_audio.skip_tags(data) :] if is_tagged else data)


def list_formats(modality: str) -> str:
    """Return the names of the accepted formats of ``modality``, for errors."""
    mimes = [mime for mime in FORMATS if mime.startswith(f"{modality}/")]
    mimes += [mime for mime in FORMATS if modality == "audio" and mime in AUDIO_OR_VIDEO]
    return ", ".join(dict.fromkeys(FORMATS[mime].name for mime in mimes))


def _sniff_start(data: bytes) -> str:
    head, kind = data[:4], data[4:8]
    magic_mime = next((mime for magic, mime in _MAGIC if data.startswith(magic)), "")
    if magic_mime:
        return magic_mime
    if head in _IFF_MAGIC:
        return _IFF.get(data[8:12], "")
    if head == b"OggS":
        # All streams of an Ogg file start before their data.
        return "video/ogg" if b"\x80theora" in data[:512] else "audio/ogg"
    if kind == b"ftyp":
        return _mime_of_brands(data[8 : max(16, min(4096, int.from_bytes(head, "big")))])
    if head == b"\x1a\x45\xdf\xa3":
        return _mime_of_doctype(data[:128])
    is_bitmap = head[:2] == b"BM" and int.from_bytes(data[14:18], "little") in _BMP_HEADERS
    return "image/bmp" if is_bitmap else "video/mp4" if kind in _MOV_BOXES else ""


def _mime_of_brands(brands: bytes) -> str:
    """Return the MIME type for ``brands``: the major brand, its version, and the compatible brands."""
    major, compatible = brands[:4], [brands[at : at + 4] for at in range(8, len(brands), 4)]
    if major in _IMAGE_BRANDS:
        return _IMAGE_BRANDS[major]
    if major in _ANY_IMAGE:
        return next((_IMAGE_BRANDS[each] for each in compatible if each in _IMAGE_BRANDS), "")
    return "audio/mp4" if major in _AUDIO_BRANDS else "video/mp4"


def _mime_of_doctype(head: bytes) -> str:
    _, _, doctype = head.partition(b"\x42\x82")
    if b"webm" in doctype:
        return "video/webm"
    return "video/x-matroska" if b"matroska" in doctype else ""
