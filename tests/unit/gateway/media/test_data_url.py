"""Base64 fields and data URLs are decoded strictly and within the limit."""

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnibus.errors import BadRequest, TooLarge
from omnibus_gateway.openai.messages import Inline, decode_base64, decode_data_url

LIMIT = 1000


@pytest.mark.parametrize(
    ("url", "inline_data"),
    [
        ("data:image/png;base64,AAEC", Inline(b"\x00\x01\x02", "image/png")),
        ("DATA:Image/PNG;BASE64,AAEC", Inline(b"\x00\x01\x02", "image/png")),
        ("data:audio/ogg;codecs=opus;base64,AA==", Inline(b"\x00", "audio/ogg")),
        ("data:;base64,AA==", Inline(b"\x00", "")),
        ("data:image/svg+xml,%3Csvg/%3E", Inline(b"<svg/>", "image/svg+xml")),
        ("data:text/plain;charset=utf-8,a,b", Inline(b"a,b", "text/plain")),
        ("data:,", Inline(b"", "")),
        ("data:video/webm;codecs=vp8,opus;base64,AAEC", Inline(b"\x00\x01\x02", "video/webm")),
        ('data:video/webm;codecs="vp8,opus";base64,AAEC', Inline(b"\x00\x01\x02", "video/webm")),
        ('data:video/webm;codecs="a;b\\",c";base64,AAEC', Inline(b"\x00\x01\x02", "video/webm")),
        ("data:audio/ogg; codecs=opus;base64,AAEC", Inline(b"\x00\x01\x02", "audio/ogg")),
        ('data:video/mp4; codecs="avc1.42E01E, mp4a.40.2"; base64,AAEC', Inline(b"\x00\x01\x02", "video/mp4")),
        ("data:video/x-matroska;codecs=avc1,opus;name=a.mkv;base64,AAEC", Inline(b"\x00\x01\x02", "video/x-matroska")),
        ("data:image/png;base64 ,AAEC", Inline(b"\x00\x01\x02", "image/png")),
        ("data:image/png;name=" + "n" * 300 + ";base64,AAEC", Inline(b"\x00\x01\x02", "image/png")),
        ("data:image/png;base64,AA\nEC", Inline(b"\x00\x01\x02", "image/png")),
        ("data:image/png;base64,AA\r\n EC\n", Inline(b"\x00\x01\x02", "image/png")),
        ("data:image/png;base64,AAE", Inline(b"\x00\x01", "image/png")),
        ("data:image/png;base64,AA", Inline(b"\x00", "image/png")),
        ("data:image/png;base64,_-8=", Inline(b"\xff\xef", "image/png")),
        ("data:image/png;base64,_-8", Inline(b"\xff\xef", "image/png")),
        ("data:image/png;base64,%2F%2b8%3D", Inline(b"\xff\xef", "image/png")),
        ("data:image/png;base64,AAE%3D%0A", Inline(b"\x00\x01", "image/png")),
        ("data:text/plain,a;base64,b", Inline(b"a;base64,b", "text/plain")),
    ],
)
def test_a_data_url_is_decoded(url: str, inline_data: Inline) -> None:
    assert decode_data_url(url, LIMIT) == inline_data


@pytest.mark.parametrize(
    "url",
    [
        "data:image/png;base64",  # cut off before the comma
        "data:image/png;base64,AAECA",  # cut off inside a group
        "data:image/png;base64,AAE=A",
        "data:image/png;base64,AA=",
        "data:image/png;base64,A+-_",  # two alphabets
        "data:image/png;base64,AA%41",
        "data:image/png;base64,====",
        "data:image/png;base64,AAÉC",
        "data:image/png;base64;base64,AAEC",
        "data:image,AAEC",
        "data:image/png;a=" + "b" * 1100 + ",AAEC",
        "data:,%4",
        "data:,%zz",
        "data:,a b",
        "data:,é",
    ],
)
def test_a_malformed_data_url_is_refused(url: str) -> None:
    with pytest.raises(BadRequest) as caught:
        decode_data_url(url, LIMIT, "messages[0].content[1].image_url.url")

    assert caught.value.param == "messages[0].content[1].image_url.url"


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_base64_comes_back_as_it_went_in(data: bytes) -> None:
    assert decode_base64(base64.b64encode(data).decode(), LIMIT) == data


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=60), st.integers(0, 79), st.sampled_from("!%é\x00,"))
def test_one_foreign_character_spoils_base64(data: bytes, place: int, foreign: str) -> None:
    text = base64.b64encode(data).decode()
    place %= len(text)

    with pytest.raises(BadRequest, match="not valid base64"):
        decode_base64(text[:place] + foreign + text[place + 1 :], LIMIT)


@pytest.mark.parametrize("nbytes", [LIMIT - 2, LIMIT - 1, LIMIT, LIMIT + 1, LIMIT + 2])
def test_the_limit_is_exact_whatever_the_padding(nbytes: int) -> None:
    text = base64.b64encode(bytes(nbytes)).decode()

    if nbytes <= LIMIT:
        assert len(decode_base64(text, LIMIT)) == nbytes
    else:
        with pytest.raises(TooLarge, match=f"has {nbytes} bytes; at most {LIMIT}"):
            decode_base64(text, LIMIT)


def test_the_limit_holds_for_percent_encoding() -> None:
    assert len(decode_data_url("data:," + "%41" * LIMIT, LIMIT).data) == LIMIT
    with pytest.raises(TooLarge):
        decode_data_url("data:," + "%41" * (LIMIT + 1), LIMIT)


def test_a_data_url_over_the_limit_is_refused_before_its_base64_is_read() -> None:
    with pytest.raises(TooLarge):
        decode_data_url("data:image/png;base64," + "!" * 4000, LIMIT)


@pytest.mark.parametrize("place", [0, 1, 700, 4099, -1])
@pytest.mark.parametrize("wrong", ["-", "_", "!", "\x00", "é"])
def test_one_wrong_character_anywhere_in_long_data_is_refused(place: int, wrong: str):
    text = list(base64.b64encode(bytes(range(256)) * 16 + b"abc").decode())
    text[place] = wrong

    with pytest.raises(BadRequest):
        decode_base64("".join(text), 1 << 20)


@settings(deadline=None)
@given(st.binary(max_size=3000), st.sampled_from([b"\n", b"\r\n", b" ", b"\t"]), st.booleans(), st.booleans())
def test_base64_is_read_in_every_usual_form(data: bytes, end: bytes, padded: bool, in_url_alphabet: bool) -> None:
    text = base64.urlsafe_b64encode(data) if in_url_alphabet else base64.b64encode(data)
    text = text if padded else text.rstrip(b"=")
    lines = end.join(text[at : at + 76] for at in range(0, len(text), 76)) + end

    assert decode_base64(lines.decode(), 3000) == data


def test_line_breaks_do_not_count_as_bytes() -> None:
    text = base64.encodebytes(bytes(LIMIT)).decode()

    assert len(decode_base64(text, LIMIT)) == LIMIT
    with pytest.raises(TooLarge):
        decode_base64(base64.encodebytes(bytes(LIMIT + 1)).decode(), LIMIT)
