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
    stated_size: tuple[int, int] = (0, 0),
    exif: bytes = b"",
    turns: int = 0,
    brand: bytes = b"heic",
) -> bytes:
    """Return an image of ``pixels`` [height, width, 3], rotated by ``turns`` quarters; its header may state another
    size.
    """
    height, width = pixels.shape[:2]
    config, frame_bytes = _encode_frame(pixels)
    properties = [
        _build_full_box(b"ispe", struct.pack(">II", *(stated_size if stated_size[0] else (width, height)))),
        config,
    ]
    properties += [_build_box(b"irot", bytes([turns]))] if turns else []
    property_indexes = bytes([1, 0x82, 0x83][: len(properties)])
    items = [(1, b"hvc1", frame_bytes)] + ([(2, b"Exif", exif)] if exif else [])
    head = _build_box(b"ftyp", brand, bytes(4), b"mif1heic")

    def build_meta(start: int) -> bytes:
        places = b""
        for number, _, data in items:
            places += struct.pack(">HHHII", number, 0, 1, start, len(data))
            start += len(data)
        kinds = [
            _build_full_box(b"infe", struct.pack(">HH4s", number, 0, kind), b"\0", version=2)
            for number, kind, _ in items
        ]
        links = [_build_full_box(b"iref", _build_box(b"cdsc", struct.pack(">HHH", 2, 1, 1)))] if exif else []
        return _build_full_box(
            b"meta",
            _build_full_box(b"hdlr", bytes(4), b"pict", bytes(13)),
            _build_full_box(b"pitm", struct.pack(">H", 1)),
            _build_full_box(b"iinf", struct.pack(">H", len(items)), *kinds),
            *links,
            _build_box(
                b"iprp",
                _build_box(b"ipco", *properties),
                _build_full_box(b"ipma", struct.pack(">IHB", 1, 1, len(property_indexes)), property_indexes),
            ),
            _build_full_box(b"iloc", struct.pack(">BBH", 0x44, 0, len(items)), places),
        )

    start = len(head) + len(build_meta(0)) + 8
    return head + build_meta(start) + _build_box(b"mdat", *(data for _, _, data in items))


def _build_box(kind: bytes, *parts: bytes) -> bytes:
    return struct.pack(">I4s", 8 + sum(map(len, parts)), kind) + b"".join(parts)


def _build_full_box(kind: bytes, *parts: bytes, version: int = 0) -> bytes:
    return _build_box(kind, struct.pack(">I", version << 24), *parts)


def _encode_frame(pixels: NDArray[np.uint8]) -> tuple[bytes, bytes]:
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
    config, frame_bytes = (_cut_box(data, kind) for kind in (b"hvcC", b"mdat"))
    return config, frame_bytes[8:]


def _cut_box(data: bytes, kind: bytes) -> bytes:
    at = data.index(kind) - 4
    return data[at : at + int.from_bytes(data[at : at + 4], "big")]
