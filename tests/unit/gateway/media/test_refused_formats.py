"""Routes list the accepted formats when they reject media. Errors list the allowed parts of a place."""

import base64
import json
from typing import Any, get_args

import pytest

from omnibus.errors import BadMedia, BadRequest
from omnibus_gateway.media.inspect import FORMATS, inspect_media, list_formats, sniff_content
from omnibus_gateway.openai.chat_request import InputFormat
from omnibus_gateway.openai.parse import parse_chat
from tests.unit.gateway.house import OMNI, VL, ToyGateway, make_text_part, read_error_body
from tests.unit.gateway.samples import make_sample_picture, make_sample_sound, make_sample_video

#: Files of formats that are not accepted: JPEG 2000, JPEG XL, SVG, PDF, ICO, MPEG-TS, FLV, MIDI, and no format at all.
UNKNOWN = {
    "jp2": b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(40),
    "jxl": b"\0\0\0\x0cJXL \r\n\x87\n" + bytes(40),
    "svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    "pdf": b"%PDF-1.7\n",
    "ico": b"\0\0\1\0\1\0" + bytes(40),
    "ts": (b"G" + bytes(187)) * 4,
    "flv": b"FLV\1\5\0\0\0\x09" + bytes(40),
    "midi": b"MThd\0\0\0\6\0\1\0\1\0\x60",
    "html": b"<html>not found</html>",
    "empty": b"",
}


@pytest.mark.parametrize("modality", ["image", "audio", "video"])
@pytest.mark.parametrize("kind", UNKNOWN)
def test_an_unknown_format_is_refused_with_those_that_are_accepted(modality: str, kind: str):
    with pytest.raises(BadMedia, match=f"Accepted formats of {modality}: ") as caught:
        inspect_media(UNKNOWN[kind], modality)

    assert list_formats(modality) in caught.value.message


@pytest.mark.parametrize(
    ("data", "modality", "name"),
    [
        (make_sample_picture("PNG"), "audio", "PNG"),
        (make_sample_picture("PNG"), "video", "PNG"),
        (make_sample_sound("wav", "pcm_s16le", 0.1), "image", "WAV"),
        (make_sample_sound("flac", "flac", 0.1), "video", "FLAC"),
        (make_sample_video("mp4", "mpeg4", frames=2), "image", "MP4"),
    ],
)
def test_a_file_of_another_kind_is_refused_by_its_name(data: bytes, modality: str, name: str):
    with pytest.raises(BadMedia, match=f"item is {name}. Accepted formats of {modality}: "):
        inspect_media(data, modality)


def test_a_damaged_header_and_a_video_without_frames_are_refused_with_the_list():
    for data, modality in ((make_sample_picture("PNG")[:20], "image"), (make_sample_sound("mp4", "aac", 0.2), "video")):
        with pytest.raises(BadMedia, match=f"Accepted formats of {modality}: "):
            inspect_media(data, modality)


def test_audio_may_be_called_by_each_of_its_names():
    assert {*get_args(InputFormat)} == {name for each in FORMATS.values() for name in each.short}


@pytest.mark.parametrize(
    ("format", "data"),
    [
        ("webm", make_sample_sound("webm", "libopus", 0.2, live="1")),
        ("webm", make_sample_sound("matroska", "libopus", 0.2)),
        ("mp4", make_sample_sound("mp4", "aac", 0.2)),
        ("mp4", make_sample_sound("ipod", "aac", 0.2)),
        ("m4a", make_sample_sound("ipod", "aac", 0.2)),
        ("mp4", make_sample_sound("mp4", "libopus", 0.2, movflags="frag_keyframe+empty_moov")),
        ("ogg", make_sample_sound("ogg", "libopus", 0.2)),
        ("mp4", make_sample_video("mp4", "mpeg4", audio="aac")),
    ],
)
def test_recordings_of_browsers_are_accepted_by_their_names(format: str, data: bytes):
    body = {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AA==", "format": format}}]}]}  # fmt: skip

    assert parse_chat(encode_body(model="m", **body)).model == "m"
    assert inspect_media(data, "audio", format).seconds is not None


def test_a_container_of_video_that_has_none_is_audio():
    assert sniff_content(make_sample_sound("webm", "libopus", 0.2)) == "audio/webm"
    assert sniff_content(make_sample_sound("mp4", "aac", 0.2)) == "audio/mp4"
    assert sniff_content(make_sample_video("mp4", "mpeg4", audio="aac")) == "video/mp4"


# Routes


def data_url(data: bytes) -> str:
    return f"data:application/octet-stream;base64,{base64.b64encode(data).decode()}"


@pytest.mark.parametrize("modality", ["image", "video", "audio"])
async def test_a_chat_lists_the_formats(home: ToyGateway, modality: str):
    await home.all_of(OMNI)
    part = {"type": f"{modality}_url", f"{modality}_url": {"url": data_url(UNKNOWN["ts"])}}

    response = await home.ask(OMNI, [make_text_part("what?"), part])

    assert response.status_code == 400, response.text
    assert list_formats(modality) in read_error_body(response)["message"]
    await home.emptied()


async def test_input_audio_lists_formats_and_names(home: ToyGateway):
    await home.all_of(OMNI)
    unknown = {
        "type": "input_audio",
        "input_audio": {"data": base64.b64encode(UNKNOWN["flv"]).decode(), "format": "mp3"},
    }
    part = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wma"}}

    assert list_formats("audio") in read_error_body(await home.ask(OMNI, [unknown]))["message"]
    assert "webm" in read_error_body(await home.ask(OMNI, [part]))["message"]
    await home.emptied()


async def test_responses_and_transcriptions_list_the_formats(home: ToyGateway):
    await home.all_of(OMNI)
    content = [{"type": "input_image", "image_url": data_url(UNKNOWN["svg"])}]
    request = {"model": OMNI, "input": [{"role": "user", "content": content}]}

    response = await home.http.post("/v1/responses", json=request)
    assert (response.status_code, list_formats("image") in read_error_body(response)["message"]) == (400, True)
    response = await home.http.post(
        "/v1/audio/transcriptions", data={"model": OMNI}, files={"file": ("a.mid", UNKNOWN["midi"])}
    )
    assert (response.status_code, list_formats("audio") in read_error_body(response)["message"]) == (400, True)
    await home.emptied()


# Parts of messages


def encode_body(**body: Any) -> bytes:
    return json.dumps(body).encode()


CALL = {
    "role": "assistant",
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
USER_PARTS = {"text", "image_url", "video_url", "audio_url", "input_audio", "file"}
PARTS_OF_ROLES = {
    "system": {"text"},
    "developer": {"text"},
    "tool": {"text"},
    "assistant": {"text", "refusal"},
    "user": USER_PARTS,
}


REFUSED_PARTS = [
    (role, type) for role in PARTS_OF_ROLES for type in ("image_url", "nonsense") if type not in PARTS_OF_ROLES[role]
]


@pytest.mark.parametrize(("role", "type"), REFUSED_PARTS)
def test_a_refused_part_lists_what_its_message_may_have(role: str, type: str):
    message = {"role": role, "content": [{"type": type, "image_url": {"url": "data:,"}}], "tool_call_id": "c"}

    with pytest.raises(BadRequest) as caught:
        parse_chat(encode_body(model="m", messages=[{"role": "user", "content": "hi"}, CALL, message]))

    assert caught.value.param == "messages[2].content[0].type"
    part_types = caught.value.message.partition("it must be one of ")[2].rstrip(".").split(", ")
    assert {*part_types} == PARTS_OF_ROLES[role]


async def test_a_tool_message_with_an_image_says_that_it_takes_text(home: ToyGateway):
    await home.all_of(VL)
    content = [{"type": "image_url", "image_url": {"url": data_url(make_sample_picture("PNG"))}}]
    messages = [{"role": "user", "content": "hi"}, CALL, {"role": "tool", "tool_call_id": "c", "content": content}]

    response = await home.http.post("/v1/chat/completions", json={"model": VL, "messages": messages})

    assert response.status_code == 400
    assert read_error_body(response)["message"].endswith("it must be one of text.")
    await home.emptied()
