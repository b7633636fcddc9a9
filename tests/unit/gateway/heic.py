"""HEIC files, which no library here writes: an HEVC frame of FFmpeg in the boxes of ISO/IEC 23008-12."""

import struct
from io import BytesIO

import av
import numpy as np
from numpy.typing import NDArray

QUIET = {"x265-params": "log-level=none:keyint=1", "preset": "ultrafast", "crf": "10"}


def write_heic(
    pixels: NDArray[np.uint8],
    *,
    stated: tuple[int, int] = (0, 0),
    exif: bytes = b"",
    turns: int = 0,
    brand: bytes = b"heic",
) -> bytes:
    """Return an image of ``pixels`` [height, width, 3], rotated by ``turns`` quarters; its header may state another
    size.
    """
    height, width = pixels.shape[:2]
    config, coded = _encode(pixels)
    properties = [_full(b"ispe", struct.pack(">II", *(stated if stated[0] else (width, height)))), config]
    properties += [_box(b"irot", bytes([turns]))] if turns else []
    used = bytes([1, 0x82, 0x83][: len(properties)])
    items = [(1, b"hvc1", coded)] + ([(2, b"Exif", exif)] if exif else [])
    head = _box(b"ftyp", brand, bytes(4), b"mif1heic")

    def meta(start: int) -> bytes:
        places = b""
        for number, _, data in items:
            places += struct.pack(">HHHII", number, 0, 1, start, len(data))
            start += len(data)
        kinds = [_full(b"infe", struct.pack(">HH4s", number, 0, kind), b"\0", version=2) for number, kind, _ in items]
        links = [_full(b"iref", _box(b"cdsc", struct.pack(">HHH", 2, 1, 1)))] if exif else []
        return _full(
            b"meta",
            _full(b"hdlr", bytes(4), b"pict", bytes(13)),
            _full(b"pitm", struct.pack(">H", 1)),
            _full(b"iinf", struct.pack(">H", len(items)), *kinds),
            *links,
            _box(b"iprp", _box(b"ipco", *properties), _full(b"ipma", struct.pack(">IHB", 1, 1, len(used)), used)),
            _full(b"iloc", struct.pack(">BBH", 0x44, 0, len(items)), places),
        )

    start = len(head) + len(meta(0)) + 8
    return head + meta(start) + _box(b"mdat", *(data for _, _, data in items))


def _box(kind: bytes, *parts: bytes) -> bytes:
    return struct.pack(">I4s", 8 + sum(map(len, parts)), kind) + b"".join(parts)


def _full(kind: bytes, *parts: bytes, version: int = 0) -> bytes:
    return _box(kind, struct.pack(">I", version << 24), *parts)


def _encode(pixels: NDArray[np.uint8]) -> tuple[bytes, bytes]:
    """Return the codec configuration box and the coded frame of an MP4."""
    out = BytesIO()
    with av.open(out, "w", format="mp4") as file:
        stream = file.add_stream("libx265", rate=1, options=QUIET)
        stream.height, stream.width, stream.pix_fmt = *pixels.shape[:2], "yuv420p"
        frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
        frame.pts = 0
        file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    data = out.getvalue()
    config, coded = (_cut_box(data, kind) for kind in (b"hvcC", b"mdat"))
    return config, coded[8:]


def _cut_box(data: bytes, kind: bytes) -> bytes:
    at = data.index(kind) - 4
    return data[at : at + int.from_bytes(data[at : at + 4], "big")]
