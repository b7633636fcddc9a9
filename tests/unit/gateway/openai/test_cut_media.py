"""Long data URLs become views of the body; all other bodies are parsed as usual."""

import base64
import json
from typing import Any

import msgspec
import pytest

from omnibus.errors import BadRequest, OmnibusError
from omnibus_gateway.openai.chat_request import ChatRequest
from omnibus_gateway.openai.messages import (
    MIN_CUT_BYTES,
    EncodedUrl,
    convert_messages,
    decode_data_url,
    parse_chat_media,
)
from omnibus_gateway.openai.parse import parse_chat

DATA = bytes(range(256)) * (MIN_CUT_BYTES // 128)
LONG = base64.b64encode(DATA).decode()
URL = f"data:image/png;base64,{LONG}"
LIMIT = 1 << 30


def build_body(*parts: Any, **more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": list(parts)}], **more}).encode()


def make_picture_part(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def list_urls(request: ChatRequest) -> list[str]:
    return [ref.url for ref in convert_messages(request)[1]]


@pytest.mark.parametrize(
    "part",
    [
        make_picture_part(URL),
        {"type": "video_url", "video_url": {"url": URL}},
        {"type": "audio_url", "audio_url": {"url": URL}},
        {"type": "file", "file": {"file_data": URL}},
    ],
    ids=["image", "video", "audio", "file"],
)
def test_a_long_data_url_is_a_view_of_the_body(part: dict[str, Any]):
    body_bytes = build_body({"type": "text", "text": "what?"}, part)

    [url] = list_urls(parse_chat_media(body_bytes))

    assert isinstance(url, EncodedUrl)
    assert url.encoded.obj is body_bytes
    assert decode_data_url(url, LIMIT) == decode_data_url(URL, LIMIT)


def test_several_are_each_in_their_place_and_short_ones_are_text():
    other_urls = [
        f"data:image/{kind};base64,{base64.b64encode(DATA[at:]).decode()}" for at, kind in enumerate(["gif", "webp"])
    ]
    short = "data:image/png;base64,AAAA"
    cut_urls = list_urls(
        parse_chat_media(
            build_body(make_picture_part(URL), make_picture_part(short), *map(make_picture_part, other_urls))
        )
    )

    assert [type(url) for url in cut_urls] == [EncodedUrl, str, EncodedUrl, EncodedUrl]
    assert [decode_data_url(url, LIMIT) for url in cut_urls] == [
        decode_data_url(url, LIMIT) for url in (URL, short, *other_urls)
    ]


def test_a_data_url_that_is_quoted_in_a_text_stays_there():
    body_bytes = build_body({"type": "text", "text": f'see "{URL}"'}, make_picture_part(URL))

    request = parse_chat_media(body_bytes)

    assert convert_messages(request)[0] == convert_messages(parse_chat(body_bytes))[0]
    assert isinstance(list_urls(request)[0], EncodedUrl)


@pytest.mark.parametrize(
    "body_bytes",
    [
        build_body(make_picture_part("https://example.com/a.png"), {"type": "text", "text": "x" * 2 * MIN_CUT_BYTES}),
        build_body({"type": "text", "text": URL}, make_picture_part(URL)),
        build_body(make_picture_part(URL), metadata={"url": URL}),
        build_body(make_picture_part(URL)).replace(b"AAEC", b"\\u0041AEC", 1),
        build_body(make_picture_part(URL)).replace(b"/", b"\\/"),
        build_body(make_picture_part(URL)).replace(b'"data:image', b'"\\u0064ata:image'),
        build_body(make_picture_part("x" + URL)),
    ],
    ids=["a long text", "a url as text", "a url elsewhere", "an escape", "slashes", "a scheme", "no scheme"],
)
def test_what_is_no_plain_data_url_of_media_is_parsed_as_it_came(body_bytes: bytes):
    cut_request, whole_request = parse_chat_media(body_bytes), parse_chat(body_bytes)

    assert list_urls(cut_request) == list_urls(whole_request)
    assert not any(isinstance(url, EncodedUrl) for url in list_urls(cut_request))
    assert msgspec.json.encode(cut_request) == msgspec.json.encode(whole_request)


@pytest.mark.parametrize(
    "body_bytes",
    [
        build_body(make_picture_part(URL), nonsense=1),
        build_body(make_picture_part(URL))[:-2],
        build_body(make_picture_part(URL))[: -MIN_CUT_BYTES // 2],
        build_body({"type": "image_url", "image_url": URL}),
        build_body(make_picture_part(URL), temperature=9),
    ],
    ids=["a field", "no end", "cut short", "no object", "a value"],
)
def test_what_is_wrong_with_a_body_is_said_as_without_a_cut(body_bytes: bytes):
    with pytest.raises(OmnibusError) as whole_error:
        parse_chat(body_bytes)
    with pytest.raises(OmnibusError) as cut_error:
        parse_chat_media(body_bytes)

    assert (type(cut_error.value), str(cut_error.value), cut_error.value.param) == (
        type(whole_error.value),
        str(whole_error.value),
        whole_error.value.param,
    )


@pytest.mark.parametrize("wrong", ["*", "é", "\n", "="], ids=["letter", "no ascii", "line", "padding"])
def test_what_is_no_base64_is_refused_with_its_place(wrong: str):
    [ref] = convert_messages(parse_chat_media(build_body(make_picture_part(URL[:-8] + wrong + URL[-7:]))))[1]

    with pytest.raises(BadRequest) as error:
        decode_data_url(ref.url, LIMIT, ref.param)

    assert error.value.param == "messages[0].content[0].image_url.url"


HEADERS = [
    "data:video/webm;base64,",
    "data:video/webm;codecs=vp8,opus;base64,",
    'data:video/webm;codecs="vp8,opus";base64,',
    "data:audio/ogg; codecs=opus;base64,",
    'data:video/mp4; codecs="avc1.42E01E, mp4a.40.2"; base64,',
    "data:video/webm;codecs=vp9;name=a,b.webm;base64,",
    "DATA:Video/WebM;CODECS=VP8,OPUS;BASE64,",
    "data:;base64,",
    "data:image/png;base64 ,",
    "data:video/webm;codecs=vp8,opus,",
    "data:video/webm,codecs;base64,",
    "data:video;base64,",
    "data:video/webm;base64;base64,",
    f"data:video/webm;name={'n' * 900};base64,",
    f"data:video/webm;name={'n' * 1100};base64,",
]
#: Data in its usual form and in other accepted ones, and invalid base64.
FORMS = {
    "plain": lambda data: base64.b64encode(data).decode(),
    "without padding": lambda data: base64.b64encode(data).decode().rstrip("="),
    "in the alphabet of URLs": lambda data: base64.urlsafe_b64encode(data).decode(),
    "with line breaks": lambda data: base64.encodebytes(data).decode(),
    "with blanks": lambda data: base64.encodebytes(data).decode().replace("\n", " "),
    "percent-encoded": lambda data: base64.b64encode(data).decode().replace("+", "%2B").replace("=", "%3D"),
    "spoilt": lambda data: base64.b64encode(data).decode()[:-4] + "!!!!",
}
ESCAPES = {"as it is": lambda text: text, "slashes": lambda text: text.replace("/", "\\/")}


def decode_sent(body_bytes: bytes) -> Any:
    try:
        [url] = list_urls(parse_chat_media(body_bytes))
        return decode_data_url(url, LIMIT)
    except OmnibusError as error:
        return error.code


@pytest.mark.behaviour(
    "Chromium (MediaRecorder, FileReader)",
    "writes data URLs such as data:video/webm;codecs=vp8,opus;base64,... whose comma ends the header by RFC 2397",
    "reads a comma inside a parameter of base64 as part of the header",
    source="RFC 2397; the Fetch standard, data: URL processor",
)
@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("form", FORMS)
def test_a_data_url_is_read_alike_below_and_above_the_size_of_a_cut(header: str, form: str):
    answers = []
    for data in (DATA[:1000], DATA[: MIN_CUT_BYTES * 3 // 4 - 100], DATA):
        for escape in ESCAPES.values():
            body_bytes = escape(build_body(make_picture_part(header + FORMS[form](data))).decode()).encode()
            answer = decode_sent(body_bytes)
            answers.append(answer if isinstance(answer, str) else (answer.declared, answer.data == data))

    assert len(set(answers)) == 1
    if HEADERS.index(header) < 9 and form != "spoilt":
        assert answers[0][1] is True


def test_a_raw_line_break_in_long_data_is_refused_as_in_short_data():
    for data in (DATA[:1000], DATA):
        body_bytes = build_body(
            make_picture_part(f"data:image/png;base64,{base64.encodebytes(data).decode()}")
        ).replace(b"\\n", b"\n")
        with pytest.raises(BadRequest, match="not valid JSON"):
            decode_data_url(list_urls(parse_chat_media(body_bytes))[0], LIMIT)
