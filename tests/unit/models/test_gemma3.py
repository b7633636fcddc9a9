"""Gemma 3 in components answers like the whole model. The encoder may be of another size."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from omnibus.errors import BadRequest, Fatal
from omnibus_models import families, tiny
from omnibus_models.contract import Encoded, PromptOptions
from omnibus_models.tiny import gemma3 as recipe
from omnibus_models.tool_calls import find_format
from tests.close import assert_close
from tests.oracles import plain as oracle
from tests.unit.models import files
from tests.unit.models.control_tokens import is_text
from tests.unit.models.split import encode_files, make_prompt_mask, think_greedily
from tests.unit.models.test_loading import copy_without

IMAGE = {"type": "image"}
TOKENS = 24


def make_text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def make_user_message(*parts: dict[str, str]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


CASES = {
    "text": ([{"role": "user", "content": "hello world, how are you today?"}], {}),
    "text of many windows": ([{"role": "user", "content": "the big brown dog runs over the hill. " * 12}], {}),
    "image": ([make_user_message(IMAGE, make_text("what is in this picture?"))], {"image": [files.make_picture(1)]}),
    "image behind text": (
        [make_user_message(make_text("describe the image."), IMAGE)],
        {"image": [files.make_picture(1, 300, 40)]},
    ),
    "two images": (
        [make_user_message(IMAGE, make_text("and"), IMAGE)],
        {"image": [files.make_picture(2), files.make_picture(3, 200, 120)]},
    ),
    "images side by side": (
        [make_user_message(*[IMAGE] * 4, make_text("?"))],
        {"image": [files.make_picture(seed) for seed in range(4)]},
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


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("gemma3", tmp_path_factory.mktemp("models") / "gemma3")


@pytest.fixture(scope="module")
def wide_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of another size: one tower, another projector and language model."""
    return tiny.build("gemma3", tmp_path_factory.mktemp("models") / "wider", llm_seed=1, wide=True)


def load_components(checkpoint: Path) -> dict[str, Any]:
    family = families.family_of(checkpoint)
    return {name: family.load(name, checkpoint) for name in family.components}


@pytest.fixture(scope="module")
def parts(checkpoint: Path) -> dict[str, Any]:
    return load_components(checkpoint)


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
def test_prompts_are_as_long_as_the_joint_processor_makes_them(
    checkpoint: Path, parts: dict[str, Any], case: str
) -> None:
    messages, media_files = CASES[case]
    thinker = parts["thinker"]
    prompt = thinker.prompt(messages)

    prefill = thinker.assemble_prefill(prompt, encode_files([parts["vision"]], prompt.modalities, media_files))

    reference_ids = oracle.make_inputs(checkpoint, messages, media_files)["input_ids"][0]
    rows = thinker.embed(reference_ids)
    assert prefill.inputs.shape[0] == len(reference_ids)
    torch.testing.assert_close(prefill.inputs[~prefill.media], rows[~prefill.media], rtol=0, atol=0)
    assert int(prefill.media.sum()) == recipe.TOKENS * len(media_files.get("image", ()))


def test_tools_are_asked_for_in_its_own_format(parts: dict[str, Any]) -> None:
    thinker = parts["thinker"]
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]

    prompt_text = thinker.decode_ids(thinker.prompt([make_user_message(make_text("hi"))], 0, PromptOptions(tools)).ids)

    assert thinker.tool_format is find_format("gemma")
    assert '"parameters"' in prompt_text
    assert "tool_call" not in prompt_text


@pytest.mark.numeric
@pytest.mark.parametrize("seed", range(3))
def test_one_encoder_serves_language_models_of_all_sizes(
    parts: dict[str, Any], wide_checkpoint: Path, seed: int
) -> None:
    messages, media_files = (
        [make_user_message(IMAGE, make_text("describe the image"))],
        {"image": [files.make_picture(seed)]},
    )
    thinker = families.load_family("gemma3").load("thinker", wide_checkpoint)

    thought = think_greedily(thinker, [parts["vision"]], messages, media_files, TOKENS)

    assert thinker.width != parts["thinker"].width
    assert thought.ids == oracle.generate_answer(wide_checkpoint, messages, media_files, TOKENS)[0]


@pytest.mark.numeric
def test_pooling_here_and_projecting_there_is_the_librarys_projector_bit_for_bit(
    checkpoint: Path, parts: dict[str, Any]
) -> None:
    vision, thinker = parts["vision"], parts["thinker"]
    prompt = thinker.prompt([make_user_message(IMAGE)])
    items = encode_files([vision], ["image"], {"image": [files.make_picture(3)]})

    prefill = thinker.assemble_prefill(prompt, items)

    model, _ = oracle._load_whole(checkpoint)
    reference_inputs = oracle.make_inputs(checkpoint, [make_user_message(IMAGE)], {"image": [files.make_picture(3)]})
    with torch.no_grad():
        reference = model.get_image_features(reference_inputs["pixel_values"], return_dict=True).pooler_output[0]
    assert torch.equal(prefill.inputs[prefill.media], reference)


def test_the_tower_alone_is_loaded_for_pictures_and_everything_else_for_text(
    checkpoint: Path, parts: dict[str, Any]
) -> None:
    names = {name: {key for key, _ in part.module.named_parameters()} for name, part in parts.items()}

    assert all(key.startswith("model.vision_tower.") for key in names["vision"])
    assert not any(key.startswith("model.vision_tower.") for key in names["thinker"])
    model, _ = oracle._load_whole(checkpoint)
    assert names["vision"] | names["thinker"] == {key for key, _ in model.named_parameters()}


def test_the_tokens_of_a_picture_see_each_other_both_ways(parts: dict[str, Any]) -> None:
    thinker = parts["thinker"]
    prompt = thinker.prompt([make_user_message(make_text("a"), IMAGE, make_text("b"))])
    prefill = thinker.assemble_prefill(
        prompt, encode_files([parts["vision"]], ["image"], {"image": [files.make_picture(1)]})
    )
    last = int(prefill.media.nonzero().max())
    changed_inputs = prefill.inputs.clone()
    changed_inputs[last] += 1.0

    def compute_hidden(inputs: torch.Tensor, mask: object) -> torch.Tensor:
        hidden: torch.Tensor = thinker.forward(inputs[None], prefill.positions[:, None], DynamicCache(), mask)
        return hidden[0]

    with_mask = (
        compute_hidden(prefill.inputs, make_prompt_mask(prefill))
        - compute_hidden(changed_inputs, make_prompt_mask(prefill))
    ).abs().amax(-1) > 1e-4
    back = (compute_hidden(prefill.inputs, None) - compute_hidden(changed_inputs, None)).abs().amax(-1) > 1e-4

    assert with_mask.nonzero()[0, 0] == last - recipe.TOKENS + 1
    assert back.nonzero()[0, 0] == last


@pytest.mark.numeric
def test_a_window_is_a_window_with_and_without_a_mask(parts: dict[str, Any]) -> None:
    thinker = parts["thinker"]
    messages = [{"role": "user", "content": "the cat sleeps on the warm red mat " * 8}]
    prefill = thinker.assemble_prefill(thinker.prompt(messages), [])
    size = len(prefill.inputs)
    causal = torch.ones(size, size, dtype=torch.bool).tril()[None, None]

    masked_rows = thinker.forward(prefill.inputs[None], prefill.positions[:, None], DynamicCache(), causal)

    plain = thinker.forward(prefill.inputs[None], prefill.positions[:, None], DynamicCache(), None)
    assert size > 2 * recipe.WINDOW
    assert_close(masked_rows, plain)
    assert not torch.equal(*thinker._layer_masks(causal, prefill.positions[:, None]).values())


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
    sizes = [(56, 56), (60, 100), (140, 60), (400, 300)]
    batch = [vision.prepare(memoryview(files.make_picture(n, *size)), "image") for n, size in enumerate(sizes)]

    together = vision.encode(batch)

    for one, item in zip(together, batch, strict=True):
        [alone] = vision.encode([item])
        assert one.meta == alone.meta == {"modality": "image", "n_tokens": recipe.TOKENS}
        assert one.embeds.shape == (recipe.TOKENS, 32)
        assert_close(one.embeds, alone.embeds)
    assert vision.encode([]) == []


@pytest.mark.parametrize("modality", ["video", "audio"])
def test_a_vision_encoder_takes_pictures_alone(parts: dict[str, Any], modality: str) -> None:
    with pytest.raises(BadRequest, match=f"not {modality}"):
        parts["vision"].prepare(memoryview(files.make_tone(1)), modality)


@pytest.mark.parametrize("token", ["<image_soft_token>", "<start_of_image>", "<end_of_turn>", "<bos>"])
def test_control_tokens_in_text_are_text(parts: dict[str, Any], token: str) -> None:
    assert is_text(parts["thinker"], token)


def test_turns_that_the_template_does_not_take_are_refused(parts: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="take turns"):
        parts["thinker"].prompt([make_user_message(make_text("hello")), make_user_message(make_text("again"))])


@pytest.mark.parametrize("shape", [(recipe.TOKENS, 64), (recipe.TOKENS - 1, 32), (0, 32)])
def test_items_of_another_shape_are_refused(parts: dict[str, Any], shape: tuple[int, int]) -> None:
    thinker = parts["thinker"]
    item = Encoded(torch.zeros(shape), {"modality": "image", "n_tokens": shape[0]})

    with pytest.raises(BadRequest, match="an embedding of shape"):
        thinker.assemble_prefill(thinker.prompt([make_user_message(IMAGE)]), [item])


@pytest.mark.parametrize("name", ["gemma3", "mllama"])
def test_an_engine_that_would_take_rows_as_they_are_is_refused_before_it_starts(name: str, tmp_path: Path) -> None:
    with pytest.raises(Fatal, match="declare omnibus_engines:transformers"):
        families.load_family(name).reader(tmp_path)


def test_missing_weights_are_named(checkpoint: Path, tmp_path: Path) -> None:
    broken_checkpoint = copy_without(
        checkpoint, tmp_path / "broken", "multi_modal_projector.mm_input_projection_weight"
    )

    assert families.load_family("gemma3").load("vision", broken_checkpoint).parameters
    with pytest.raises(Fatal, match="mm_input_projection_weight"):
        families.load_family("gemma3").load("thinker", broken_checkpoint)
