"""Headers of media and data URLs, as gateways read them: a typed refusal or sane figures, in little time."""

import contextlib
import math
import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnibus.errors import Rejected
from omnibus_gateway.media import fetcher
from omnibus_gateway.media.inspect import DEFAULT_LIMITS, READERS, estimate_tokens, inspect_media
from omnibus_gateway.openai import messages
from tests.fuzz import seeds
from tests.fuzz.corpus import save_failing, try_saved
from tests.fuzz.mutate import mutate_bytes
from tests.fuzz.profile import limit_examples
from tests.fuzz.refusal import value_or_refusal
from tests.unit.gateway import samples

#: A header is read on the event loop: it may not take longer, however it is made. Of the processor.
CPU_SECONDS = 0.3
LIMIT = 1 << 20


def read_header(data: bytes, modality: str, mime_type: str = "") -> None:
    began = time.thread_time()
    info = value_or_refusal(inspect_media, data, modality, mime_type)
    if not isinstance(info, Rejected):
        assert 0 <= info.width * info.height <= DEFAULT_LIMITS.pixels
        assert info.seconds is None or (math.isfinite(info.seconds) and info.seconds > 0)
        assert 0 < estimate_tokens(info) < 1 << 31
    assert time.thread_time() - began < CPU_SECONDS


@pytest.mark.parametrize("modality", ["image", "audio", "video"])
def test_a_hostile_header_is_read_or_refused(modality: str):
    for data in seeds.list_all():
        read_header(data, modality)


@limit_examples(400)
@given(
    data=st.deferred(lambda: mutate_bytes(seeds.list_small())),
    modality=st.sampled_from(["image", "audio", "video"]),
    declared=st.sampled_from(["", "wav", "mp3", "image/png", "audio/", "application/octet-stream", "/"]),
)
def test_a_damaged_header_is_read_or_refused(data: bytes, modality: str, declared: str):
    with save_failing("headers", data):
        read_header(data, modality, declared)


HEADS = [b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"fLaC", b"OggS", b"ID3", b"RIFF\0\0\0\0WEBP", b"RIFF\0\0\0\0WAVE",
         b"\0\0\0\x10ftypisom", b"\0\0\0\x10ftypM4A ", b"\x1aE\xdf\xa3\x42\x82\x84webm", b"\xff\xfb", b"\xff\xf1",
         b"II*\0\x08\0\0\0", b"MM\0+\0\x08\0\0", b"BM" + bytes(12) + b"\x28\0\0\0", b"\0\0\0\x14ftypavif", b"FORM\0\0\0\0AIFF",
         b".snd", b"caff\0\1\0\0", b"#!AMR\n", b"RF64\xff\xff\xff\xffWAVE", b"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\0\0",
         b"RIFF\0\0\0\0AVI LIST", b"OggS\0\2" + bytes(20) + b"\1\x2a\x80theora", b"ID3\4\0\0\0\0\0\0"]  # fmt: skip


@try_saved("headers", modality="audio")
@limit_examples(300)
@given(
    data=st.builds(lambda head, rest: head + rest, st.sampled_from(HEADS), st.binary(max_size=120)),
    modality=st.sampled_from(["image", "audio", "video"]),
)
def test_bytes_behind_a_true_beginning_are_read_or_refused(data: bytes, modality: str):
    with save_failing("headers", data):
        read_header(data, modality)


@pytest.mark.parametrize("mime", READERS)
def test_a_file_of_a_million_small_elements_is_refused_soon(mime: str):
    for unit in (
        b"\xff\xe5\0\2",
        b"\0\0\0\x08free",
        b"\xec\x80",
        b"OggS" + bytes(23),
        b"JUNK\0\0\0\0",
        b"\x21\xff\1x\0",
    ):
        for start in (
            samples.make_sample_picture("GIF")[:13],
            b"\xff\xd8",
            b"RIFF\0\0\0\0WAVE",
            b"\0\0\0\x10ftypisom\0\0\0\0",
            b"",
        ):
            data = start + unit * (LIMIT // len(unit))
            began = time.thread_time()
            with contextlib.suppress(ValueError, struct.error, IndexError):
                READERS[mime](data)
            assert time.thread_time() - began < CPU_SECONDS, (unit, start)


# Data URLs and addresses of media

TEXTS = [
    "data:image/png;base64,AAAA",
    "data:;base64,AAA=",
    "data:text/plain;charset=utf-8,%41",
    "data:,",
    "data:audio/wav;a=b;c=d;base64,AA==",
    "DATA:image/png;BASE64,AAAA",
    "https://example.com:443/a.png?b#c",
    "https://[2001:db8::1]/",
    "http://2130706433/",
    "https://user@example.com/",
    "https://a..b/",
]


@try_saved("data_urls")
@limit_examples(500)
@given(data=mutate_bytes([text.encode() for text in TEXTS]))
def test_a_data_url_is_decoded_or_refused(data: bytes):
    text = data.decode(errors="replace")
    began = time.thread_time()
    with save_failing("data_urls", data):
        for decode in (messages.decode_data_url, messages.decode_base64):
            result = value_or_refusal(decode, text, LIMIT)
            if not isinstance(result, Rejected):
                assert len(getattr(result, "data", result)) <= LIMIT
    assert time.thread_time() - began < CPU_SECONDS


@pytest.mark.parametrize("piece", [";a=b", ";a=", "%", "%4", "A", "=", ";base64", "é", ";"])
def test_a_data_url_of_one_piece_again_and_again_is_decided_soon(piece: str):
    for url in (f"data:{piece * 50_000},AAAA", f"data:a/b{piece * 80},AAAA", f"data:a/b;base64,{piece * 500_000}"):
        began = time.thread_time()
        value_or_refusal(messages.decode_data_url, url, LIMIT)
        assert time.thread_time() - began < CPU_SECONDS, url[:80]


@try_saved("urls")
@limit_examples(500)
@given(data=mutate_bytes([text.encode() for text in TEXTS]))
def test_the_address_of_a_file_is_taken_apart_or_refused(data: bytes):
    with save_failing("urls", data):
        target = value_or_refusal(fetcher.parse_url, data.decode(errors="replace"), fetcher.UrlRules())
        if not isinstance(target, Rejected):
            assert target.scheme == "https"
            assert target.port in (80, 443)
            assert target.path.isascii()
            assert not set(target.host + target.path) & set(" \r\n\t\\\0")
