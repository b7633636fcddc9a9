"""Qwen2-VL in components answers like the whole model."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen2VLForConditionalGeneration

from omnibus.errors import BadRequest, Fatal, NotFound
from omnibus_models import families, tiny
from omnibus_models.contract import Encoded
from tests import models_oracle as oracle
from tests.close import assert_close
from tests.unit.models import files
from tests.unit.models.split import encode_files, think_greedily
from tests.unit.models.test_loading import copy_without, count_parameters
from tests.unit.models.test_qwen2_5_vl import CASES, IMAGE, TOKENS, VIDEO, make_text, make_user_message


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen2_vl", tmp_path_factory.mktemp("models") / "qwen2_vl")


@pytest.fixture(scope="module")
def vision(checkpoint: Path) -> Any:
    return families.family_of(checkpoint).load("vision", checkpoint)


@pytest.fixture(scope="module")
def thinker(checkpoint: Path) -> Any:
    return families.family_of(checkpoint).load("thinker", checkpoint)


@pytest.mark.numeric
@pytest.mark.parametrize("case", CASES)
def test_split_components_answer_like_the_whole_model(checkpoint: Path, vision: Any, thinker: Any, case: str) -> None:
    messages, media_files = CASES[case]

    thought = think_greedily(thinker, [vision], messages, media_files, TOKENS)

    ids, words = oracle.vl_answer(checkpoint, messages, media_files, TOKENS)
    assert thought.ids == ids
    assert thinker.decode_ids(thought.ids) == words


@pytest.mark.parametrize("case", CASES)
def test_prompts_are_those_of_the_joint_processor(checkpoint: Path, vision: Any, thinker: Any, case: str) -> None:
    messages, media_files = CASES[case]
    prompt = thinker.prompt(messages)

    layout = thinker.layout(prompt, encode_files([vision], prompt.modalities, media_files))

    assert list(layout.ids) == oracle.vl_inputs(checkpoint, messages, media_files)["input_ids"][0].tolist()


@pytest.mark.numeric
@pytest.mark.parametrize("kind", ["image", "video"])
def test_another_picture_or_video_changes_the_answer(vision: Any, thinker: Any, kind: str) -> None:
    messages = [make_user_message({"type": kind}, make_text("describe"))]
    media = [files.make_picture(seed) if kind == "image" else files.make_film(2, seed) for seed in range(4)]

    answers = {tuple(think_greedily(thinker, [vision], messages, {kind: [data]}, TOKENS).ids) for data in media}

    assert len(answers) == 4


@pytest.mark.numeric
def test_a_batch_of_images_and_videos_equals_its_items_alone(vision: Any) -> None:
    sizes = [(56, 56), (60, 100), (140, 60), (112, 112), (200, 120)]
    batch = [vision.prepare(memoryview(files.make_picture(n, *size)), "image") for n, size in enumerate(sizes)]
    batch.insert(2, vision.prepare(memoryview(files.make_film(2)), "video"))

    together = vision.encode(batch)

    for one, item in zip(together, batch, strict=True):
        [alone] = vision.encode([item])
        assert one.meta == alone.meta == item.meta
        assert one.embeds.shape == (item.meta["n_tokens"], 64)
        assert_close(one.embeds, alone.embeds)


@pytest.mark.numeric
def test_frames_are_one_position_apart_whatever_the_pace(vision: Any, thinker: Any) -> None:
    prompt = thinker.prompt([make_user_message(VIDEO, make_text("describe"))])
    [film] = encode_files([vision], ["video"], {"video": [files.make_film(6)]})
    slow = Encoded(film.embeds, {**film.meta, "second_per_grid": 8.0})

    layouts = [thinker.layout(prompt, [item]) for item in (film, slow)]

    start, times = layouts[0].starts[0], film.meta["grid_thw"][0]
    places = layouts[0].positions[0, start : start + len(film.embeds)]
    assert places.unique().tolist() == list(range(int(places[0]), int(places[0]) + times))
    assert torch.equal(*(layout.positions for layout in layouts))


@pytest.mark.parametrize(
    "changes",
    [{"grid_thw": [1, 4]}, {"grid_thw": [2, 4, 6]}, {"grid_thw": None}, {"grid_thw": [1, 8, 6]}, {"modality": "video"}],
)
def test_an_item_that_is_not_what_its_meta_data_says_is_refused(thinker: Any, changes: dict[str, Any]) -> None:
    meta = {"modality": "image", "n_tokens": 6, "grid_thw": [1, 4, 6], **changes}
    prompt = thinker.prompt([make_user_message({"type": meta["modality"]})])

    with pytest.raises(BadRequest) as caught:
        thinker.layout(prompt, [Encoded(torch.zeros(6, 64), meta)])

    assert caught.value.param == "items"


def test_the_components_share_nothing_and_leave_nothing_out(checkpoint: Path, vision: Any, thinker: Any) -> None:
    whole = Qwen2VLForConditionalGeneration.from_pretrained(checkpoint)

    assert vision.parameters == count_parameters(whole.model.visual)
    assert thinker.parameters == count_parameters(whole.model.language_model) + count_parameters(whole.lm_head)
    assert vision.parameters + thinker.parameters == count_parameters(whole)
    with pytest.raises(NotFound, match="vision, thinker"):
        families.family_of(checkpoint).load("audio", checkpoint)


@pytest.mark.parametrize(("component", "weight_name"), [("vision", "merger"), ("thinker", "layers.1.mlp.up_proj")])
def test_missing_weights_are_fatal(checkpoint: Path, tmp_path: Path, component: str, weight_name: str) -> None:
    broken_checkpoint = copy_without(checkpoint, tmp_path / "broken", weight_name)

    with pytest.raises(Fatal, match=weight_name):
        families.family_of(broken_checkpoint).load(component, broken_checkpoint)


@pytest.mark.numeric
def test_a_reader_reads_as_the_thinker_does(checkpoint: Path, vision: Any, thinker: Any) -> None:
    reader = families.family_of(checkpoint).reader(checkpoint)
    prompt = reader.prompt([make_user_message(IMAGE, make_text("and"), VIDEO)])
    items = encode_files(
        [vision], ["image", "video"], {"image": [files.make_picture(1)], "video": [files.make_film(2)]}
    )

    reader_prefill, whole = reader.assemble_prefill(prompt, items), thinker.assemble_prefill(prompt, items)

    assert reader.parameters == reader.vocabulary * reader.width + reader.width
    assert torch.equal(reader_prefill.inputs, whole.inputs)
    assert (reader_prefill.positions.tolist(), reader_prefill.delta) == (whole.positions.tolist(), whole.delta)
