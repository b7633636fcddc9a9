"""Checks of media before they are decoded: format, size, hash, and an estimate of the work.

Only headers are read here. Decoding happens in an executor, which can be killed and restarted.
"""

import asyncio
import hashlib
import struct
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from msgspec import Struct

from omnibus.concurrency import gather_calls
from omnibus.errors import BadMedia, TooLarge
from omnibus.families.image_tokens import image_tokens
from omnibus_gateway.media.fetcher import Fetcher
from omnibus_gateway.media.headers import avi, flac, image, matroska, mp4, mpeg_audio, ogg, wav
from omnibus_gateway.media.headers.base import Extent
from omnibus_gateway.openai.messages import MediaRef, decode_base64, decode_data_url


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


# Most bytes of an item that is inspected on the event loop: images must be hashed, and audio and video may have many
# frames to count.
_MAX_INLINE_BYTES = {"image": 4 << 20, "audio": 256 << 10, "video": 256 << 10}


@dataclass(frozen=True)
class MediaLimits:
    """Limits of one request in bytes, pixels, seconds and counts."""

    body_bytes: int = 64 << 20
    item_bytes: int = 32 << 20
    request_bytes: int = 64 << 20  # all items together, including fetched ones
    items: int = 32
    pixels: int = 50_000_000  # of one image or video frame
    audio_seconds: float = 1800.0
    video_seconds: float = 600.0
    frames: int = 36_000  # of one video
    video_pixels: int = 4_000_000_000  # of all frames of one video, because each must be decoded


DEFAULT_LIMITS = MediaLimits()


class MediaInfo(Struct, frozen=True):
    """Facts about one item that are known without decoding it.

    ``sha256`` is the full hex digest of the bytes. ``seconds`` is None for images, and if the header does not contain a
    length. ``width`` and ``height`` are 0 for audio.
    """

    modality: str
    mime: str
    sha256: str
    nbytes: int
    width: int = 0
    height: int = 0
    seconds: float | None = None


class InspectedMedia(Struct, frozen=True):
    data: bytes
    info: MediaInfo


def inspect_media(
    data: bytes, modality: str, declared_mime: str = "", *, limits: MediaLimits = DEFAULT_LIMITS, param: str = ""
) -> MediaInfo:
    """Check one item of ``modality`` (image, video, audio) by its header.

    ``declared_mime`` is a MIME type or a short format name; "" declares nothing. Raises ``BadMedia`` (unknown or
    unexpected format, unreadable header, empty) and ``TooLarge``, with fixed text.
    """
    if len(data) > limits.item_bytes:
        raise TooLarge(f"A media item has {len(data)} bytes; at most {limits.item_bytes} are accepted.", param=param)
    mime = sniff_mime(data)
    _check_kind(mime, modality, declared_mime, param)
    extent = _read_header(data, mime, modality, param)
    _check_extent(extent, modality, limits, param)
    digest = hashlib.sha256(data).hexdigest()
    return MediaInfo(modality, mime, digest, len(data), extent.width, extent.height, extent.seconds)


def estimate_tokens(info: MediaInfo, family: str = "") -> int:
    """Estimate the tokens of the item, for routing and planning only; the encoder counts exactly.

    Image: by the rule of the model's ``family`` (``omnibus.families.image_tokens``). Video: two frames per second,
    merged in pairs, each 4 to 768 tokens. Audio: 25 tokens per second (Qwen2.5-Omni). Without a length, 16 kB of audio
    or 250 kB of video count as one second.
    """
    if info.modality == "image":
        return image_tokens(family, info.width, info.height)
    if info.modality == "video":
        cells = ceil(info.width / 28) * ceil(info.height / 28)
        seconds = info.nbytes / 250_000 if info.seconds is None else info.seconds
        return max(1, ceil(seconds)) * min(max(cells or 256, 4), 768)
    seconds = info.nbytes / 16_000 if info.seconds is None else info.seconds
    return max(1, ceil(25 * seconds))


#: Reads the bytes of a client's file by its id.
FileReader = Callable[[str], Awaitable[bytes]]


async def load_media(
    refs: Sequence[MediaRef], fetcher: Fetcher, limits: MediaLimits, read_file: FileReader | None = None
) -> list[InspectedMedia]:
    """Fetch or decode every item of a request, and inspect it. Same order as ``refs``.

    Remote items are fetched concurrently. The first error cancels the rest and is raised unchanged.
    """
    if len(refs) > limits.items:
        raise TooLarge(f"The request has {len(refs)} media items; at most {limits.items} are accepted.")
    budget = _Budget(limits.request_bytes)
    if all(ref.data or ref.url[:5].lower() == "data:" for ref in refs):
        return [await _load_item(ref, fetcher, limits, budget, read_file) for ref in refs]
    return await gather_calls(*(_load_item(ref, fetcher, limits, budget, read_file) for ref in refs))


class _Budget:
    """Bytes that a request may still use."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._left = total

    def take_bytes(self, nbytes: int, param: str) -> None:
        self._left -= nbytes
        if self._left < 0:
            raise TooLarge(f"The request's media have more than {self._total} bytes, the most accepted.", param=param)


async def _load_item(
    ref: MediaRef, fetcher: Fetcher, limits: MediaLimits, budget: _Budget, read_file: FileReader | None
) -> InspectedMedia:
    url = ref.data or ref.url
    if url[:5].lower() == "data:":
        inline = decode_data_url(url, limits.item_bytes, ref.param)
        data, declared_mime = inline.data, ref.declared if ref.data else inline.declared
    elif ref.file_id and read_file is not None:
        data, declared_mime = await read_file(ref.file_id), ""
    elif ref.data:
        data, declared_mime = decode_base64(ref.data, limits.item_bytes, ref.param), ref.declared
    else:
        response = await fetcher.fetch(ref.url, limits.item_bytes, ref.param)
        data, declared_mime = response.data, response.declared
    budget.take_bytes(len(data), ref.param)
    return await _inspect_item(data, ref.modality, declared_mime, limits, ref.param)


async def inspect_files(
    files: Sequence[tuple[bytes, str]], modality: str, limits: MediaLimits, param: str
) -> list[InspectedMedia]:
    """Inspect uploaded files of ``modality``.

    Each is its bytes, and the declared MIME type or "". Raises as ``inspect_media``, and ``TooLarge`` for too many
    bytes together.
    """
    budget = _Budget(limits.request_bytes)
    items = []
    for data, declared_mime in files:
        budget.take_bytes(len(data), param)
        items.append(await _inspect_item(data, modality, declared_mime, limits, param))
    return items


async def _inspect_item(
    data: bytes, modality: str, declared_mime: str, limits: MediaLimits, param: str
) -> InspectedMedia:
    if len(data) < _MAX_INLINE_BYTES[modality]:
        return InspectedMedia(data, inspect_media(data, modality, declared_mime, limits=limits, param=param))
    info = await asyncio.to_thread(inspect_media, data, modality, declared_mime, limits=limits, param=param)
    return InspectedMedia(data, info)


def _check_kind(mime: str, modality: str, declared_mime: str, param: str) -> None:
    sniffed_family = mime.partition("/")[0]
    fits = sniffed_family == modality or (modality == "audio" and mime in AUDIO_OR_VIDEO)
    if not fits:
        problem = f"is {FORMATS[mime].name}" if mime else "is empty or in an unknown format"
        raise BadMedia(f"The {modality} item {problem}. {accepted_text(modality)}", param=param)
    family, slash, _ = declared_mime.partition("/")
    if slash:
        # A JPEG declared as PNG is common and harmless; audio declared as an image is not.
        agrees = family in (modality, sniffed_family, "application", "binary")
    else:
        agrees = not declared_mime or declared_mime in FORMATS[mime].short
    if not agrees:
        instead = "" if slash else f": its format is one of {', '.join(FORMATS[mime].short)}"
        raise BadMedia(f"The {modality} item is {mime}, not what its declared type says{instead}.", param=param)


def accepted_text(modality: str) -> str:
    """Return a sentence that lists the formats of ``modality``."""
    return f"Accepted formats of {modality}: {list_formats(modality)}."


def _read_header(data: bytes, mime: str, modality: str, param: str) -> Extent:
    try:
        return read_header(data, mime)
    except (ValueError, struct.error, IndexError):
        raise BadMedia(
            f"The {modality} cannot be read: its header is damaged or cut short, or in a coding that is not accepted."
            f" {accepted_text(modality)}",
            param=param,
        ) from None


def _check_extent(extent: Extent, modality: str, limits: MediaLimits, param: str) -> None:
    if extent.width * extent.height > limits.pixels:
        raise TooLarge(f"The {modality} has more than {limits.pixels} pixels, the most accepted.", param=param)
    if modality != "audio" and not (extent.width and extent.height):
        raise BadMedia(f"The {modality} has no frames. {accepted_text(modality)}", param=param)
    if modality == "video":
        _check_frames(extent, limits, param)
    if modality == "image" or extent.seconds is None:
        return
    most = limits.audio_seconds if modality == "audio" else limits.video_seconds
    if extent.seconds > most:
        raise TooLarge(f"The {modality} is longer than {most:g} seconds, the most accepted.", param=param)
    if extent.seconds <= 0:
        raise BadMedia(f"The {modality} is empty.", param=param)


def _check_frames(extent: Extent, limits: MediaLimits, param: str) -> None:
    if extent.frames > limits.frames:
        raise TooLarge(f"The video has more than {limits.frames} frames, the most accepted.", param=param)
    if extent.frames * extent.width * extent.height > limits.video_pixels:
        most = f"{limits.video_pixels} pixels in all its frames"
        raise TooLarge(f"The video has more than {most}, the most accepted: send it smaller or shorter.", param=param)
