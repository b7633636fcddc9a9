"""Conversion of a request to messages and a list of media."""

import json
from typing import Any

import pytest

from omnibus.errors import BadRequest
from omnibus_gateway.openai.messages import MediaRef, convert_messages
from omnibus_gateway.openai.parse import parse_chat


def convert_chat(*messages: dict[str, Any]) -> tuple[list[dict[str, Any]], list[MediaRef]]:
    return convert_messages(parse_chat(json.dumps({"model": "m", "messages": messages}).encode()))


def test_text_stays_text_and_developer_becomes_system() -> None:
    messages, items = convert_chat(
        {"role": "developer", "content": "d"},
        {"role": "system", "content": [{"type": "text", "text": "s"}]},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": [{"type": "text", "text": "b"}, {"type": "refusal", "refusal": "no"}]},
        {"role": "assistant", "content": None, "refusal": "never"},
    )

    assert messages == [
        {"role": "system", "content": "d"},
        {"role": "system", "content": [{"type": "text", "text": "s"}]},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "no"}]},
        {"role": "assistant", "content": "never"},
    ]
    assert items == []


def test_media_are_listed_in_order_of_appearance_across_messages() -> None:
    messages, items = convert_chat(
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": "https://a/1.png"}},
                {"type": "text", "text": "and"},
                {"type": "input_audio", "input_audio": {"data": "AAEC", "format": "wav"}},
            ],
        },
        {"role": "assistant", "content": "ok"},
        {
            "role": "user",
            "content": [
                {"type": "video_url", "video_url": {"url": "https://a/2.mp4"}},
                {"type": "audio_url", "audio_url": {"url": "https://a/3.ogg"}},
            ],
        },
    )

    assert messages[0]["content"] == [{"type": "image"}, {"type": "text", "text": "and"}, {"type": "audio"}]
    assert messages[2]["content"] == [{"type": "video"}, {"type": "audio"}]
    assert items == [
        MediaRef("image", url="https://a/1.png", param="messages[0].content[0].image_url.url"),
        MediaRef("audio", data="AAEC", declared="wav", param="messages[0].content[2].input_audio.data"),
        MediaRef("video", url="https://a/2.mp4", param="messages[2].content[0].video_url.url"),
        MediaRef("audio", url="https://a/3.ogg", param="messages[2].content[1].audio_url.url"),
    ]


@pytest.mark.parametrize(
    ("file", "param"),
    [
        ({}, "messages[0].content[0].file"),
        ({"file_id": "f", "file_data": "data:image/png;base64,AA"}, "messages[0].content[0].file"),
        ({"file_data": "data:application/pdf;base64,AA"}, "messages[0].content[0].file.file_data"),
    ],
)
def test_a_file_part_that_is_no_medium_is_refused_by_its_place(file: dict[str, str], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        convert_chat({"role": "user", "content": [{"type": "file", "file": file}]})

    assert caught.value.param == param
