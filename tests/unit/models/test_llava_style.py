"""Models with vision tower and plain positions, in components. They answer like the whole models."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText

from omnibus.errors import BadMedia, BadRequest, ContextTooLong, Fatal, NotFound
from omnibus_models import families
from omnibus_models.contract import Encoded, Prepared
from tests.close import assert_close
from tests.oracles import plain as oracle
from tests.unit.models import files
from tests.unit.models.control_tokens import is_text
from tests.unit.models.plain import (
    CASES,
    IMAGE,
    TOKENS,
    VisionTextModel,
    build_model,
    copy_checkpoint,
    load_model,
    make_text_part,
    make_user_message,
)

SEEING = ("llava", "llava_next")
WATCHING = ("llava_onevision", "internvl")
FAMILIES = (*SEEING, *WATCHING)
PAIRS = [(family, case) for family in FAMILIES for case in CASES if family in WATCHING or "video" not in case]
PICTURE = [make_user_message(IMAGE, make_text_part("describe the image"))]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, VisionTextModel]:
    directory = tmp_path_factory.mktemp("plain")
    return {family: build_model(family, directory) for family in FAMILIES}


@pytest.fixture
def model(models: dict[str, VisionTextModel], family: str) -> VisionTextModel:
    return models[family]


@pytest.mark.numeric
@pytest.mark.parametrize(("family", "case"), PAIRS)
def test_split_components_answer_like_the_whole_model(model: VisionTextModel, case: str) -> None:
    messages, media_files = CASES[case]

    ids = model.ids(messages, media_files)

    assert (ids, model.thinker.decode_ids(ids)) == oracle.generate_answer(
        model.checkpoint, messages, media_files, TOKENS
    )


@pytest.mark.numeric
@pytest.mark.parametrize(("family", "case"), PAIRS)
def test_prompts_are_those_of_the_joint_processor(model: VisionTextModel, case: str) -> None:
    messages, media_files = CASES[case]
    items = model.items(messages, media_files)

    layout = model.thinker.layout(model.thinker.prompt(messages), items)

    assert list(layout.ids) == oracle.make_inputs(model.checkpoint, messages, media_files)["input_ids"][0].tolist()
    assert int(layout.media.sum()) == sum(item.meta["n_tokens"] for item in items)
    assert torch.equal(layout.positions, torch.arange(len(layout.ids))[None])
    assert layout.delta == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_another_image_changes_the_answer(model: VisionTextModel) -> None:
    answers = [tuple(model.ids(PICTURE, {"image": [files.make_picture(seed)]})) for seed in range(5)]

    assert len(set(answers)) == 5


@pytest.mark.numeric
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("beside", [set(), {1}, {0, 2, 5}])
def test_a_batch_equals_its_items_alone(model: VisionTextModel, beside: set[int]) -> None:
    vision = model.vision
    sizes = [(56, 56), (60, 100), (140, 60), (112, 112), (200, 120), (300, 300)]
    batch = [
        vision.prepare(memoryview(files.make_picture(n, *size)), "image", n not in beside)
        for n, size in enumerate(sizes)
    ]
    if "video" in vision.modalities:
        batch[2:2] = [vision.prepare(memoryview(files.make_film(seconds)), "video") for seconds in (1, 3)]

    together = vision.encode(batch)

    assert len(together) == len(batch)
    for one, item in zip(together, batch, strict=True):
        [alone] = vision.encode([item])
        assert one.meta == alone.meta
        assert item.meta.items() <= one.meta.items()
        assert_close(one.embeds, alone.embeds)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("size", [(1, 1), (200, 1), (1, 200), (400, 2), (15, 2500), (7, 5)])
def test_a_picture_of_any_shape_has_as_many_rows_as_were_counted(
    model: VisionTextModel, size: tuple[int, int], alone: bool
) -> None:
    item = model.vision.prepare(memoryview(files.make_picture(1, *size)), "image", alone)

    [output] = model.vision.encode([item])

    assert output.embeds.shape == (item.meta["n_tokens"], model.thinker.width)
    model.thinker.layout(model.thinker.prompt(PICTURE), [output])


@pytest.mark.parametrize("family", FAMILIES)
def test_the_components_share_no_layer_and_leave_nothing_out(model: VisionTextModel) -> None:
    whole = AutoModelForImageTextToText.from_pretrained(model.checkpoint)

    vision_names, thought = (
        {name for name, _ in part.module.named_parameters() if not name.endswith("image_newline")}
        for part in (model.vision, model.thinker)
    )

    assert not vision_names & thought
    assert vision_names | thought == {
        name for name, _ in whole.named_parameters() if not name.endswith("image_newline")
    }


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("component", "weight_name"),
    [("vision", "vision_tower"), ("vision", "multi_modal_projector.linear_2"), ("thinker", "layers.1.mlp")],
)
def test_missing_weights_are_named(model: VisionTextModel, tmp_path: Path, component: str, weight_name: str) -> None:
    broken_checkpoint = copy_checkpoint(
        model.checkpoint, tmp_path / "broken", weights=lambda held: _remove_weights(held, weight_name)
    )

    with pytest.raises(Fatal, match=weight_name.rpartition(".")[2]):
        families.family_of(broken_checkpoint).load(component, broken_checkpoint)


@pytest.mark.parametrize("family", FAMILIES)
def test_embeddings_that_are_also_the_head_are_loaded_for_both(model: VisionTextModel, tmp_path: Path) -> None:
    def tie_embeddings(config: dict[str, Any]) -> None:
        config["tie_word_embeddings"] = config["text_config"]["tie_word_embeddings"] = True

    tied_model = load_model(
        copy_checkpoint(
            model.checkpoint,
            tmp_path / "tied",
            config=tie_embeddings,
            weights=lambda held: _remove_weights(held, "lm_head.weight"),
        )
    )

    head, table = tied_model.thinker.module.lm_head.weight, tied_model.thinker.module.get_input_embeddings().weight
    assert head is table
    messages, media_files = CASES["image"]
    assert (
        tied_model.ids(messages, media_files)
        == oracle.generate_answer(tied_model.checkpoint, messages, media_files, TOKENS)[0]
    )


@pytest.mark.numeric
@pytest.mark.parametrize("family", FAMILIES)
def test_a_reader_reads_as_the_thinker_does_without_its_layers(model: VisionTextModel) -> None:
    reader = families.family_of(model.checkpoint).reader(model.checkpoint)
    messages, media_files = CASES["two images"]
    items = model.items(messages, media_files)

    reader_prefill, whole = (each.assemble_prefill(each.prompt(messages), items) for each in (reader, model.thinker))

    names = {name for name, _ in reader.module.named_parameters() if not name.endswith("image_newline")}
    assert names - {"model.language_model.norm.weight"} == {"model.language_model.embed_tokens.weight"}
    assert torch.equal(reader_prefill.inputs, whole.inputs)
    assert torch.equal(reader_prefill.media, whole.media)
    assert (reader.eos, reader.context, reader.vocabulary) == (
        model.thinker.eos,
        model.thinker.context,
        model.thinker.vocabulary,
    )


@pytest.mark.numeric
@pytest.mark.parametrize("family", FAMILIES)
def test_layers_with_a_window_answer_like_the_whole_model(model: VisionTextModel, tmp_path: Path) -> None:
    def narrow_window(config: dict[str, Any]) -> None:
        config["text_config"] |= {"model_type": "mistral", "sliding_window": 8}
        config["text_config"].pop("layer_types", None)

    narrow = load_model(copy_checkpoint(model.checkpoint, tmp_path / "narrow", config=narrow_window))
    messages, media_files = CASES["image"]

    ids = narrow.ids(messages, media_files)

    assert ids == oracle.generate_answer(narrow.checkpoint, messages, media_files, TOKENS)[0]
    assert ids != model.ids(messages, media_files)


@pytest.mark.parametrize("family", FAMILIES)
def test_control_tokens_in_text_are_text(model: VisionTextModel) -> None:
    token = model.thinker._tokenizer.convert_ids_to_tokens(model.thinker._placeholder_id("image"))

    for words in (token, model.thinker._tokenizer.eos_token):
        assert is_text(model.thinker, words)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("rows", "width", "changes"),
    [
        (-1, 0, {}),
        (0, 1, {}),
        (0, 0, {"n_tokens": None}),
        (0, 0, {"n_tokens": 4.0}),
        (0, 0, {"n_tokens": 0}),
        (0, 0, {"n_tokens": -1}),
    ],
)
def test_an_item_that_is_not_what_its_meta_data_says_is_refused(
    model: VisionTextModel, rows: int, width: int, changes: dict[str, Any]
) -> None:
    [item] = model.items(PICTURE, {"image": [files.make_picture(1)]})
    count, wide = item.embeds.shape
    hostile = Encoded(torch.zeros(count + rows, wide + width), {**item.meta, **changes})

    with pytest.raises(BadRequest) as caught:
        model.thinker.assemble_prefill(model.thinker.prompt(PICTURE), [hostile])

    assert caught.value.param == "items"


@pytest.mark.parametrize("family", FAMILIES)
def test_what_cannot_be_served_is_refused_in_words(model: VisionTextModel) -> None:
    thinker, vision = model.thinker, model.vision
    [item] = model.items(PICTURE, {"image": [files.make_picture(1)]})

    with pytest.raises(BadRequest, match="image"):
        thinker.assemble_prefill(thinker.prompt(PICTURE), [item, item])
    with pytest.raises(BadRequest, match="audio"):
        thinker.prompt([make_user_message({"type": "audio"})])
    with pytest.raises(BadRequest, match="not audio"):
        vision.prepare(memoryview(files.make_tone(1)), "audio")
    with pytest.raises(BadMedia):
        vision.prepare(memoryview(b"no picture"), "image")
    with pytest.raises(ContextTooLong, match=str(thinker.context - 1)):
        thinker.assemble_prefill(thinker.prompt([make_user_message(make_text_part("the cat " * thinker.context))]), [])
    with pytest.raises(NotFound, match="vision, thinker"):
        families.family_of(model.checkpoint).load("audio", model.checkpoint)


@pytest.mark.parametrize("family", SEEING)
def test_a_model_that_takes_pictures_alone_refuses_videos(model: VisionTextModel) -> None:
    with pytest.raises(BadRequest, match="not video"):
        model.vision.prepare(memoryview(files.make_film(1)), "video")
    with pytest.raises(BadRequest, match="video"):
        model.thinker.prompt([make_user_message({"type": "video"})])


@pytest.mark.parametrize("family", WATCHING)
def test_a_processor_that_takes_few_frames_gets_no_more(model: VisionTextModel, tmp_path: Path) -> None:
    few = copy_checkpoint(
        model.checkpoint,
        tmp_path / "few",
        processor=lambda found: found["video_processor"].update(num_frames=3),
    )
    film = memoryview(files.make_film(5))

    whole, thin = (family.prepare(film, "video") for family in (model.vision, load_model(few).vision))

    frames = [sum(len(frame) for frame in _list_frames(item)) for item in (whole, thin)]
    assert frames == [10, 3]


def _list_frames(item: Prepared) -> Sequence[torch.Tensor]:
    """The frames of a video: [1, n, 3, height, width] or [n, 3, height, width]."""
    [frames] = (value for value in item.features.values() if value.dim() > 3)
    return list(frames) if frames.dim() == 5 else [frames]


def _remove_weights(weights: dict[str, torch.Tensor], part: str) -> None:
    names = [name for name in weights if part in name]
    assert names
    for name in names:
        del weights[name]
