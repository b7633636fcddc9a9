"""The composite tasks that models are served by."""

from typing import Any

import msgspec
import pytest

from omnibus.errors import BadRequest
from omnibus.graph import HANDLE, ref
from omnibus.task import MLLM, ChatInput, Encode, Omni, Talk, Think, Vocode, record, replay
from tests.unit.task.tasks import Result

SEES = {"image": Encode(model="m", component="vision"), "video": Encode(model="m", component="vision")}
HEARS = {**SEES, "audio": Encode(model="m", component="audio")}
THINKS = Think(model="m", component="thinker")
VL = MLLM(encoders=SEES, thinker=THINKS)
OMNI = Omni(
    encoders=HEARS, thinker=THINKS, talker=Talk(model="m", component="talker"),
    vocoder=Vocode(model="m", component="vocoder"),
)  # fmt: skip


def media(content: str) -> dict[str, Any]:
    return {HANDLE: {"offset": 64}, "modality": "image", "sha256": content}


def asked(*modalities: str, **more: Any) -> ChatInput:
    items = tuple(media(str(index)) for index in range(len(modalities)))
    return ChatInput([{"role": "user", "content": "hi"}], items, modalities, {"max_tokens": 4}, **more)


def components(recording: Any) -> list[str]:
    return [node.component for node in recording.nodes]


def test_text_alone_is_one_call():
    recording = record(VL.invoke, asked())

    assert components(recording) == ["thinker"]
    assert recording.nodes[0].inputs == {
        "messages": [{"role": "user", "content": "hi"}], "items": [], "params": {"max_tokens": 4},
    }  # fmt: skip
    assert recording.outputs == ((0, "text"),)


def test_media_are_encoded_in_their_order_and_the_thinker_gets_all():
    recording = record(OMNI.invoke, asked("image", "audio", "video"))

    assert components(recording) == ["vision", "audio", "vision", "thinker"]
    assert recording.nodes[3].inputs["items"] == [ref(index, "embedding") for index in range(3)]
    assert recording.nodes[1].inputs == {"media": media("1")}


def test_speech_adds_talker_and_vocoder_in_a_chain_of_streams():
    recording = record(OMNI.invoke, asked("image", voice="Ethan", speech={"max_codes": 9}))

    assert components(recording) == ["vision", "thinker", "talker", "vocoder"]
    assert recording.nodes[2].uses == ((1, "prompt"), (1, "layout"), (1, "rows"))
    assert recording.nodes[2].inputs["voice"] == "Ethan"
    assert recording.nodes[3].uses == ((2, "codes"),)
    assert recording.outputs == ((1, "text"), (3, "audio"))


def test_an_omni_model_that_is_not_asked_to_speak_does_not():
    assert components(record(OMNI.invoke, asked())) == ["thinker"]


def test_a_modality_that_the_model_does_not_take_is_a_bad_request():
    with pytest.raises(BadRequest, match=r"takes no audio input \(it takes: image, video\)") as caught:
        record(VL.invoke, asked("audio"))

    assert caught.value.param == "messages"


def test_messages_that_were_encoded_before_replay_alike():
    request = ChatInput(msgspec.Raw(b'[{"role":"user"}]'), (), (), {}, "")
    recording = record(VL.invoke, request)

    answer = replay(VL.invoke, request, recording.nodes, {(0, "text"): Result(0, "text")})

    assert answer.text.origin == (0, "text")
    assert answer.audio is None


def test_equal_unit_tasks_are_shared_by_composites():
    other = MLLM(encoders={}, thinker=Think(model="m", component="thinker"))

    assert record(other.invoke, asked()).nodes == record(OMNI.invoke, asked()).nodes
