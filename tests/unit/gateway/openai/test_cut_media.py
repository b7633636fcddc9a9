"""Long data URLs become views of the body; all other bodies are parsed as usual."""

import base64
import json
from typing import Any

import msgspec
import pytest

from omnibus.errors import BadRequest, OmnibusError
from omnibus_gateway.media.data_url import decode_data_url
from omnibus_gateway.openai.chat_request import ChatRequest
from omnibus_gateway.openai.cut_media import MIN_CUT_BYTES, parse_chat_media
from omnibus_gateway.openai.encoded_url import EncodedUrl
from omnibus_gateway.openai.messages import convert_messages
from omnibus_gateway.openai.parse import parse_chat

DATA = bytes(range(256)) * (MIN_CUT_BYTES // 128)
LONG = base64.b64encode(DATA).decode()
URL = f"data:image/png;base64,{LONG}"
LIMIT = 1 << 30


def body(*parts: Any, **more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": list(parts)}], **more}).encode()


def picture(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def urls(request: ChatRequest) -> list[str]:
    return [ref.url for ref in convert_messages(request)[1]]


@pytest.mark.parametrize(
    "part",
    [
        picture(URL),
        {"type": "video_url", "video_url": {"url": URL}},
        {"type": "audio_url", "audio_url": {"url": URL}},
        {"type": "file", "file": {"file_data": URL}},
    ],
    ids=["image", "video", "audio", "file"],
)
def test_a_long_data_url_is_a_view_of_the_body(part: dict[str, Any]):
    sent = body({"type": "text", "text": "what?"}, part)

    [url] = urls(parse_chat_media(sent))

    assert isinstance(url, EncodedUrl)
    assert url.encoded.obj is sent
    assert decode_data_url(url, LIMIT) == decode_data_url(URL, LIMIT)


def test_several_are_each_in_their_place_and_short_ones_are_text():
    others = [
        f"data:image/{kind};base64,{base64.b64encode(DATA[at:]).decode()}" for at, kind in enumerate(["gif", "webp"])
    ]
    short = "data:image/png;base64,AAAA"
    found = urls(parse_chat_media(body(picture(URL), picture(short), *map(picture, others))))

    assert [type(url) for url in found] == [EncodedUrl, str, EncodedUrl, EncodedUrl]
    assert [decode_data_url(url, LIMIT) for url in found] == [
        decode_data_url(url, LIMIT) for url in (URL, short, *others)
    ]


def test_a_data_url_that_is_quoted_in_a_text_stays_there():
    sent = body({"type": "text", "text": f'see "{URL}"'}, picture(URL))

    request = parse_chat_media(sent)

    assert convert_messages(request)[0] == convert_messages(parse_chat(sent))[0]
    assert isinstance(urls(request)[0], EncodedUrl)


@pytest.mark.parametrize(
    "sent",
    [
        body(picture("https://example.com/a.png"), {"type": "text", "text": "x" * 2 * MIN_CUT_BYTES}),
        body({"type": "text", "text": URL}, picture(URL)),
        body(picture(URL), metadata={"url": URL}),
        body(picture(URL)).replace(b"AAEC", b"\\u0041AEC", 1),
        body(picture(URL)).replace(b"/", b"\\/"),
        body(picture(URL)).replace(b'"data:image', b'"\\u0064ata:image'),
        body(picture("x" + URL)),
    ],
    ids=["a long text", "a url as text", "a url elsewhere", "an escape", "slashes", "a scheme", "no scheme"],
)
def test_what_is_no_plain_data_url_of_media_is_parsed_as_it_came(sent: bytes):
    found, expected = parse_chat_media(sent), parse_chat(sent)

    assert urls(found) == urls(expected)
    assert not any(isinstance(url, EncodedUrl) for url in urls(found))
    assert msgspec.json.encode(found) == msgspec.json.encode(expected)


@pytest.mark.parametrize(
    "sent",
    [
        body(picture(URL), nonsense=1),
        body(picture(URL))[:-2],
        body(picture(URL))[: -MIN_CUT_BYTES // 2],
        body({"type": "image_url", "image_url": URL}),
        body(picture(URL), temperature=9),
    ],
    ids=["a field", "no end", "cut short", "no object", "a value"],
)
def test_what_is_wrong_with_a_body_is_said_as_without_a_cut(sent: bytes):
    with pytest.raises(OmnibusError) as expected:
        parse_chat(sent)
    with pytest.raises(OmnibusError) as found:
        parse_chat_media(sent)

    assert (type(found.value), str(found.value), found.value.param) == (
        type(expected.value),
        str(expected.value),
        expected.value.param,
    )


@pytest.mark.parametrize("wrong", ["*", "é", "\n", "="], ids=["letter", "no ascii", "line", "padding"])
def test_what_is_no_base64_is_refused_with_its_place(wrong: str):
    [ref] = convert_messages(parse_chat_media(body(picture(URL[:-8] + wrong + URL[-7:]))))[1]

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


def decode_sent(sent: bytes) -> Any:
    try:
        [url] = urls(parse_chat_media(sent))
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
            sent = escape(body(picture(header + FORMS[form](data))).decode()).encode()
            answer = decode_sent(sent)
            answers.append(answer if isinstance(answer, str) else (answer.declared, answer.data == data))

    assert len(set(answers)) == 1
    if HEADERS.index(header) < 9 and form != "spoilt":
        assert answers[0][1] is True


def test_a_raw_line_break_in_long_data_is_refused_as_in_short_data():
    for data in (DATA[:1000], DATA):
        sent = body(picture(f"data:image/png;base64,{base64.encodebytes(data).decode()}")).replace(b"\\n", b"\n")
        with pytest.raises(BadRequest, match="not valid JSON"):
            decode_data_url(urls(parse_chat_media(sent))[0], LIMIT)
