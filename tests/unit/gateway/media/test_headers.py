"""Headers as Pillow and FFmpeg write them, and damaged ones. Those must raise only documented errors."""

import contextlib
import struct
import sys
from collections.abc import Iterator
from functools import cache
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from omnibus_gateway.media.headers.base import Extent
from omnibus_gateway.media.inspect import READERS, sniff_mime
from tests.unit.gateway.samples import make_sample_picture, make_sample_sound, make_sample_video

PICTURES: list[tuple[str, str, dict[str, Any]]] = [
    ("image/jpeg", "JPEG", {}),
    ("image/jpeg", "JPEG", {"progressive": True}),
    ("image/jpeg", "JPEG", {"mode": "L"}),
    ("image/jpeg", "JPEG", {"icc_profile": bytes(70_000), "comment": b"\xff\xc0" * 50}),
    ("image/png", "PNG", {}),
    ("image/png", "PNG", {"mode": "RGBA"}),
    ("image/gif", "GIF", {}),
    ("image/gif", "GIF", {"comment": b"c" * 1000}),
    ("image/webp", "WEBP", {}),
    ("image/webp", "WEBP", {"lossless": True}),
    ("image/webp", "WEBP", {"mode": "RGBA"}),
    ("image/webp", "WEBP", {"icc_profile": bytes(100)}),
]


@pytest.mark.parametrize(("mime", "format", "options"), PICTURES)
@pytest.mark.parametrize("size", [(1, 1), (37, 23), (300, 1200)])
def test_a_picture_has_the_size_that_pillow_reads(
    mime: str, format: str, options: dict[str, Any], size: tuple[int, int]
) -> None:
    data = make_sample_picture(format, size, **options)

    assert sniff_mime(data) == mime
    assert READERS[mime](data) == Extent(None, *Image.open(BytesIO(data)).size)


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG"])
def test_an_animation_has_the_size_of_its_canvas(format: str) -> None:
    frames = [Image.new("RGB", (40, 30), colour) for colour in ("red", "green", "blue")]
    out = BytesIO()
    frames[0].save(out, format, save_all=True, append_images=frames[1:])

    assert READERS[sniff_mime(out.getvalue())](out.getvalue()) == Extent(None, 40, 30)


def test_a_gif_frame_larger_than_its_screen_counts() -> None:
    data = bytearray(make_sample_picture("GIF", (8, 8)))
    data[6:10] = struct.pack("<HH", 1, 1)

    assert (
        READERS["image/gif"](bytes(data)) == Extent(None, *Image.open(BytesIO(bytes(data))).size) == Extent(None, 8, 8)
    )


SOUNDS = [
    ("audio/wav", "wav", "pcm_s16le"),
    ("audio/wav", "wav", "pcm_s24le"),
    ("audio/wav", "wav", "pcm_f32le"),
    ("audio/wav", "wav", "pcm_mulaw"),
    ("audio/flac", "flac", "flac"),
    ("audio/ogg", "ogg", "libopus"),
    ("audio/ogg", "ogg", "flac"),
    ("audio/mpeg", "mp3", "libmp3lame"),
    ("audio/aac", "adts", "aac"),
    ("audio/mp4", "ipod", "aac"),
    ("video/mp4", "mp4", "aac"),
    ("video/x-matroska", "matroska", "libopus"),
    ("video/webm", "webm", "libopus"),
]


@pytest.mark.parametrize(("mime", "container", "codec"), SOUNDS)
@pytest.mark.parametrize("seconds", [0.5, 4.0])
def test_a_sound_has_about_the_length_that_was_written(mime: str, container: str, codec: str, seconds: float) -> None:
    data = make_sample_sound(container, codec, seconds)

    assert sniff_mime(data) == mime
    assert READERS[mime](data).seconds == pytest.approx(seconds, rel=0.25)


def test_an_mp3_without_a_count_is_measured_by_its_bit_rate() -> None:
    data = make_sample_sound("mp3", "libmp3lame", 4.0, write_xing="0")

    assert READERS["audio/mpeg"](data).seconds == pytest.approx(4.0, rel=0.1)


def test_an_mp3_that_understates_its_count_is_measured_by_its_bytes() -> None:
    data = bytearray(make_sample_sound("mp3", "libmp3lame", 4.0))
    tag = max(data.find(b"Xing"), data.find(b"Info"))
    data[tag + 8 : tag + 12] = struct.pack(">I", 1)

    seconds = READERS["audio/mpeg"](bytes(data)).seconds

    assert seconds is not None
    assert seconds >= len(data) / 40_000 * 0.9


def test_a_streamed_wav_counts_the_bytes_that_are_there() -> None:
    data = bytearray(make_sample_sound("wav", "pcm_s16le", 1.0))
    size = data.find(b"data") + 4
    data[size : size + 4] = b"\xff\xff\xff\xff"

    assert READERS["audio/wav"](bytes(data)).seconds == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize(
    ("element", "value"),
    [
        (b"\xb5", struct.pack(">d", 1.0)),
        (b"\xb5", struct.pack(">f", 999.0)),
        (b"\xb5", struct.pack(">d", 1e9)),
        (b"\xb5", struct.pack(">d", float("nan"))),
        (b"\x9f", b"\x00"),
        (b"\x9f", b"\xff"),
    ],
)
def test_a_sound_in_matroska_with_an_impossible_rate_or_number_of_channels_is_refused(
    element: bytes, value: bytes
) -> None:
    def build_element(key: bytes, body: bytes) -> bytes:
        return key + bytes([0x80 | len(body)]) + body

    usual = build_element(
        b"\xae",
        build_element(b"\xe1", build_element(b"\xb5", struct.pack(">d", 16_000.0)) + build_element(b"\x9f", b"\x02")),
    )
    other = build_element(b"\xae", build_element(b"\xe1", build_element(element, value)))

    def build_file(*tracks: bytes) -> bytes:
        head = build_element(b"\x1a\x45\xdf\xa3", build_element(b"\x42\x82", b"matroska"))
        return head + build_element(b"\x18\x53\x80\x67", build_element(b"\x16\x54\xae\x6b", b"".join(tracks)))

    assert READERS["video/x-matroska"](build_file(usual)) == Extent()
    for tracks in ((other,), (usual, other), (other, usual)):
        with pytest.raises(ValueError, match="impossible"):
            READERS["video/x-matroska"](build_file(*tracks))


FILMS = [
    ("video/mp4", "mp4", "mpeg4"),
    ("video/mp4", "mov", "mpeg4"),
    ("video/mp4", "3gp", "mpeg4"),
    ("video/webm", "webm", "libvpx"),
    ("video/x-matroska", "matroska", "mpeg4"),
]


@pytest.mark.parametrize(("mime", "container", "codec"), FILMS)
def test_a_film_has_length_and_frame_size(mime: str, container: str, codec: str) -> None:
    data = make_sample_video(container, codec)

    assert sniff_mime(data) == mime
    extent = READERS[mime](data)
    assert (extent.width, extent.height, extent.frames) == (64, 48, 20)
    assert extent.seconds == pytest.approx(2.0, abs=0.1)


def test_a_film_with_sound_has_the_size_of_its_picture() -> None:
    extent = READERS["video/mp4"](make_sample_video("mp4", "mpeg4", audio="aac"))

    assert (extent.width, extent.height, extent.frames) == (64, 48, 20)
    assert extent.seconds == pytest.approx(2.0, abs=0.1)


def test_a_fragmented_video_has_the_length_of_its_last_fragment() -> None:
    data = make_sample_video("mp4", "mpeg4", movflags="frag_keyframe+empty_moov")

    assert READERS["video/mp4"](data) == Extent(2.0, 64, 48)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"%PDF-1.7",
        b"PK\x03\x04",
        b"BM" + bytes(60),
        b"\x00\x00\x00\x0cjP  \r\n\x87\n",  # JPEG 2000
        b"\x00\x00\x00\x1cftypmif1" + bytes(20),  # an image without a stated kind
        b"RIFF\x00\x00\x00\x00RMID",
        b"G" + bytes(187) + b"G" + bytes(187) + b"G" + bytes(187),  # MPEG-TS
        b"\x1a\x45\xdf\xa3" + bytes(60),
        b"FLV\x01",
        b"\x80\x02]q\x00.",  # a pickle
        b"\xff",
    ],
)
def test_formats_outside_the_list_are_unknown(data: bytes) -> None:
    assert sniff_mime(data) == ""


@cache
def make_media_files() -> list[bytes]:
    pictures = [make_sample_picture(format, **options) for _, format, options in PICTURES]
    sounds = [make_sample_sound(container, codec, 0.1) for _, container, codec in SOUNDS]
    return pictures + sounds + [make_sample_video(container, codec, frames=3) for _, container, codec in FILMS]


@settings(deadline=None, max_examples=400)
@given(st.data())
def test_damage_is_one_of_three_errors_or_a_plausible_extent(data: st.DataObject) -> None:
    original = make_media_files()[data.draw(st.integers(0, len(make_media_files()) - 1))]
    cut = original[: data.draw(st.integers(12, len(original)))]
    hits = data.draw(st.lists(st.tuples(st.integers(12, min(400, len(original)) - 1), st.integers(0, 255)), max_size=6))
    damaged_data = bytearray(cut)
    for place, value in hits:
        if place < len(damaged_data):
            damaged_data[place] = value

    try:
        extent = READERS[sniff_mime(original)](bytes(damaged_data))
    except (ValueError, struct.error, IndexError):
        return

    assert extent.width >= 0
    assert extent.height >= 0


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xd8" + b"\xff" * 2_000_000,  # padding without end
        b"\xff\xd8" + b"\xff\xfe\x00\x02" * 500_000,  # empty comments without end
        b"GIF89a" + bytes(7) + b"\x21\xfe\x01a\x00" * 400_000,
        b"\x1a\x45\xdf\xa3\x80" + b"\x18\x53\x80\x67\xff" * 400_000,  # segments inside segments
        b"\x1a\x45\xdf\xa3\x80\x18\x53\x80\x67\xff" + b"\xec\x80" * 400_000,  # empty elements without end
        b"\x00\x00\x00\x0cftypisom" + b"\x00\x00\x00\x08free" * 250_000,
        b"RIFF\x00\x00\x00\x00WAVE" + b"junk\x00\x00\x00\x00" * 250_000,
    ],
)
def test_a_header_without_end_is_given_up(data: bytes) -> None:
    looks = Looks(data)

    with contextlib.suppress(ValueError, struct.error, IndexError), looks.count_calls():
        READERS[sniff_mime(data) or "video/x-matroska"](looks)

    assert looks.seen < 100_000


class Looks(bytes):
    """Bytes that count their reads: index and slice here, ``struct`` as a C call."""

    seen = 0

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key)

    @contextlib.contextmanager
    def count_calls(self) -> Iterator[None]:
        def count_call(_frame: object, event: str, _argument: object) -> None:
            self.seen += event in ("call", "c_call")

        sys.setprofile(count_call)
        try:
            yield
        finally:
            sys.setprofile(None)
