"""Llama 3.2 Vision in components answers like the whole model. It attends to images by cross-attention."""

from pathlib import Path
from typing import Any

import pytest
import torch

from omnibus.errors import BadRequest, Fatal
from omnibus_models import families, tiny
from omnibus_models.contract import Encoded
from tests.close import assert_close
from tests.oracles import plain as oracle
from tests.unit.models import files
from tests.unit.models.control_tokens import is_text
from tests.unit.models.split import encode_files, think_greedily
from tests.unit.models.test_loading import copy_without

IMAGE = {"type": "image"}
TOKENS = 24
#: Rows of an image: four tiles of 16 patches, and a row per tile for its class embedding.
ROWS = 4 * 17


def make_text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def make_user_message(*parts: dict[str, str]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


CASES = {
    "text": ([{"role": "user", "content": "hello world, how are you today?"}], {}),
    "text of a system": ([{"role": "system", "content": "you are a cat."}, {"role": "user", "content": "yes?"}], {}),
    "image": ([make_user_message(IMAGE, make_text("what is in this picture?"))], {"image": [files.make_picture(1)]}),
    "image of one tile": (
        [make_user_message(IMAGE, make_text("what is in this picture?"))],
        {"image": [files.make_picture(1, 50, 50)]},
    ),
    "image behind text": (
        [make_user_message(make_text("describe the image."), IMAGE)],
        {"image": [files.make_picture(1, 300, 40)]},
    ),
    "two images": (
        [make_user_message(IMAGE, make_text("and"), IMAGE, make_text("?"))],
        {"image": [files.make_picture(2), files.make_picture(3, 200, 120)]},
    ),
    "images side by side": (
        [make_user_message(*[IMAGE] * 4, make_text("?"))],
        {"image": [files.make_picture(seed) for seed in range(4)]},
    ),
    "several turns": (
        [
            make_user_message(IMAGE, make_text("what is this?")),
            {"role": "assistant", "content": "a red square."},
            make_user_message(make_text("and these?"), IMAGE, IMAGE),
        ],
        {"image": [files.make_picture(6), files.make_picture(7), files.make_picture(8, 40, 90)]},
    ),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("mllama", tmp_path_factory.mktemp("models") / "mllama")


@pytest.fixture(scope="module")
def parts(checkpoint: Path) -> dict[str, Any]:
    family = families.family_of(checkpoint)
    return {name: family.load(name, checkpoint) for name in family.components}


@pytest.mark.numeric
@pytest.mark.parametrize("case", CASES)
def test_split_components_answer_like_the_whole_model(checkpoint: Path, parts: dict[str, Any], case: str) -> None:
    messages, media_files = CASES[case]

    thought = think_greedily(parts["thinker"], [parts["vision"]], messages, media_files, TOKENS)

    ids, words = oracle.generate_answer(checkpoint, messages, media_files, TOKENS)
    assert thought.ids == ids
    assert parts["thinker"].decode_ids(thought.ids) == words


@pytest.mark.numeric
@pytest.mark.parametrize("case", CASES)
def test_a_picture_is_one_token_and_what_is_seen_of_it_is_the_librarys(
    checkpoint: Path, parts: dict[str, Any], case: str
) -> None:
    messages, media_files = CASES[case]
    prompt = parts["thinker"].prompt(messages)

    items = encode_files([parts["vision"]], prompt.modalities, media_files)
    prefill = parts["thinker"].assemble_prefill(prompt, items)

    reference = oracle.make_inputs(checkpoint, messages, media_files)
    assert torch.equal(prefill.inputs, parts["thinker"].embed(reference["input_ids"][0]))
    assert not prefill.media.any()
    assert [tuple(item.embeds.shape) for item in items] == [(ROWS, 64)] * len(media_files.get("image", ()))
    if not items:
        assert prefill.attention is None
        return
    mask = prefill.attention.mask(0, len(prompt.ids))
    tiles = reference["cross_attention_mask"][0].flatten(1).repeat_interleave(17, dim=1).bool()
    assert torch.equal(mask.fed[0], tiles.any(-1))
    assert torch.equal(mask.seen[0, 0], tiles | ~tiles.any(-1, keepdim=True))
    assert torch.equal(prefill.attention.answer_rows, tiles[-1])


@pytest.mark.numeric
def test_the_rows_of_pictures_come_with_the_first_share_alone(parts: dict[str, Any]) -> None:
    prompt = parts["thinker"].prompt([make_user_message(make_text("the cat sleeps"), IMAGE, make_text("and"), IMAGE)])
    items = encode_files(
        [parts["vision"]], prompt.modalities, {"image": [files.make_picture(1), files.make_picture(2)]}
    )
    attention = parts["thinker"].assemble_prefill(prompt, items).attention
    size = len(prompt.ids)

    shares = [attention.mask(at, min(at + 3, size)) for at in range(0, size, 3)]

    whole = attention.mask(0, size)
    assert [share.rows is not None for share in shares] == [True] + [False] * (len(shares) - 1)
    assert torch.equal(torch.cat([share.seen for share in shares], dim=2), whole.seen)
    assert torch.equal(torch.cat([share.fed for share in shares], dim=1), whole.fed)


def test_every_weight_belongs_to_one_component(checkpoint: Path, parts: dict[str, Any]) -> None:
    vision, thinker = ({key for key, _ in parts[name].module.named_parameters()} for name in ("vision", "thinker"))

    model, _ = oracle._load_whole(checkpoint)
    assert not vision & thinker
    assert vision | thinker == {key for key, _ in model.named_parameters()}
    assert not any(key.startswith("model.language_model.") for key in vision)


@pytest.mark.numeric
def test_another_image_changes_the_answer(parts: dict[str, Any]) -> None:
    messages = [make_user_message(IMAGE, make_text("describe the image"))]

    answers = {
        tuple(
            think_greedily(
                parts["thinker"], [parts["vision"]], messages, {"image": [files.make_picture(seed)]}, TOKENS
            ).ids
        )
        for seed in range(5)
    }

    assert len(answers) == 5


@pytest.mark.numeric
def test_a_batch_of_images_equals_its_items_alone(parts: dict[str, Any]) -> None:
    vision = parts["vision"]
    sizes = [(56, 56), (50, 100), (250, 60), (400, 300)]
    batch = [vision.prepare(memoryview(files.make_picture(n, *size)), "image") for n, size in enumerate(sizes)]

    together = vision.encode(batch)

    assert [item.meta["tiles"] for item in batch] == [1, 2, 4, 4]
    for one, item in zip(together, batch, strict=True):
        [alone] = vision.encode([item])
        assert one.meta == alone.meta == {"modality": "image", "n_tokens": ROWS, "tiles": item.meta["tiles"]}
        assert_close(one.embeds, alone.embeds)
    assert vision.encode([]) == []


@pytest.mark.parametrize("modality", ["video", "audio"])
def test_a_vision_encoder_takes_pictures_alone(parts: dict[str, Any], modality: str) -> None:
    with pytest.raises(BadRequest, match=f"not {modality}"):
        parts["vision"].prepare(memoryview(files.make_tone(1)), modality)


@pytest.mark.parametrize("token", ["<|image|>", "<|eot_id|>", "<|begin_of_text|>"])
def test_control_tokens_in_text_are_text(parts: dict[str, Any], token: str) -> None:
    assert is_text(parts["thinker"], token)


def test_a_system_message_beside_pictures_is_refused(parts: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="chat template does not take"):
        parts["thinker"].prompt([{"role": "system", "content": "you are a cat."}, make_user_message(IMAGE)])


def test_more_pictures_in_a_row_than_are_kept_for_an_answer_are_refused(parts: dict[str, Any]) -> None:
    thinker = parts["thinker"]
    item = Encoded(torch.zeros(ROWS, 64), {"modality": "image", "tiles": 1})

    thinker.assemble_prefill(
        thinker.prompt([make_user_message(*[IMAGE] * 4, make_text("and"), *[IMAGE] * 4)]), [item] * 8
    )

    with pytest.raises(BadRequest, match="more than 4 images"):
        thinker.assemble_prefill(thinker.prompt([make_user_message(*[IMAGE] * 5)]), [item] * 5)


@pytest.mark.parametrize(
    ("shape", "meta", "problem"),
    [
        ((ROWS, 64), {"tiles": 5}, "meta data"),
        ((ROWS, 64), {"tiles": 0}, "meta data"),
        ((ROWS, 64), {"tiles": "2"}, "meta data"),
        ((ROWS, 64), {}, "meta data"),
        ((ROWS - 17, 64), {"tiles": 3}, "an embedding of shape"),
        ((ROWS, 63), {"tiles": 3}, "an embedding of shape"),
    ],
)
def test_items_that_no_encoder_made_are_refused(
    parts: dict[str, Any], shape: tuple[int, int], meta: dict[str, Any], problem: str
) -> None:
    thinker = parts["thinker"]

    with pytest.raises(BadRequest, match=problem):
        thinker.assemble_prefill(
            thinker.prompt([make_user_message(IMAGE)]), [Encoded(torch.zeros(shape), {"modality": "image", **meta})]
        )


@pytest.mark.parametrize(
    ("component", "weight_name"),
    [("vision", "multi_modal_projector"), ("vision", "global_transformer"), ("thinker", "cross_attn_attn_gate")],
)
def test_missing_weights_are_named(checkpoint: Path, tmp_path: Path, component: str, weight_name: str) -> None:
    with pytest.raises(Fatal, match=weight_name):
        families.load_family("mllama").load(component, copy_without(checkpoint, tmp_path / "broken", weight_name))


def test_the_placeholder_is_no_word_that_can_be_said(parts: dict[str, Any]) -> None:
    thinker = parts["thinker"]

    scores = thinker.logits(torch.zeros(1, thinker.width))

    assert scores.shape == (1, thinker.vocabulary)
    assert thinker.prompt([make_user_message(IMAGE)]).ids.count(thinker.vocabulary) == 1
