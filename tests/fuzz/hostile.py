"""Media that attack a decoder, built in code, a few kilobytes each."""

import io
import struct
import wave
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import av
import numpy as np
from PIL import Image

from tests.unit.gateway import samples

#: More channels than most decoders were tried with; 8 is a legitimate file (7.1 audio).
CHANNELS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 24, 32)


class Hostile(NamedTuple):
    """A file by name.

    ``modality`` is the modality of the request. ``fine`` files must be decoded, not rejected.
    """

    name: str
    modality: str
    data: bytes
    fine: bool = False


# Sound


def make_wav(channels: int = 1, frames: int = 1000, rate: int = 16_000, align: int = 0, claimed: int = -1) -> bytes:
    """16-bit WAV. ``align`` and ``claimed_bytes`` (bytes of samples) replace the true figures of the header."""
    data = b"\1\2" * (frames * channels)
    size = len(data) if claimed < 0 else claimed
    each = align or 2 * channels
    head = struct.pack("<IHHIIHH", 16, 1, channels, rate, rate * each & 0xFFFFFFFF, each & 0xFFFF, 16)
    return b"RIFF" + struct.pack("<I", 36 + size) + b"WAVEfmt " + head + b"data" + struct.pack("<I", size) + data


def float_wav(values: bytes) -> bytes:
    """Mono 32-bit float WAV of these samples."""
    head = struct.pack("<IHHIIHH", 16, 3, 1, 16_000, 64_000, 4, 32)
    return b"RIFF" + struct.pack("<I", 36 + len(values)) + b"WAVEfmt " + head + b"data" + _add_size(values)


def _add_size(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def make_element(key: bytes, body: bytes) -> bytes:
    """An EBML element with a size of 8 bytes."""
    return key + (len(body) | 1 << 56).to_bytes(8, "big") + body


def make_matroska(
    rate: float, samples: int, channels: int = 1, codec: bytes = b"A_PCM/INT/LIT", seconds: float = 1
) -> bytes:
    """PCM in Matroska with a declared ``rate`` in samples a second.

    At 1.0 a few kilobytes last an hour.
    """
    head = make_element(b"\x1a\x45\xdf\xa3", make_element(b"\x42\x82", b"matroska"))
    info = make_element(
        b"\x15\x49\xa9\x66",
        make_element(b"\x2a\xd7\xb1", (1_000_000).to_bytes(4, "big"))
        + make_element(b"\x44\x89", struct.pack(">d", seconds * 1000)),
    )
    audio = (
        make_element(b"\xb5", struct.pack(">d", rate))
        + make_element(b"\x9f", bytes([channels]))
        + make_element(b"\x62\x64", b"\x10")
    )
    track = b"".join(
        [
            make_element(b"\xd7", b"\1"),
            make_element(b"\x73\xc5", b"\1"),
            make_element(b"\x83", b"\2"),
            make_element(b"\x86", codec),
            make_element(b"\xe1", audio),
        ]
    )
    block = make_element(b"\xa3", b"\x81\0\0\x80" + b"\1\2" * samples * channels)
    cluster = make_element(b"\x1f\x43\xb6\x75", make_element(b"\xe7", b"\0") + block)
    return head + make_element(
        b"\x18\x53\x80\x67", info + make_element(b"\x16\x54\xae\x6b", make_element(b"\xae", track)) + cluster
    )


def opus_channels(channels: int) -> bytes:
    """An Ogg page that declares Opus with many channels, without data."""
    head = b"OpusHead\1" + bytes([channels]) + struct.pack("<HIhB", 0, 48_000, 0, 255)
    head += bytes([channels, 0]) + bytes(range(channels))
    return (
        _make_ogg(head, 0)
        + _make_ogg(b"OpusTags" + _add_size(b"x") + _add_size(b""), 1)
        + _make_ogg(b"\xfc" * 40, 2, granule=960)
    )


def _make_ogg(body: bytes, number: int, granule: int = 0) -> bytes:
    lace = bytes([255] * (len(body) // 255) + [len(body) % 255])
    head = b"OggS" + struct.pack("<BBqIIIB", 0, 2 if not number else 0, granule, 1, number, 0, len(lace)) + lace
    page = bytearray(head + body)
    page[22:26] = struct.pack("<I", _ogg_sum(page))
    return bytes(page)


def _ogg_sum(page: bytes | bytearray) -> int:
    value = 0
    for byte in page:
        value ^= byte << 24
        for _ in range(8):
            value = (value << 1 ^ 0x04C11DB7) & 0xFFFFFFFF if value & 1 << 31 else value << 1
    return value


def long_wav(seconds: int) -> bytes:
    """Silence, 8 bits, 1,000 samples a second."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(1)
        file.setframerate(1000)
        file.writeframes(bytes([128]) * seconds * 1000)
    return out.getvalue()


# Pictures


def make_png(width: int, height: int, body: bytes | None = None, *more: tuple[bytes, bytes]) -> bytes:
    """A grey PNG whose pixels compress to almost nothing.

    ``body`` replaces the pixels, and ``more`` are chunks before it.
    """
    if body is None:
        squeeze = zlib.compressobj(9)
        row = bytes(1 + width)
        body = b"".join([*(squeeze.compress(row) for _ in range(height)), squeeze.flush()])
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", head), *more, (b"IDAT", body), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_make_chunk(*each) for each in chunks)


def _make_chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def make_animation(frames: int, format: str) -> bytes:
    """An animated image, of which only the first frame is decoded."""
    out = io.BytesIO()
    pictures = [Image.new("L", (64, 64), number % 256) for number in range(frames)]
    pictures[0].save(out, format, save_all=True, append_images=pictures[1:])
    return out.getvalue()


def make_tiff(width: int, height: int) -> bytes:
    """A TIFF header that declares a large image in one missing strip."""
    entries = [(256, width), (257, height), (258, 8), (259, 1), (262, 1), (273, 8), (277, 1), (278, height), (279, 9)]
    table = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in entries)
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + table + bytes(4)


def jpeg_segments(count: int) -> bytes:
    """A JPEG of empty segments alone."""
    return b"\xff\xd8" + b"\xff\xe5\0\2" * count


def gif_frame(width: int, height: int) -> bytes:
    """A small screen with a frame as large as the format allows."""
    return (
        b"GIF89a"
        + struct.pack("<HHBBB", 1, 1, 0, 0, 0)
        + b"\x2c"
        + struct.pack("<HHHHB", 0, 0, width, height, 0)
        + b"\2\0;"
    )


# Videos


def encode_video(codec: str, container: str = "matroska", pixels: str = "yuv420p", frames: int = 3) -> bytes:
    """A grey video in this codec; empty if it cannot be encoded."""
    out = io.BytesIO()
    try:
        with av.open(out, "w", format=container) as file:
            stream = file.add_stream(codec, rate=5)
            stream.width, stream.height, stream.pix_fmt = 64, 48, pixels
            if codec in ("snow", "jpeg2000", "ffv1"):
                stream.codec_context.options = {"strict": "-2"}
            for _ in range(frames):
                frame = av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8), format="rgb24")
                file.mux(stream.encode(frame))
            file.mux(stream.encode(None))
    except (av.error.FFmpegError, ValueError, RuntimeError):
        return b""
    return out.getvalue()


def nested_boxes(depth: int) -> bytes:
    """An MP4 with nested boxes."""
    body = b""
    for _ in range(depth):
        body = struct.pack(">I4s", 8 + len(body), b"moov") + body
    return struct.pack(">I4s8s", 16, b"ftyp", b"isom\0\0\0\0") + body


PLAYLISTS = (
    b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n",
    b"ffconcat version 1.0\nfile /etc/passwd\n",
    b"v=0\no=- 0 0 IN IP4 127.0.0.1\nm=audio 5004 RTP/AVP 0\n",
    b'<?xml version="1.0"?><MPD><Period><BaseURL>http://127.0.0.1/</BaseURL></Period></MPD>',
)

# All


def list_sounds() -> Iterator[Hostile]:
    for channels in CHANNELS:
        yield Hostile(f"wav of {channels} channels", "audio", make_wav(channels), fine=True)
    for rate in (1, 999, 2**31, 2**32 - 1):
        yield Hostile(f"wav at {rate} Hz", "audio", make_wav(rate=rate))
    yield Hostile("wav without samples", "audio", make_wav(frames=0))
    yield Hostile("wav with frames of no bytes", "audio", make_wav(align=65535))
    yield Hostile("wav that claims 2 GiB", "audio", make_wav(claimed=2**31 - 1))
    yield Hostile("wav of 65,535 channels", "audio", make_wav(channels=65535, frames=1))
    for name, value in (("nan", "nan"), ("infinity", "inf"), ("the largest floats", "3.4e38")):
        yield Hostile(f"wav of {name}", "audio", float_wav(np.full(1000, float(value), "<f4").tobytes()))
    for hertz in (1.0, 0.001, 7.0, 1e300, float("nan"), -1.0, 0.0):
        yield Hostile(f"matroska at {hertz} Hz", "audio", make_matroska(hertz, 1500))
    yield Hostile("matroska of 7 kB at 1 Hz", "audio", make_matroska(1.0, 3500))
    yield Hostile("matroska of 8 channels", "audio", make_matroska(16000.0, 1600, 8, seconds=0.1), fine=True)
    yield Hostile("matroska of 255 channels", "audio", make_matroska(16000.0, 16, 255, seconds=0.001))
    for channels in (0, 8, 9, 64, 255):
        yield Hostile(f"opus of {channels} channels", "audio", opus_channels(channels))
    yield Hostile("an hour in a WAV", "audio", long_wav(3600))
    for number, text in enumerate(PLAYLISTS):
        yield Hostile(f"playlist {number}", "audio", text)
    for name, (container, codec) in SOUNDS.items():
        whole = samples.make_sample_sound(container, codec, 0.3, 48_000)
        for part in (3, 2):
            yield Hostile(f"{name} cut to 1/{part}", "audio", whole[: len(whole) // part])


SOUNDS = {
    "flac": ("flac", "flac"),
    "mp3": ("mp3", "libmp3lame"),
    "m4a": ("ipod", "aac"),
    "aac": ("adts", "aac"),
    "opus": ("ogg", "libopus"),
}


def list_pictures() -> Iterator[Hostile]:
    yield Hostile("png of 2,500 megapixels", "image", make_png(50_000, 50_000, b""))
    yield Hostile("png of 49 megapixels", "image", make_png(7_000, 7_000), fine=True)
    yield Hostile("png of one row", "image", make_png(20_000, 1))
    yield Hostile("png without pixels", "image", make_png(64, 64, b""))
    yield Hostile("png of no size", "image", make_png(0, 0, b""))
    text = (b"zTXt", b"x\0\0" + zlib.compress(bytes(8 << 20), 9))
    yield Hostile("png with 8 MiB of text", "image", make_png(64, 64, None, text))
    profile = (b"iCCP", b"x\0\0" + zlib.compress(bytes(8 << 20), 9))
    yield Hostile("png with a profile of 8 MiB", "image", make_png(64, 64, None, profile))
    yield Hostile("jpeg of segments", "image", jpeg_segments(50_000))
    yield Hostile("gif with a frame of 4 gigapixels", "image", gif_frame(65_535, 65_535))
    yield Hostile("tiff of 4 gigapixels", "image", make_tiff(65_535, 65_535))
    yield Hostile("gif of 300 frames", "image", make_animation(300, "GIF"), fine=True)
    yield Hostile("webp of 60 frames", "image", make_animation(60, "WEBP"), fine=True)
    for name in ("JPEG", "PNG", "WEBP", "GIF"):
        whole = samples.make_sample_picture(name)
        yield Hostile(f"{name} cut to 1/2", "image", whole[: len(whole) // 2])
    yield Hostile("svg", "image", b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>')
    yield Hostile("a page", "image", b"<!doctype html><title>404</title>")


#: Decoders of FFmpeg that no client needs.
CODECS = (
    ("mjpeg", "yuvj420p"),
    ("ffv1", "yuv420p"),
    ("jpeg2000", "yuv420p"),
    ("snow", "yuv420p"),
    ("prores", "yuv422p10le"),
)


def list_videos() -> Iterator[Hostile]:
    for codec, pixels in CODECS:
        if data := encode_video(codec, pixels=pixels):
            yield Hostile(f"matroska of {codec}", "video", data)
    yield Hostile("mp4 of nested boxes", "video", nested_boxes(3000))
    whole = samples.make_sample_video("mp4", "libx264")
    yield Hostile("mp4 cut to 1/2", "video", whole[: len(whole) // 2])
    yield Hostile("mp4 of 1,000 frames", "video", encode_video("libx264", "mp4", frames=1000), fine=True)
    for number, text in enumerate(PLAYLISTS):
        yield Hostile(f"playlist {number}", "video", text)


def list_hostile() -> list[Hostile]:
    """All of them, in one order."""
    groups: list[Callable[[], Iterator[Hostile]]] = [list_sounds, list_pictures, list_videos]
    return [each for group in groups for each in group()]
