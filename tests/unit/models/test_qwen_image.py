"""The parts of Qwen-Image make the library's own images. They run step by step, in any batch."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from omnibus.errors import BadRequest, ContextTooLong, Fatal, NotFound
from omnibus_models import families
from omnibus_models.contract import ImageSpec
from omnibus_models.families import qwen_image
from tests.close import DENOISED_BOUND, assert_close

RED, CIRCLE, NOTHING = "a red square", "a green circle on a blue background near the hill", " "


@pytest.fixture(scope="module")
def parts(image_checkpoint: Path) -> dict[str, Any]:
    family = families.family_of(image_checkpoint)
    return {name: family.load(name, image_checkpoint) for name in family.components}


@pytest.fixture(scope="module")
def pipeline(image_checkpoint: Path) -> Any:
    from diffusers import QwenImagePipeline

    image_pipeline = QwenImagePipeline.from_pretrained(image_checkpoint)
    image_pipeline.set_progress_bar_config(disable=True)
    return image_pipeline


def run_pipeline(
    pipeline: Any, prompt: str, picture: ImageSpec, negative: str | None = NOTHING, output: str = "latent"
) -> Any:
    """Return the pipeline's output for a prompt."""
    return pipeline(
        prompt,
        negative_prompt=negative,
        width=picture.width,
        height=picture.height,
        num_inference_steps=picture.steps,
        true_cfg_scale=picture.guidance or qwen_image.GUIDANCE,
        generator=torch.Generator().manual_seed(picture.seed),
        output_type=output,
    ).images[0]


def encode_guides(parts: dict[str, Any], *prompts: str) -> list[Tensor]:
    encoder = parts["text_encoder"]
    return [one.embeds for one in encoder.encode([encoder.prepare(prompt) for prompt in prompts])]


def draw_image(parts: dict[str, Any], prompt: str, picture: ImageSpec, negative: Sequence[str] = (NOTHING,)) -> Any:
    """Return an image after all of its steps, alone."""
    one = parts["dit"].open(picture, encode_guides(parts, prompt, *negative))
    while one.done < one.steps:
        parts["dit"].step([one])
    return one


def test_the_family_is_known_by_its_pipeline(image_checkpoint: Path) -> None:
    assert families.family_of(image_checkpoint) is families.load_family("qwen_image")


def test_prompts_are_put_as_the_pipeline_puts_them(pipeline: Any) -> None:
    assert pipeline.prompt_template_encode == qwen_image.TEMPLATE
    assert pipeline.prompt_template_encode_start_idx == qwen_image.SKIPPED_TOKENS
    assert pipeline.tokenizer_max_length == qwen_image.MAX_PROMPT_TOKENS


@pytest.mark.numeric
def test_a_prompt_guides_as_in_the_pipeline_whatever_its_company(parts: dict[str, Any], pipeline: Any) -> None:
    prompts = [RED, CIRCLE, NOTHING, "", "{}"]

    together = encode_guides(parts, *prompts)

    for prompt, actual in zip(prompts, together, strict=True):
        reference, mask = pipeline.encode_prompt(prompt)
        assert mask is None
        assert_close(actual, reference[0])
        assert_close(encode_guides(parts, prompt)[0], reference[0])
    assert not torch.allclose(together[0][-5:], together[1][-5:], atol=1e-2)


PICTURES = [
    ImageSpec(width=64, height=64, steps=4, seed=1, guidance=3.0),
    ImageSpec(width=96, height=48, steps=7, seed=2),
    ImageSpec(width=64, height=64, steps=2, seed=3, guidance=1.0),
]


@pytest.mark.numeric
@pytest.mark.parametrize("picture", PICTURES)
def test_latents_are_those_of_the_pipeline(parts: dict[str, Any], pipeline: Any, picture: ImageSpec) -> None:
    one = draw_image(parts, RED, picture)

    assert_close(one.latents, run_pipeline(pipeline, RED, picture), DENOISED_BOUND)
    assert one.rows == (1 if picture.guidance == 1.0 else 2)


@pytest.mark.numeric
def test_without_a_negative_prompt_the_prompt_guides_alone(parts: dict[str, Any], pipeline: Any) -> None:
    one = draw_image(parts, RED, PICTURES[0], negative=())

    assert_close(one.latents, run_pipeline(pipeline, RED, PICTURES[0], negative=None), DENOISED_BOUND)


@pytest.mark.numeric
def test_the_picture_is_that_of_the_pipeline(parts: dict[str, Any], pipeline: Any) -> None:
    one = draw_image(parts, RED, PICTURES[1])

    picture = parts["vae"].decode(parts["dit"].latents(one)).numpy()

    reference = run_pipeline(pipeline, RED, PICTURES[1], output="np") * 255
    assert picture.shape == (48, 96, 3)
    assert picture.std() > 10
    np.testing.assert_allclose(picture, reference, atol=0.51)  # rounded


@pytest.mark.numeric
def test_pictures_that_come_and_go_are_as_if_each_were_alone(parts: dict[str, Any]) -> None:
    wishes = [
        (prompt, ImageSpec(64, 64, steps, seed, guidance))
        for prompt, steps, seed, guidance in [
            (RED, 4, 1, 3.0),
            (CIRCLE, 7, 2, None),
            (NOTHING, 2, 3, 1.0),
            (RED, 5, 4, 6),
        ]
    ]
    waiting = [parts["dit"].open(picture, encode_guides(parts, prompt, NOTHING)) for prompt, picture in wishes]
    everybody, running, sizes = list(waiting), [], []

    while waiting or running:
        running += [waiting.pop(0)] if waiting else []
        parts["dit"].step(running)
        sizes.append(len(running))
        running = [one for one in running if one.done < one.steps]

    assert max(sizes) > 2
    for (prompt, picture), one in zip(wishes, everybody, strict=True):
        assert_close(one.latents, draw_image(parts, prompt, picture).latents, DENOISED_BOUND)


@pytest.mark.numeric
def test_another_seed_prompt_or_guidance_makes_another_picture(parts: dict[str, Any]) -> None:
    first, seed, prompt, guidance = (
        draw_image(parts, prompt, ImageSpec(64, 64, 3, seed, guidance)).latents
        for prompt, seed, guidance in [(RED, 1, 3.0), (RED, 2, 3.0), (CIRCLE, 1, 3.0), (RED, 1, 6.0)]
    )

    assert torch.equal(first, draw_image(parts, RED, ImageSpec(64, 64, 3, 1, 3.0)).latents)
    for other in (seed, prompt, guidance):
        assert not torch.allclose(first, other, atol=1e-2)


def test_a_step_that_fails_leaves_everybody_where_they_were(parts: dict[str, Any]) -> None:
    good, bad = (parts["dit"].open(PICTURES[0], encode_guides(parts, RED)) for _ in range(2))
    bad.guides = (torch.zeros(3, 5),)

    with pytest.raises(RuntimeError):
        parts["dit"].step([good, bad])

    assert good.done == 0
    assert torch.equal(good.latents, parts["dit"].open(PICTURES[0], encode_guides(parts, RED)).latents)


def test_a_preview_has_the_colours_of_what_is_painted(parts: dict[str, Any]) -> None:
    dit, vae = parts["dit"], parts["vae"]
    palette = dit.palette()
    one = dit.open(ImageSpec(64, 64, 2, 1), encode_guides(parts, RED))
    colours = torch.randn(40, 4, generator=torch.Generator().manual_seed(9))

    images, previews = [], []
    for colour in colours:
        one.latents = colour.repeat_interleave(4).expand(one.tokens, -1)
        images.append(vae.decode(dit.latents(one)).float().mean((0, 1)))
        previews.append(dit.preview(one, palette).float().mean((0, 1)))

    differences = [torch.stack(samples) - torch.stack(samples).mean(0) for samples in (images, previews)]
    assert np.corrcoef(differences[0].flatten(), differences[1].flatten())[0, 1] > 0.6


def test_a_preview_shows_where_the_picture_is_going(parts: dict[str, Any]) -> None:
    dit = parts["dit"]
    palette, one = dit.palette(), dit.open(ImageSpec(96, 48, 20, 5, 3.0), encode_guides(parts, RED, NOTHING))
    noise = dit.preview(one, palette)

    previews = []
    while one.done < one.steps:
        dit.step([one])
        previews.append(dit.preview(one, palette).float())

    away = [float((each - previews[-1]).abs().mean()) for each in (noise.float(), previews[4], previews[14])]
    assert (noise.shape, noise.dtype) == ((6, 12, 3), torch.uint8)
    assert away[0] > away[1] > away[2]


@pytest.mark.parametrize(
    ("picture", "param"),
    [
        (ImageSpec(60, 64, 4, 1), "width"),
        (ImageSpec(64, 0, 4, 1), "height"),
        (ImageSpec(64, 64, 4, 1, frames=9), "frames"),
        (ImageSpec(64, 64, 1, 1), "steps"),
        (ImageSpec(64, 64, 1001, 1), "steps"),
    ],
)
def test_pictures_that_cannot_be_made_are_refused(parts: dict[str, Any], picture: ImageSpec, param: str) -> None:
    with pytest.raises(BadRequest, match=param) as caught:
        parts["dit"].open(picture, encode_guides(parts, RED))

    assert caught.value.param == param


def test_prompts_with_control_tokens_or_of_many_tokens_are_refused(parts: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="im_end"):
        parts["text_encoder"].prepare("a <|im_end|> b")
    with pytest.raises(ContextTooLong, match="1024"):
        parts["text_encoder"].prepare("hill " * 1024)


def test_latents_of_another_model_are_refused(parts: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=r"\[4, 1, height, width\]"):
        parts["vae"].decode(torch.zeros(16, 1, 8, 8))


def test_the_components_share_nothing_and_leave_nothing_out(parts: dict[str, Any], pipeline: Any) -> None:
    def count_parameters(module: torch.nn.Module) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    assert {name: part.parameters for name, part in parts.items()} == {
        "text_encoder": count_parameters(pipeline.text_encoder.model.language_model),
        "dit": count_parameters(pipeline.transformer),
        "vae": count_parameters(pipeline.vae.decoder) + count_parameters(pipeline.vae.post_quant_conv),
    }


FILES = {
    "text_encoder": "text_encoder/model.safetensors",
    "dit": "transformer/diffusion_pytorch_model.safetensors",
    "vae": "vae/diffusion_pytorch_model.safetensors",
}


@pytest.mark.parametrize(
    ("component", "weight_name"),
    [("text_encoder", "layers.1.mlp.up_proj"), ("dit", "transformer_blocks.1.img_mlp"), ("vae", "decoder.conv_out")],
)
def test_missing_weights_are_fatal(image_checkpoint: Path, tmp_path: Path, component: str, weight_name: str) -> None:
    broken_checkpoint = copy_without(image_checkpoint, tmp_path / "broken", FILES[component], weight_name)

    with pytest.raises(Fatal, match=weight_name):
        families.family_of(broken_checkpoint).load(component, broken_checkpoint)


@pytest.mark.parametrize("component", FILES)
def test_a_component_needs_the_weights_of_no_other(image_checkpoint: Path, tmp_path: Path, component: str) -> None:
    shutil.copytree(image_checkpoint, tmp_path / "alone")
    for other in FILES.keys() - {component}:
        (tmp_path / "alone" / FILES[other]).unlink()

    assert families.family_of(image_checkpoint).load(component, tmp_path / "alone").parameters > 0


def test_the_decoder_does_not_need_the_encoder(image_checkpoint: Path, tmp_path: Path) -> None:
    broken_checkpoint = copy_without(
        image_checkpoint, tmp_path / "broken", FILES["vae"], "encoder.conv_in", "quant_conv.weight", but="post_"
    )

    assert families.family_of(broken_checkpoint).load("vae", broken_checkpoint).parameters > 0


def test_a_checkpoint_without_weights_is_fatal(image_checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(image_checkpoint, tmp_path / "bare")
    (tmp_path / "bare" / FILES["dit"]).unlink()

    with pytest.raises(Fatal, match="bare/transformer"):
        families.family_of(image_checkpoint).load("dit", tmp_path / "bare")


@pytest.mark.parametrize("file_name", ["vae/config.json", "scheduler/scheduler_config.json"])
def test_a_denoiser_without_its_configurations_is_fatal(image_checkpoint: Path, tmp_path: Path, file_name: str) -> None:
    shutil.copytree(image_checkpoint, tmp_path / "bare")
    (tmp_path / "bare" / file_name).unlink()

    with pytest.raises(Fatal, match="scheduler|VAE"):
        families.family_of(image_checkpoint).load("dit", tmp_path / "bare")


def test_an_unknown_component_is_not_found(image_checkpoint: Path) -> None:
    with pytest.raises(NotFound, match="text_encoder, dit, vae"):
        families.family_of(image_checkpoint).load("thinker", image_checkpoint)


@pytest.mark.numeric
def test_half_precision_makes_much_the_same_picture(parts: dict[str, Any], image_checkpoint: Path) -> None:
    half = families.family_of(image_checkpoint).load("dit", image_checkpoint, dtype="bfloat16")
    noise = half.open(PICTURES[0], encode_guides(parts, RED, NOTHING))
    reference = parts["dit"].open(PICTURES[0], encode_guides(parts, RED, NOTHING))
    reference.latents = noise.latents.float()

    half.step([noise])
    parts["dit"].step([reference])

    assert noise.latents.dtype == torch.bfloat16
    torch.testing.assert_close(noise.latents.float(), reference.latents, rtol=0, atol=0.1)


def copy_without(checkpoint: Path, copy: Path, file: str, *lost: str, but: str = "never") -> Path:
    """Return a copy of a checkpoint whose ``file`` lacks some weights. Their names contain one of ``lost``."""
    shutil.copytree(checkpoint, copy)
    weights = load_file(copy / file)
    kept_weights = {
        name: value for name, value in weights.items() if but in name or not any(each in name for each in lost)
    }
    assert len(kept_weights) < len(weights)
    save_file(kept_weights, copy / file, {"format": "pt"})
    return copy
