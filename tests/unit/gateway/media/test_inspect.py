"""Rejecting items by their header, before decoding."""

import asyncio
import base64
import hashlib
import struct
import zlib
from collections.abc import AsyncIterator

import pytest

from omnibus.errors import BadMedia, BadRequest, TooLarge
from omnibus_gateway.media.fetcher import Fetcher, FetchRules
from omnibus_gateway.media.inspect import MediaInfo, MediaLimits, estimate_tokens, inspect_media, load_media
from omnibus_gateway.openai.messages import MediaRef
from tests.unit.gateway.samples import make_sample_picture, make_sample_sound, make_sample_video

PNG = make_sample_picture("PNG")
WAV = make_sample_sound("wav", "pcm_s16le", 1.0)


def build_png_bomb(width: int, height: int) -> bytes:
    """A small, valid PNG header that claims ``width`` x ``height`` pixels."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))


def test_an_image_is_described_by_its_header_and_hash() -> None:
    info = inspect_media(PNG, "image", "image/png")

    assert info == MediaInfo("image", "image/png", hashlib.sha256(PNG).hexdigest(), len(PNG), 37, 23, None)


def test_a_sound_and_a_film_have_a_length() -> None:
    assert inspect_media(WAV, "audio", "wav").seconds == pytest.approx(1.0)
    assert inspect_media(make_sample_video("webm", "libvpx"), "video").seconds == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize(
    ("data", "modality", "label"),
    [
        (PNG, "image", "image/jpeg"),  # mislabelled, yet an image
        (PNG, "image", "application/octet-stream"),
        (WAV, "audio", "audio/x-wav"),
        (make_sample_sound("webm", "libopus", 0.5), "audio", "video/webm"),
        (make_sample_sound("webm", "libopus", 0.5), "audio", "audio/webm"),
        (make_sample_sound("mp4", "aac", 0.5), "audio", "m4a"),
        (make_sample_sound("ogg", "libopus", 0.5), "audio", "opus"),
    ],
)
def test_a_harmless_label_is_accepted(data: bytes, modality: str, label: str) -> None:
    assert inspect_media(data, modality, label).modality == modality


@pytest.mark.parametrize(
    ("data", "modality", "label"),
    [
        (b"", "image", ""),
        (b"", "audio", "wav"),
        (b"<html>not found</html>", "image", "image/png"),
        (WAV, "image", ""),
        (PNG, "audio", ""),
        (PNG, "video", ""),
        (WAV, "video", ""),
        (PNG, "image", "text/html"),
        (PNG, "image", "audio/wav"),
        (WAV, "audio", "mp3"),
        (make_sample_sound("mp4", "aac", 0.5), "video", ""),  # a video without frames
        (WAV[:44], "audio", "wav"),  # a header without samples
        (WAV[:30], "audio", "wav"),
        (PNG[:20], "image", ""),
        (make_sample_picture("JPEG")[:100], "image", ""),
        (make_sample_video("mp4", "mpeg4")[:-200], "video", ""),
        (build_png_bomb(0, 10), "image", ""),
    ],
)
def test_bad_media_are_refused_with_their_place(data: bytes, modality: str, label: str) -> None:
    with pytest.raises(BadMedia) as caught:
        inspect_media(data, modality, label, param="messages[0].content[0]")

    assert caught.value.param == "messages[0].content[0]"


def test_an_image_bomb_is_refused_by_its_header() -> None:
    with pytest.raises(TooLarge, match="more than 50000000 pixels"):
        inspect_media(build_png_bomb(60_000, 60_000), "image", param="p")


def test_the_pixel_limit_is_exact() -> None:
    limits = MediaLimits(pixels=10_000)

    assert inspect_media(build_png_bomb(100, 100), "image", limits=limits).width == 100
    with pytest.raises(TooLarge):
        inspect_media(build_png_bomb(101, 100), "image", limits=limits)
    with pytest.raises(TooLarge, match="video has more than"):
        inspect_media(make_sample_video("mp4", "mpeg4", size=(128, 96)), "video", limits=limits)


def test_length_and_bytes_are_limited() -> None:
    with pytest.raises(TooLarge, match=r"longer than 0\.5 seconds"):
        inspect_media(WAV, "audio", limits=MediaLimits(audio_seconds=0.5))
    with pytest.raises(TooLarge, match="longer than 1 seconds"):
        inspect_media(make_sample_video("matroska", "mpeg4"), "video", limits=MediaLimits(video_seconds=1))
    with pytest.raises(TooLarge, match=f"at most {len(PNG) - 1}"):
        inspect_media(PNG, "image", limits=MediaLimits(item_bytes=len(PNG) - 1))


@pytest.mark.parametrize(
    ("info", "tokens"),
    [
        (MediaInfo("image", "image/png", "", 10, 1, 1), 4),
        (MediaInfo("image", "image/png", "", 10, 280, 280), 100),
        (MediaInfo("image", "image/png", "", 10, 281, 280), 110),
        (MediaInfo("image", "image/png", "", 10, 7000, 7000), 16384),
        (MediaInfo("audio", "audio/wav", "", 10, seconds=2.0), 50),
        (MediaInfo("audio", "audio/wav", "", 10, seconds=0.001), 1),
        (MediaInfo("audio", "audio/mpeg", "", 32_000), 50),
        (MediaInfo("video", "video/mp4", "", 10, 280, 280, 2.5), 300),
        (MediaInfo("video", "video/webm", "", 500_000, 280, 280), 200),
    ],
)
def test_the_estimate_follows_size_and_length(info: MediaInfo, tokens: int) -> None:
    assert estimate_tokens(info) == tokens


def data_url(data: bytes, mime: str = "image/png") -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


async def test_inline_items_are_loaded_in_order() -> None:
    refs = [
        MediaRef("image", url=data_url(PNG), param="a"),
        MediaRef("audio", data=base64.b64encode(WAV).decode(), declared="wav", param="b"),
    ]

    media = await load_media(refs, Fetcher(), MediaLimits())

    assert [item.data for item in media] == [PNG, WAV]
    assert [item.info.modality for item in media] == ["image", "audio"]


async def test_a_large_item_is_hashed_like_a_small_one() -> None:
    large = PNG + bytes(5 << 20)

    (media,) = await load_media([MediaRef("image", url=data_url(large))], Fetcher(), MediaLimits())

    assert media.info.sha256 == hashlib.sha256(large).hexdigest()


async def test_the_number_of_items_is_limited() -> None:
    refs = [MediaRef("image", url=data_url(PNG))] * 3

    with pytest.raises(TooLarge, match="3 media items; at most 2"):
        await load_media(refs, Fetcher(), MediaLimits(items=2))


async def test_the_sum_of_all_items_is_limited() -> None:
    refs = [MediaRef("image", url=data_url(PNG), param=name) for name in "abc"]

    with pytest.raises(TooLarge) as caught:
        await load_media(refs, Fetcher(), MediaLimits(request_bytes=2 * len(PNG)))
    assert caught.value.param == "c"


@pytest.mark.parametrize(
    ("ref", "error"),
    [
        (MediaRef("image", url=data_url(PNG)[:-3], param="p"), BadRequest),
        (MediaRef("image", url="data:image/png;base64", param="p"), BadRequest),
        (MediaRef("audio", data="!!!!", declared="wav", param="p"), BadRequest),
        (MediaRef("audio", data="AAAA", declared="wav", param="p"), BadMedia),
        (MediaRef("image", url="file:///etc/passwd", param="p"), BadRequest),
        (MediaRef("image", url="http://127.0.0.1/", param="p"), BadRequest),
        (MediaRef("image", url=data_url(bytes(2000)), param="p"), TooLarge),
    ],
)
async def test_each_error_is_raised_as_it_is_and_names_the_item(ref: MediaRef, error: type[Exception]) -> None:
    refs = [MediaRef("image", url=data_url(PNG)), ref]

    with pytest.raises(error) as caught:
        await load_media(refs, Fetcher(), MediaLimits(item_bytes=1000))

    assert getattr(caught.value, "param", "") == "p"


@pytest.fixture
async def site_port() -> AsyncIterator[int]:
    """The port of a server on loopback: /png answers, /slow never does."""

    async def answer_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"/slow" in head:
            await reader.read()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n%b" % (len(PNG), PNG))
        writer.close()

    server = await asyncio.start_server(answer_request, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


LOCAL = FetchRules(allow_http=True, allow_private=True, ports=None, timeout=10.0)


async def test_remote_and_inline_items_mix(site_port: int) -> None:
    refs = [MediaRef("image", url=f"http://127.0.0.1:{site_port}/png"), MediaRef("image", url=data_url(PNG))]

    media = await load_media(refs, Fetcher(LOCAL), MediaLimits())

    assert [item.info.sha256 for item in media] == [hashlib.sha256(PNG).hexdigest()] * 2


async def test_one_bad_item_ends_the_wait_for_the_others(site_port: int) -> None:
    refs = [
        MediaRef("image", url=f"http://127.0.0.1:{site_port}/slow", param="slow"),
        MediaRef("image", url="https://169.254.169.254/", param="bad"),
    ]

    async with asyncio.timeout(5):
        with pytest.raises(BadRequest) as caught:
            await load_media(refs, Fetcher(LOCAL), MediaLimits())

    assert caught.value.param == "bad"
