"""The composite tasks that serve models."""

from typing import Any

import msgspec
import numpy as np
import pytest
from pydantic import ValidationError

from omnibus.errors import BadRequest
from omnibus.graph import HANDLE, make_ref
from omnibus.task import (
    MLLM,
    Audio,
    ChatInput,
    ChatOutput,
    Encode,
    Omni,
    Talk,
    TextChunk,
    Think,
    Vocode,
    record,
    replay,
)
from omnibus.task.library import (
    Codes,
    DecodeAudio,
    DecodeImage,
    DecodeVideo,
    Denoise,
    DrawInput,
    EditInput,
    ImageEdit,
    ImageGeneration,
    Say,
    Speech,
    SpeechInput,
    TextEncode,
    VideoGeneration,
    VideoInput,
)
from omnibus_gateway.apps import graph_submission

SEES = {"image": Encode(model="m", component="vision"), "video": Encode(model="m", component="vision")}
HEARS = {**SEES, "audio": Encode(model="m", component="audio")}
THINKS = Think(model="m", component="thinker")
VL = MLLM(encoders=SEES, thinker=THINKS)
OMNI = Omni(
    encoders=HEARS, thinker=THINKS, talker=Talk(model="m", component="talker"),
    vocoder=Vocode(model="m", component="vocoder"),
)  # fmt: skip
IMAGES = ImageGeneration(text_encoder=TextEncode(), denoiser=Denoise(), decoder=DecodeImage())
EDITS = ImageEdit(
    vision=Encode(component="vision"), vae_encoder=Encode(component="vae_encoder"), text_encoder=TextEncode(),
    denoiser=Denoise(), decoder=DecodeImage(),
)  # fmt: skip
VIDEOS = VideoGeneration(text_encoder=TextEncode(), denoiser=Denoise(), decoder=DecodeVideo(), sound=DecodeAudio())


def make_media(content: str) -> dict[str, Any]:
    return {HANDLE: {"offset": 64}, "modality": "image", "sha256": content}


def make_chat(*modalities: str, **more: Any) -> ChatInput:
    items = tuple(make_media(str(index)) for index in range(len(modalities)))
    usual = {"messages": [{"role": "user", "content": "hi"}], "params": {"max_tokens": 4}}
    return ChatInput(**{**usual, "media": items, "modalities": modalities, **more})


def list_components(recording: Any) -> list[str]:
    return [node.component for node in recording.nodes]


# Chats


def test_text_alone_is_one_call():
    recording = record(VL.invoke, make_chat())

    assert list_components(recording) == ["thinker"]
    assert recording.nodes[0].inputs == {
        "messages": [{"role": "user", "content": "hi"}], "items": [], "params": {"max_tokens": 4},
    }  # fmt: skip
    assert recording.outputs == ((0, "text"),)


def test_media_are_encoded_in_their_order_and_the_thinker_gets_all():
    recording = record(OMNI.invoke, make_chat("image", "audio", "video", tokens=(5, 6, 7), answer=100))

    assert list_components(recording) == ["vision", "audio", "vision", "thinker"]
    assert recording.nodes[3].inputs["items"] == [make_ref(index, "embedding") for index in range(3)]
    assert recording.nodes[1].inputs == {"media": make_media("1")}
    assert recording.work == (5, 6, 7, 5 + 6 + 7 + 32 + 100)


def test_speech_adds_talker_and_vocoder_in_a_chain_of_streams():
    recording = record(OMNI.invoke, make_chat("image", voice="Ethan", speech={"max_codes": 9}))

    assert list_components(recording) == ["vision", "thinker", "talker", "vocoder"]
    assert recording.nodes[2].uses == ((1, "prompt"), (1, "layout"), (1, "rows"))
    assert recording.nodes[2].inputs["voice"] == recording.nodes[3].inputs["voice"] == "Ethan"
    assert recording.nodes[3].uses == ((2, "codes"),)
    assert recording.outputs == ((1, "text"), (3, "audio"))


def test_an_omni_model_that_is_not_asked_to_speak_does_not():
    assert list_components(record(OMNI.invoke, make_chat())) == ["thinker"]


def test_a_modality_that_the_model_does_not_take_is_a_bad_request():
    with pytest.raises(BadRequest, match=r"takes no audio input \(it takes: image, video\)") as caught:
        record(VL.invoke, make_chat("audio"))

    assert caught.value.param == "messages"


def test_messages_that_were_encoded_before_replay_alike():
    request = make_chat(messages=msgspec.Raw(b'[{"role":"user"}]'))
    recording = record(VL.invoke, request)

    answer = replay(VL.invoke, request, recording, {})

    assert answer.text.origin == (0, "text")
    assert answer.audio is None


def test_equal_unit_tasks_are_shared_by_composites():
    other = MLLM(encoders={}, thinker=Think(model="m", component="thinker"))

    assert record(other.invoke, make_chat()).nodes == record(OMNI.invoke, make_chat()).nodes


@pytest.mark.parametrize(
    ("how", "pin"),
    [({}, ""), ({"encoder_fission": True}, "apart"), ({"encoder_fission": False}, "together"), ({"path": "E>L"}, "path:E>L")],
)  # fmt: skip
def test_a_composite_may_ask_for_its_path(how: dict[str, Any], pin: str):
    task = OMNI.model_copy(update=how)

    assert set(record(task.invoke, make_chat("image", speech={})).pins) == {pin}


def test_a_chat_is_asked_in_plain_words():
    request = ChatInput.of("hi", system="be brief", max_tokens=9, temperature=0.0)

    assert request.messages == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    assert (request.params, request.answer) == ({"max_tokens": 9, "temperature": 0.0}, 9)
    with pytest.raises(ValidationError):
        ChatInput(messages=[], colour=1)  # type: ignore[call-arg]


def test_an_app_may_change_the_words_of_an_answer():
    class LoudMLLM(MLLM):
        def invoke(self, request: ChatInput) -> ChatOutput:
            return ChatOutput(text=super().invoke(request).text.transform(lambda chunk: chunk.text.upper()))

    loud = LoudMLLM(encoders={}, thinker=THINKS)
    recording = record(loud.invoke, make_chat())

    assert recording.outputs == ((0, "text"),)
    assert replay(loud.invoke, make_chat(), recording, {}).text.transform_count == 1


def test_parts_of_answers_are_joined():
    assert TextChunk.join([TextChunk(text="a"), TextChunk(text="b", finish_reason="stop")]) == "ab"
    assert Codes.join([Codes(codes=[1, 2]), Codes(codes=[3])]) == [1, 2, 3]
    sound = Audio.join([Audio(rate=8000, array=np.ones(2)), Audio(rate=8000), Audio(rate=8000, array=np.zeros(1))])
    assert (sound.rate, sound.array.tolist()) == (8000, [1, 1, 0])
    assert Audio.join([]).array.shape == (0,)


# Speech, images, video


def test_text_to_speech_is_a_chain_of_streams():
    task = Speech(speaker=Say(model="s"), vocoder=Vocode(model="s"))

    recording = record(task.invoke, SpeechInput(text="hi", voice="low", codes=50))

    assert [node.task for node in recording.nodes] == ["say-s", "vocode-s"]
    assert recording.nodes[0].inputs == {"text": "hi", "voice": "low", "params": {}}
    assert (recording.work, recording.outputs) == ((50, 50), ((1, "audio"),))


def test_a_prompt_is_encoded_once_for_all_its_pictures():
    recording = record(IMAGES.invoke, DrawInput(prompt="a boat", n=2, width=64, height=32, steps=3))

    assert list_components(recording) == ["text-encode", "denoise", "denoise", "decode-image", "decode-image"]
    assert [node.salt for node in recording.nodes] == [0, 0, 1, 0, 0]
    assert recording.nodes[4].inputs == {"latents": make_ref(2, "latents")}
    assert recording.outputs == ((3, "image"), (4, "image"))
    assert recording.work[1] == 64 * 32 // 256 * 3


def test_a_picture_whose_size_nobody_says_is_as_large_as_the_model_makes_it():
    recording = record(IMAGES.invoke, DrawInput(prompt="a boat", steps=3))

    assert (recording.nodes[1].inputs["width"], recording.nodes[1].inputs["height"]) == (0, 0)
    assert recording.work[1] == 1024 * 1024 // 256 * 3


@pytest.mark.parametrize(
    ("more", "outputs"),
    [
        ({}, ((2, "image"),)),
        ({"progress": True}, ((2, "image"), (1, "progress"))),
        ({"previews": 5}, ((2, "image"), (1, "preview"))),
    ],
)
def test_steps_and_previews_are_told_where_they_are_asked_for(more: dict[str, Any], outputs: Any):
    recording = record(IMAGES.invoke, DrawInput(prompt="a", **more))

    assert recording.outputs == outputs
    assert recording.nodes[1].inputs.get("every", 1) == more.get("previews", 1)


def test_each_picture_of_a_seed_has_a_seed_of_its_own():
    recording = record(IMAGES.invoke, DrawInput(prompt="a", n=2, seed=7))

    assert [node.inputs.get("seed") for node in recording.nodes[1:3]] == [7, 8]
    assert "seed" not in record(IMAGES.invoke, DrawInput(prompt="a")).nodes[1].inputs


@pytest.mark.parametrize(("guidance", "negative"), [(None, "blur"), (4.0, "blur"), (1.0, None)])
def test_a_negative_prompt_is_encoded_where_it_guides(guidance: float | None, negative: str | None):
    recording = record(IMAGES.invoke, DrawInput(prompt="a", negative_prompt="blur", guidance=guidance))

    assert recording.nodes[0].inputs.get("negative_prompt") == negative


def test_a_picture_that_is_edited_is_seen_by_who_reads_and_by_who_paints():
    recording = record(
        EDITS.invoke, EditInput(image=make_media("a"), prompt="red", negative_prompt="blur", n=2, steps=3)
    )

    assert list_components(recording) == [
        "vision", "text-encode", "vae_encoder", "denoise", "denoise", "decode-image", "decode-image",
    ]  # fmt: skip
    assert recording.nodes[0].inputs == recording.nodes[2].inputs == {"media": make_media("a")}
    assert recording.nodes[1].inputs == {
        "prompt": "red", "negative_prompt": "blur", "items": [make_ref(0, "embedding")],
    }  # fmt: skip
    assert recording.nodes[4].inputs["image"] == make_ref(2, "embedding")
    assert (recording.nodes[4].inputs["width"], recording.nodes[4].inputs["height"]) == (0, 0)
    assert recording.outputs == ((5, "image"), (6, "image"))
    assert recording.work[3] == 2 * 1024 * 1024 // 256 * 3


@pytest.mark.parametrize(
    ("more", "outputs"),
    [
        ({}, ((2, "frames"), (1, "progress"))),
        ({"progress": False}, ((2, "frames"),)),
        ({"sound": True, "progress": False}, ((3, "frames"), (2, "audio"))),
    ],
)
def test_a_video_has_frames_and_what_else_was_asked_for(more: dict[str, Any], outputs: Any):
    assert record(VIDEOS.invoke, VideoInput(prompt="a", **more)).outputs == outputs


@pytest.mark.parametrize(("guidance", "negative"), [(None, "blur"), (3.0, "blur"), (1.0, None)])
def test_a_film_has_a_seed_and_a_negative_prompt_where_it_guides(guidance: float | None, negative: str | None):
    recording = record(VIDEOS.invoke, VideoInput(prompt="a", negative_prompt="blur", guidance=guidance, seed=3, fps=12))

    assert recording.nodes[0].inputs.get("negative_prompt") == negative
    assert (recording.nodes[1].inputs["seed"], recording.nodes[1].inputs["fps"]) == (3, 12)


@pytest.mark.parametrize(
    ("task", "request_"),
    [
        (IMAGES, DrawInput(prompt="a", width=10**5, height=10**5, steps=1000)),
        (EDITS, EditInput(prompt="a", image=make_media("a"), width=10**5, height=10**5, steps=1000)),
        (VIDEOS, VideoInput(prompt="a", width=10**5, height=10**5, steps=1000, seconds=3600)),
    ],
)
def test_no_wish_is_a_larger_load_than_may_be_told(task: Any, request_: Any):
    assert max(record(task.invoke, request_).work) == graph_submission.MAX_WORK_TOKENS


def test_a_video_has_one_frame_more_than_groups_of_eight():
    assert VideoInput(prompt="a", seconds=4, fps=24).frames == 97
    assert VideoInput(prompt="a", seconds=0.1, fps=8).frames == 1
