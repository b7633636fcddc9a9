"""The parts of Qwen-Image-Edit make the library's own images. They run step by step, in any batch."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from omnibus.errors import BadMedia, BadRequest, ContextTooLong, Fatal, NotFound, TooLarge
from omnibus_models import families, media
from omnibus_models.contract import Encoded, ImageSpec
from omnibus_models.families import qwen_image_edit
from tests.close import DENOISED_BOUND, assert_close
from tests.oracles import qwen_image_edit as oracle
from tests.unit.models import files

RED, HILL, NOTHING = "make it red", "a green circle near the hill, with birds", ""
WIDE, TALL = files.make_picture(1), files.make_picture(2, 50, 130)


@pytest.fixture(scope="module")
def parts(edit_checkpoint: Path) -> dict[str, Any]:
    family = families.family_of(edit_checkpoint)
    return {name: family.load(name, edit_checkpoint) for name in family.components}


def encode_image(parts: dict[str, Any], data: bytes, component: str = "vision") -> Encoded:
    encoder = parts[component]
    [encoding] = encoder.encode([encoder.prepare(memoryview(data), "image")])
    return encoding


def encode_guides(parts: dict[str, Any], data: bytes, *prompts: str) -> list[Tensor]:
    encoder, item = parts["text_encoder"], encode_image(parts, data)
    return [one.embeds for one in encoder.encode([encoder.prepare(prompt, [item]) for prompt in prompts])]


def open_image(parts: dict[str, Any], data: bytes, prompt: str, steps: int, seed: int, **more: Any) -> Any:
    """Return an image before its first step. It is as large as its source unless ``width`` and ``height`` are set."""
    image = encode_image(parts, data, "vae_encoder").embeds
    height, width = (parts["dit"].unit * side for side in image.shape[2:])
    picture = ImageSpec(**{"width": width, "height": height, "steps": steps, "seed": seed, **more})
    return parts["dit"].open(picture, encode_guides(parts, data, prompt, NOTHING), image)


def draw_image(parts: dict[str, Any], *wish: Any, **more: Any) -> Any:
    """Return an image after all of its steps, alone."""
    one = open_image(parts, *wish, **more)
    while one.done < one.steps:
        parts["dit"].step([one])
    return one


def test_the_family_is_known_by_its_pipeline(edit_checkpoint: Path) -> None:
    assert families.family_of(edit_checkpoint) is families.load_family("qwen_image_edit")


def test_prompts_are_put_as_the_pipeline_puts_them(edit_checkpoint: Path) -> None:
    pipeline = oracle.load_pipeline(edit_checkpoint)

    assert pipeline.prompt_template_encode == qwen_image_edit.TEMPLATE
    assert pipeline.prompt_template_encode_start_idx == qwen_image_edit.SKIPPED_TOKENS
    assert pipeline.tokenizer_max_length == qwen_image_edit.MAX_PROMPT_TOKENS


@pytest.mark.numeric
def test_a_prompt_guides_as_in_the_pipeline_whatever_its_company(parts: dict[str, Any], edit_checkpoint: Path) -> None:
    encoder = parts["text_encoder"]
    prompts = [(RED, WIDE), (HILL, TALL), (NOTHING, WIDE), ("{}", TALL), (RED, TALL)]

    together = encoder.encode([encoder.prepare(prompt, [encode_image(parts, data)]) for prompt, data in prompts])

    for (prompt, data), actual in zip(prompts, together, strict=True):
        reference = oracle.make_guides(edit_checkpoint, data, prompt)
        assert_close(actual.embeds, reference)
        assert_close(encode_guides(parts, data, prompt)[0], reference)
    first, other_rows = together[0].embeds[-5:], [together[place].embeds[-5:] for place in (1, 4)]
    assert not any(torch.allclose(first, other, atol=1e-2) for other in other_rows)


def test_the_pipeline_still_forgets_to_say_which_tokens_are_a_pictures(edit_checkpoint: Path) -> None:
    """This fails once the library is fixed (huggingface/diffusers#14194). The oracle then needs no patch."""
    input_names: list[set[str]] = []
    pipeline = oracle.load_bare(edit_checkpoint)
    pipeline.text_encoder.register_forward_pre_hook(
        lambda _module, _args, given: input_names.append({*given}), with_kwargs=True
    )

    pipeline.encode_prompt(RED, image=[torch.zeros(3, 56, 56)])

    assert "image_grid_thw" in input_names[0]
    assert "mm_token_type_ids" not in input_names[0]


@pytest.mark.numeric
def test_encoders_take_pictures_together_as_one_by_one(parts: dict[str, Any]) -> None:
    for component in ("vision", "vae_encoder"):
        encoder = parts[component]

        together = encoder.encode([encoder.prepare(memoryview(data), "image") for data in (WIDE, TALL, WIDE)])

        for data, actual in zip((WIDE, TALL, WIDE), together, strict=True):
            assert_close(actual.embeds, encode_image(parts, data, component).embeds)
        assert encoder.encode([]) == []


WISHES: list[dict[str, Any]] = [
    {"steps": 4, "seed": 1, "guidance": 3.0},
    {"steps": 7, "seed": 2, "width": 64, "height": 48},
    {"steps": 2, "seed": 3, "guidance": 1.0},
]


@pytest.mark.numeric
@pytest.mark.parametrize("wish", WISHES)
@pytest.mark.parametrize("data", [WIDE, TALL], ids=["wide", "tall"])
def test_latents_are_those_of_the_pipeline(
    parts: dict[str, Any], edit_checkpoint: Path, wish: dict[str, Any], data: bytes
) -> None:
    one = draw_image(parts, data, RED, **wish)

    assert_close(one.latents, oracle.edit_image(edit_checkpoint, data, RED, **wish, output="latent"), DENOISED_BOUND)
    assert one.rows == (1 if wish.get("guidance") == 1.0 else 2)


@pytest.mark.numeric
def test_the_picture_is_that_of_the_pipeline(parts: dict[str, Any], edit_checkpoint: Path) -> None:
    one = draw_image(parts, WIDE, RED, **WISHES[1])

    picture = parts["vae"].decode(parts["dit"].latents(one)).numpy()

    assert picture.shape == (48, 64, 3)
    assert picture.std() > 10
    np.testing.assert_allclose(
        picture, oracle.edit_image(edit_checkpoint, WIDE, RED, **WISHES[1]), atol=0.51
    )  # rounded


def test_another_picture_prompt_or_seed_makes_another_picture(parts: dict[str, Any]) -> None:
    first, *other_latents = (
        draw_image(parts, data, prompt, 3, seed, width=64, height=64).latents
        for data, prompt, seed in [(WIDE, RED, 1), (files.make_picture(3), RED, 1), (WIDE, HILL, 1), (WIDE, RED, 2)]
    )

    assert torch.equal(first, draw_image(parts, WIDE, RED, 3, 1, width=64, height=64).latents)
    for other in other_latents:
        assert not torch.allclose(first, other, atol=0.05)


def test_both_ways_of_the_picture_lead_to_what_is_made(parts: dict[str, Any]) -> None:
    usual, image = encode_guides(parts, WIDE, RED), encode_image(parts, WIDE, "vae_encoder").embeds
    other = files.make_picture(3)

    results = []
    for texts, latents in [
        (usual, image),
        (encode_guides(parts, other, RED), image),
        (usual, encode_image(parts, other, "vae_encoder").embeds),
    ]:
        one = parts["dit"].open(ImageSpec(64, 64, 3, 1), texts, latents)
        while one.done < one.steps:
            parts["dit"].step([one])
        results.append(one.latents)

    assert not torch.allclose(results[0], results[1], atol=1e-2)
    assert not torch.allclose(results[0], results[2], atol=1e-2)


@pytest.mark.numeric
def test_pictures_that_come_and_go_are_as_if_each_were_alone(parts: dict[str, Any]) -> None:
    wishes = [
        (WIDE, RED, 4, 1, {"guidance": 3.0}),
        (files.make_picture(3), HILL, 7, 2, {}),
        (WIDE, NOTHING, 2, 3, {"guidance": 1.0}),
        (files.make_picture(4), RED, 5, 4, {"guidance": 6.0}),
    ]
    waiting = [open_image(parts, *wish, width=64, height=64, **more) for *wish, more in wishes]
    everybody, running, sizes = list(waiting), [], []

    while waiting or running:
        running += [waiting.pop(0)] if waiting else []
        parts["dit"].step(running)
        sizes.append(len(running))
        running = [one for one in running if one.done < one.steps]

    assert max(sizes) > 2
    for (*wish, more), one in zip(wishes, everybody, strict=True):
        alone = draw_image(parts, *wish, width=64, height=64, **more)
        assert_close(one.latents, alone.latents, DENOISED_BOUND)


def test_pictures_made_of_pictures_of_other_sizes_have_other_shapes(parts: dict[str, Any]) -> None:
    wide, tall = (open_image(parts, data, RED, 2, 1, width=64, height=64) for data in (WIDE, TALL))

    assert wide.shape[0] == tall.shape[0] == (1, 4, 4)
    assert wide.shape != tall.shape
    assert wide.tokens == 16 + wide.shape[1][1] * wide.shape[1][2]


def test_every_picture_is_brought_to_one_area(parts: dict[str, Any]) -> None:
    sides = [
        encode_image(parts, files.make_picture(1, *size), "vae_encoder").embeds.shape[2:]
        for size in [(20, 20), (900, 300)]
    ]

    assert sides == [(16, 16), (8, 24)]


@pytest.mark.parametrize("component", ["vision", "vae_encoder"])
def test_files_that_are_no_pictures_or_too_large_are_refused(
    parts: dict[str, Any], edit_checkpoint: Path, component: str
) -> None:
    encoder = parts[component]

    for data, modality, error in [
        (b"no picture", "image", BadMedia),
        (b"", "image", BadMedia),
        (files.make_picture(1, 600, 2), "image", BadMedia),
        (files.make_picture(1, 3000, 1), "image", BadMedia),
        (files.make_tone(0.1), "audio", BadRequest),
    ]:
        with pytest.raises(error):
            encoder.prepare(memoryview(data), modality)
    small = families.family_of(edit_checkpoint).load(
        component, edit_checkpoint, limits=media.MediaDecodeLimits(pixels=100)
    )
    with pytest.raises(TooLarge):
        small.prepare(memoryview(WIDE), "image")


def test_a_picture_as_long_as_may_be_is_taken(parts: dict[str, Any]) -> None:
    long = files.make_picture(1, 900, 30)

    assert encode_image(parts, long).embeds.shape[0] == encode_image(parts, long).meta["n_tokens"]
    assert encode_image(parts, long, "vae_encoder").embeds.shape[2] == 4


def change_meta(item: Encoded, **meta: Any) -> Encoded:
    return Encoded(item.embeds, {**item.meta, **meta})


def test_pictures_that_do_not_fit_the_prompt_are_refused(parts: dict[str, Any]) -> None:
    encoder, item = parts["text_encoder"], encode_image(parts, WIDE)

    for items in (
        [],
        [item, item],
        [change_meta(item, grid_thw=None)],
        [change_meta(item, grid_thw=[1, 2, "x"])],
        [change_meta(item, grid_thw=[2, 2, 2])],
        [change_meta(item, grid_thw=[1, 1000, 1000])],
        [change_meta(item, grid_thw=[1, 0, -8])],
        [change_meta(item, modality="video")],
        [Encoded(item.embeds[:-1], item.meta)],
        [Encoded(item.embeds[:, :-1], item.meta)],
    ):
        with pytest.raises(BadRequest) as caught:
            encoder.prepare(RED, items)
        assert caught.value.param == "items"


def test_prompts_with_control_tokens_or_of_many_tokens_are_refused(parts: dict[str, Any]) -> None:
    for token in ("<|im_end|>", "<|image_pad|>"):
        with pytest.raises(BadRequest, match="control token"):
            parts["text_encoder"].prepare(f"a {token} b", [encode_image(parts, WIDE)])
    with pytest.raises(ContextTooLong, match="1024"):
        parts["text_encoder"].prepare("hill " * 1024, [encode_image(parts, WIDE)])


@pytest.mark.parametrize("shape", [(4, 1, 0, 8), (4, 1, 7, 8), (4, 2, 8, 8), (16, 1, 8, 8)])
def test_latents_that_are_no_pictures_are_refused(parts: dict[str, Any], shape: tuple[int, ...]) -> None:
    with pytest.raises(BadRequest, match="even sides") as caught:
        parts["dit"].open(ImageSpec(64, 64, 4, 1), encode_guides(parts, WIDE, RED), torch.zeros(shape))

    assert caught.value.param == "image"


def test_there_is_nothing_to_edit_without_a_picture(parts: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="edits images"):
        parts["dit"].open(ImageSpec(64, 64, 4, 1), encode_guides(parts, WIDE, RED))


def test_the_components_share_nothing_and_leave_nothing_out(parts: dict[str, Any], edit_checkpoint: Path) -> None:
    pipeline = oracle.load_pipeline(edit_checkpoint)

    def count_parameters(*modules: torch.nn.Module) -> int:
        return sum(parameter.numel() for module in modules for parameter in module.parameters())

    assert {name: part.parameters for name, part in parts.items()} == {
        "vision": count_parameters(pipeline.text_encoder.model.visual),
        "text_encoder": count_parameters(pipeline.text_encoder.model.language_model),
        "vae_encoder": count_parameters(pipeline.vae.encoder, pipeline.vae.quant_conv),
        "dit": count_parameters(pipeline.transformer),
        "vae": count_parameters(pipeline.vae.decoder, pipeline.vae.post_quant_conv),
    }


@pytest.mark.parametrize(
    ("component", "file", "weight_name"),
    [
        ("vision", "text_encoder/model.safetensors", "visual.blocks.1.mlp.up_proj"),
        ("text_encoder", "text_encoder/model.safetensors", "layers.1.mlp.up_proj"),
        ("vae_encoder", "vae/diffusion_pytorch_model.safetensors", "encoder.conv_out"),
        ("dit", "transformer/diffusion_pytorch_model.safetensors", "transformer_blocks.1.img_mlp"),
        ("vae", "vae/diffusion_pytorch_model.safetensors", "decoder.conv_out"),
    ],
)
def test_missing_weights_are_fatal_for_whom_they_belong_to(
    edit_checkpoint: Path, tmp_path: Path, component: str, file: str, weight_name: str
) -> None:
    shutil.copytree(edit_checkpoint, tmp_path / "broken")
    weights = load_file(tmp_path / "broken" / file)
    kept_weights = {name: value for name, value in weights.items() if weight_name not in name}
    assert len(kept_weights) < len(weights)
    save_file(kept_weights, tmp_path / "broken" / file, {"format": "pt"})
    family = families.family_of(edit_checkpoint)

    with pytest.raises(Fatal, match=weight_name):
        family.load(component, tmp_path / "broken")
    for other in {*family.components} - {component}:
        assert family.load(other, tmp_path / "broken").parameters > 0


def test_an_unknown_component_is_not_found(edit_checkpoint: Path) -> None:
    with pytest.raises(NotFound, match="vision, text_encoder, vae_encoder, dit, vae"):
        families.family_of(edit_checkpoint).load("thinker", edit_checkpoint)
