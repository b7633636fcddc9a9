"""Models with vision tower and plain positions, in components. They answer like the whole models."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText, DynamicCache

from omnibus.errors import BadMedia, BadRequest, ContextTooLong, Fatal, NotFound
from omnibus_models import families
from omnibus_models.contract import Encoded
from tests.close import assert_close
from tests.oracles import plain as oracle
from tests.unit.models import files
from tests.unit.models.control_tokens import is_text
from tests.unit.models.plain import CASES, IMAGE, TOKENS, Model, built, copied, loaded, text, user

SEEING = ("llava", "llava_next")
WATCHING = ("llava_onevision", "internvl")
FAMILIES = (*SEEING, *WATCHING)
PAIRS = [(family, case) for family in FAMILIES for case in CASES if family in WATCHING or "video" not in case]
PICTURE = [user(IMAGE, text("describe the image"))]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    directory = tmp_path_factory.mktemp("plain")
    return {family: built(family, directory) for family in FAMILIES}


@pytest.fixture
def model(models: dict[str, Model], family: str) -> Model:
    return models[family]


@pytest.mark.numeric
@pytest.mark.parametrize(("family", "case"), PAIRS)
def test_split_components_answer_like_the_whole_model(model: Model, case: str) -> None:
    messages, given = CASES[case]

    ids = model.ids(messages, given)

    assert (ids, model.thinker.decode_ids(ids)) == oracle.answer(model.checkpoint, messages, given, TOKENS)


@pytest.mark.numeric
@pytest.mark.parametrize(("family", "case"), PAIRS)
def test_prompts_are_those_of_the_joint_processor(model: Model, case: str) -> None:
    messages, given = CASES[case]
    items = model.items(messages, given)

    layout = model.thinker.layout(model.thinker.prompt(messages), items)

    assert list(layout.ids) == oracle.inputs(model.checkpoint, messages, given)["input_ids"][0].tolist()
    assert int(layout.media.sum()) == sum(item.meta["n_tokens"] for item in items)
    assert torch.equal(layout.positions, torch.arange(len(layout.ids))[None])
    assert layout.delta == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_another_image_changes_the_answer(model: Model) -> None:
    answers = [tuple(model.ids(PICTURE, {"image": [files.picture(seed)]})) for seed in range(5)]

    assert len(set(answers)) == 5


@pytest.mark.numeric
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("beside", [set(), {1}, {0, 2, 5}])
def test_a_batch_equals_its_items_alone(model: Model, beside: set[int]) -> None:
    vision = model.vision
    sizes = [(56, 56), (60, 100), (140, 60), (112, 112), (200, 120), (300, 300)]
    batch = [
        vision.prepare(memoryview(files.picture(n, *size)), "image", n not in beside) for n, size in enumerate(sizes)
    ]
    if "video" in vision.modalities:
        batch[2:2] = [vision.prepare(memoryview(files.film(seconds)), "video") for seconds in (1, 3)]

    together = vision.encode(batch)

    assert len(together) == len(batch)
    for one, item in zip(together, batch, strict=True):
        [alone] = vision.encode([item])
        assert one.meta == alone.meta == item.meta
        assert_close(one.embeds, alone.embeds)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("size", [(1, 1), (200, 1), (1, 200), (400, 2), (15, 2500), (7, 5)])
def test_a_picture_of_any_shape_has_as_many_rows_as_were_counted(
    model: Model, size: tuple[int, int], alone: bool
) -> None:
    prepared = model.vision.prepare(memoryview(files.picture(1, *size)), "image", alone)

    [encoded] = model.vision.encode([prepared])

    assert encoded.embeds.shape == (prepared.meta["n_tokens"], model.thinker.width)
    model.thinker.layout(model.thinker.prompt(PICTURE), [encoded])


@pytest.mark.parametrize("family", FAMILIES)
def test_the_components_share_no_layer_and_leave_nothing_out(model: Model) -> None:
    whole = AutoModelForImageTextToText.from_pretrained(model.checkpoint)

    seen, thought = (
        {name for name, _ in part.module.named_parameters() if not name.endswith("image_newline")}
        for part in (model.vision, model.thinker)
    )

    assert not seen & thought
    assert seen | thought == {name for name, _ in whole.named_parameters() if not name.endswith("image_newline")}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("component", "lost"),
    [("vision", "vision_tower"), ("vision", "multi_modal_projector.linear_2"), ("thinker", "layers.1.mlp")],
)
def test_missing_weights_are_named(model: Model, tmp_path: Path, component: str, lost: str) -> None:
    broken = copied(model.checkpoint, tmp_path / "broken", weights=lambda held: _lose(held, lost))

    with pytest.raises(Fatal, match=lost.rpartition(".")[2]):
        families.family_of(broken).load(component, broken)


@pytest.mark.parametrize("family", FAMILIES)
def test_embeddings_that_are_also_the_head_are_loaded_for_both(model: Model, tmp_path: Path) -> None:
    def tie(config: dict[str, Any]) -> None:
        config["tie_word_embeddings"] = config["text_config"]["tie_word_embeddings"] = True

    tied = loaded(
        copied(model.checkpoint, tmp_path / "tied", config=tie, weights=lambda held: _lose(held, "lm_head.weight"))
    )

    head, table = tied.thinker.module.lm_head.weight, tied.thinker.module.get_input_embeddings().weight
    assert head is table
    messages, given = CASES["image"]
    assert tied.ids(messages, given) == oracle.answer(tied.checkpoint, messages, given, TOKENS)[0]


@pytest.mark.numeric
@pytest.mark.parametrize("family", FAMILIES)
def test_a_reader_reads_as_the_thinker_does_without_its_layers(model: Model) -> None:
    reader = families.family_of(model.checkpoint).reader(model.checkpoint)
    messages, given = CASES["two images"]
    items = model.items(messages, given)

    mine, whole = (each.assemble_prefill(each.prompt(messages), items) for each in (reader, model.thinker))

    names = {name for name, _ in reader.module.named_parameters() if not name.endswith("image_newline")}
    assert names == {"model.language_model.embed_tokens.weight", "model.language_model.norm.weight"}
    assert torch.equal(mine.inputs, whole.inputs)
    assert torch.equal(mine.media, whole.media)
    assert (reader.eos, reader.context, reader.vocabulary) == (
        model.thinker.eos,
        model.thinker.context,
        model.thinker.vocabulary,
    )


@pytest.mark.numeric
@pytest.mark.parametrize("family", FAMILIES)
def test_a_pass_with_a_mask_equals_one_without(model: Model) -> None:
    thinker = model.thinker
    prefill = thinker.assemble_prefill(thinker.prompt([user(text("hello world"))]), [])
    size = prefill.inputs.shape[0]
    causal = torch.ones(size, size, dtype=torch.bool).tril()[None, None]
    looking_back = causal & torch.ones_like(causal).triu(-2)

    masked, plain, narrow = (
        thinker.forward(prefill.inputs[None], prefill.positions[:, None], DynamicCache(), mask)
        for mask in (causal, None, looking_back)
    )

    assert_close(masked, plain)
    assert not torch.allclose(narrow, plain, atol=1e-2)


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_with_a_window_are_refused(model: Model, tmp_path: Path) -> None:
    def narrow(config: dict[str, Any]) -> None:
        config["text_config"] |= {"model_type": "mistral", "sliding_window": 64}
        config["text_config"].pop("layer_types", None)

    narrowed = copied(model.checkpoint, tmp_path / "narrow", config=narrow)

    with pytest.raises(Fatal, match="sliding"):
        families.family_of(narrowed).reader(narrowed)


@pytest.mark.parametrize("family", FAMILIES)
def test_control_tokens_in_text_are_text(model: Model) -> None:
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
    model: Model, rows: int, width: int, changes: dict[str, Any]
) -> None:
    [item] = model.items(PICTURE, {"image": [files.picture(1)]})
    count, wide = item.embeds.shape
    hostile = Encoded(torch.zeros(count + rows, wide + width), {**item.meta, **changes})

    with pytest.raises(BadRequest) as caught:
        model.thinker.assemble_prefill(model.thinker.prompt(PICTURE), [hostile])

    assert caught.value.param == "items"


@pytest.mark.parametrize("family", FAMILIES)
def test_what_cannot_be_served_is_refused_in_words(model: Model) -> None:
    thinker, vision = model.thinker, model.vision
    [item] = model.items(PICTURE, {"image": [files.picture(1)]})

    with pytest.raises(BadRequest, match="image"):
        thinker.assemble_prefill(thinker.prompt(PICTURE), [item, item])
    with pytest.raises(BadRequest, match="audio"):
        thinker.prompt([user({"type": "audio"})])
    with pytest.raises(BadRequest, match="not audio"):
        vision.prepare(memoryview(files.tone(1)), "audio")
    with pytest.raises(BadMedia):
        vision.prepare(memoryview(b"no picture"), "image")
    with pytest.raises(ContextTooLong, match=str(thinker.context - 1)):
        thinker.assemble_prefill(thinker.prompt([user(text("the cat " * thinker.context))]), [])
    with pytest.raises(NotFound, match="vision, thinker"):
        families.family_of(model.checkpoint).load("audio", model.checkpoint)


@pytest.mark.parametrize("family", SEEING)
def test_a_model_that_takes_pictures_alone_refuses_videos(model: Model) -> None:
    with pytest.raises(BadRequest, match="not video"):
        model.vision.prepare(memoryview(files.film(1)), "video")
    with pytest.raises(BadRequest, match="video"):
        model.thinker.prompt([user({"type": "video"})])


@pytest.mark.parametrize("family", WATCHING)
def test_a_processor_that_takes_few_frames_gets_no_more(model: Model, tmp_path: Path) -> None:
    few = copied(
        model.checkpoint,
        tmp_path / "few",
        processor=lambda found: found["video_processor"].update(num_frames=3),
    )
    film = memoryview(files.film(5))

    whole, thin = (family.prepare(film, "video") for family in (model.vision, loaded(few).vision))

    assert (len(whole.features["tiles"]), len(thin.features["tiles"])) == (10, 3)


def _lose(held: dict[str, torch.Tensor], part: str) -> None:
    gone = [name for name in held if part in name]
    assert gone
    for name in gone:
        del held[name]
