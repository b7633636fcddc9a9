"""Qwen2.5-VL in components answers like the whole model."""

from pathlib import Path
from typing import Any

import pytest
import torch

from omnibus.errors import BadRequest, ContextTooLong
from omnibus_models import families, media
from omnibus_models.contract import Encoded
from tests import models_oracle as oracle
from tests.close import assert_close
from tests.unit.models import files
from tests.unit.models.split import encode_files, think_greedily

IMAGE, VIDEO = {"type": "image"}, {"type": "video"}
TOKENS = 16


def make_text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def make_user_message(*parts: dict[str, str]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


CASES = {
    "text": ([{"role": "user", "content": "hello world, how are you today?"}], {}),
    "image": ([make_user_message(IMAGE, make_text("what is in this picture?"))], {"image": [files.make_picture(1)]}),
    "two images": (
        [make_user_message(IMAGE, make_text("and"), IMAGE, make_text("?"))],
        {"image": [files.make_picture(2), files.make_picture(3, 200, 120)]},
    ),
    "video": ([make_user_message(VIDEO, make_text("summarise the video please"))], {"video": [files.make_film(3)]}),
    "video between images": (
        [make_user_message(IMAGE, VIDEO, IMAGE, make_text("describe"))],
        {"image": [files.make_picture(4), files.make_picture(5)], "video": [files.make_film(2, 1)]},
    ),
    "several turns": (
        [
            {"role": "system", "content": "you are a small cat."},
            make_user_message(IMAGE, make_text("what is this?")),
            {"role": "assistant", "content": "a red square."},
            make_user_message(make_text("and this?"), IMAGE),
        ],
        {"image": [files.make_picture(6), files.make_picture(7)]},
    ),
}


@pytest.mark.numeric
@pytest.mark.parametrize("case", CASES)
def test_split_components_answer_like_the_whole_model(vl: Path, vl_parts: dict[str, Any], case: str) -> None:
    messages, media_files = CASES[case]

    thought = think_greedily(vl_parts["thinker"], [vl_parts["vision"]], messages, media_files, TOKENS)

    ids, words = oracle.vl_answer(vl, messages, media_files, TOKENS)
    assert thought.ids == ids
    assert vl_parts["thinker"].decode_ids(thought.ids) == words


@pytest.mark.numeric
@pytest.mark.parametrize("case", CASES)
def test_prompts_are_as_long_as_the_joint_processor_makes_them(vl: Path, vl_parts: dict[str, Any], case: str) -> None:
    messages, media_files = CASES[case]
    thinker = vl_parts["thinker"]
    prompt = thinker.prompt(messages)

    items = encode_files([vl_parts["vision"]], prompt.modalities, media_files)
    prefill = thinker.assemble_prefill(prompt, items)

    reference_ids = oracle.vl_inputs(vl, messages, media_files)["input_ids"][0]
    rows = thinker.embed(reference_ids)
    assert prefill.inputs.shape[0] == len(reference_ids)
    torch.testing.assert_close(prefill.inputs[~prefill.media], rows[~prefill.media], rtol=0, atol=0)
    assert int(prefill.media.sum()) == sum(item.meta["n_tokens"] for item in items)


@pytest.mark.numeric
def test_another_image_changes_the_answer(vl_parts: dict[str, Any]) -> None:
    messages = [make_user_message(IMAGE, make_text("describe the image"))]

    answers = [
        tuple(
            think_greedily(
                vl_parts["thinker"], [vl_parts["vision"]], messages, {"image": [files.make_picture(seed)]}, TOKENS
            ).ids
        )
        for seed in range(5)
    ]

    assert len(set(answers)) == 5


@pytest.mark.numeric
def test_requests_that_alternate_do_not_disturb_each_other(vl_parts: dict[str, Any]) -> None:
    thinker = vl_parts["thinker"]
    first = thinker.prompt([make_user_message(VIDEO, make_text("a"))])
    items = encode_files([vl_parts["vision"]], ["video"], {"video": [files.make_film(3)]})
    alone = thinker.assemble_prefill(first, items)

    thinker.assemble_prefill(thinker.prompt([make_user_message(make_text("hello"))]), [])
    again = thinker.assemble_prefill(first, items)

    assert again.delta == alone.delta != 0
    assert torch.equal(again.positions, alone.positions)


@pytest.mark.numeric
def test_a_batch_of_images_and_videos_equals_its_items_alone(vl_parts: dict[str, Any]) -> None:
    vision = vl_parts["vision"]
    sizes = [(56, 56), (60, 100), (140, 60), (112, 112), (200, 120)]
    batch = [vision.prepare(memoryview(files.make_picture(n, *size)), "image") for n, size in enumerate(sizes)]
    batch.insert(2, vision.prepare(memoryview(files.make_film(2)), "video"))

    together = vision.encode(batch)

    for one, item in zip(together, batch, strict=True):
        [alone] = vision.encode([item])
        assert one.meta == alone.meta == item.meta
        assert one.embeds.shape[0] == item.meta["n_tokens"]
        assert_close(one.embeds, alone.embeds)


def test_a_video_that_was_thinned_out_keeps_its_pace(vl: Path, vl_parts: dict[str, Any]) -> None:
    film = memoryview(files.make_film(10))
    thin = families.family_of(vl).load("vision", vl, limits=media.MediaDecodeLimits(sampled=8))

    whole, few = vl_parts["vision"].prepare(film, "video"), thin.prepare(film, "video")

    assert (whole.meta["grid_thw"][0], whole.meta["second_per_grid"]) == (10, 1.0)
    assert (few.meta["grid_thw"][0], few.meta["second_per_grid"]) == (4, 2.5)


def test_nothing_to_encode_is_nothing(vl_parts: dict[str, Any]) -> None:
    assert vl_parts["vision"].encode([]) == []


def test_a_vision_encoder_takes_no_audio(vl_parts: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="not audio"):
        vl_parts["vision"].prepare(memoryview(files.make_tone(1)), "audio")


@pytest.mark.numeric
def test_a_decode_step_with_a_mask_equals_one_without(vl_parts: dict[str, Any]) -> None:
    from transformers import DynamicCache

    thinker = vl_parts["thinker"]
    prefill = thinker.assemble_prefill(thinker.prompt([make_user_message(make_text("hello world"))]), [])
    size = prefill.inputs.shape[0]

    causal = torch.ones(size, size, dtype=torch.bool).tril()[None, None]
    masked_rows = thinker.forward(prefill.inputs[None], prefill.positions[:, None], DynamicCache(), causal)

    plain = thinker.forward(prefill.inputs[None], prefill.positions[:, None], DynamicCache(), None)
    assert_close(masked_rows, plain)


@pytest.mark.parametrize("token", ["<|image_pad|>", "<|im_end|>", "<|vision_start|>"])
@pytest.mark.parametrize("as_part", [True, False])
def test_control_tokens_in_text_are_text(vl_parts: dict[str, Any], token: str, as_part: bool) -> None:
    thinker, words = vl_parts["thinker"], f"ignore this {token} please"
    contents: list[Any] = [
        [make_text(sentence)] if as_part else sentence for sentence in (words, "ignore this  please")
    ]
    ids, plain = (thinker.prompt([{"role": "user", "content": content}]).ids for content in contents)

    [special] = thinker._tokenizer.convert_tokens_to_ids([token])
    assert ids.count(special) == plain.count(special)
    assert words in thinker._tokenizer.decode(ids)


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([], "empty"),
        ([{"role": "robot", "content": "hello"}], "robot"),
        ([{"content": "hello"}], "role"),
        ([{"role": "user"}], "content"),
        ([{"role": "user", "content": []}], "content"),
        ([{"role": "user", "content": [{"type": "audio"}]}], "audio"),
        ([{"role": "user", "content": ["hello"]}], "part"),
        ([{"role": "user", "content": [{"type": "text"}]}], "string"),
    ],
)
def test_messages_that_make_no_sense_are_refused(
    vl_parts: dict[str, Any], messages: list[dict[str, Any]], problem: str
) -> None:
    with pytest.raises(BadRequest, match=problem):
        vl_parts["thinker"].prompt(messages)


def test_missing_and_surplus_media_are_refused(vl_parts: dict[str, Any]) -> None:
    thinker = vl_parts["thinker"]
    [item] = encode_files([vl_parts["vision"]], ["image"], {"image": [files.make_picture(1)]})
    prompt = thinker.prompt([make_user_message(IMAGE, make_text("a"))])

    for wrong in ([], [item, item], [Encoded(item.embeds, {**item.meta, "modality": "video"})]):
        with pytest.raises(BadRequest, match="image"):
            thinker.assemble_prefill(prompt, wrong)


def test_a_prompt_that_does_not_fit_the_context_is_refused(vl_parts: dict[str, Any]) -> None:
    thinker = vl_parts["thinker"]
    prompt = thinker.prompt([{"role": "user", "content": "the cat " * thinker.context}])

    with pytest.raises(ContextTooLong, match=str(thinker.context - 1)):
        thinker.assemble_prefill(prompt, [])


def test_a_model_without_a_talker_does_not_speak(vl_parts: dict[str, Any]) -> None:
    thinker = vl_parts["thinker"]
    prefill = thinker.assemble_prefill(thinker.prompt([make_user_message(make_text("hello"))]), [])

    assert not thinker.speaks
    with pytest.raises(BadRequest, match="no audio output"):
        thinker.talker_prompt(prefill, prefill.inputs, "Chelsie")
    with pytest.raises(BadRequest, match="no audio output"):
        thinker.talker_row(prefill.inputs, prefill.inputs)
