"""The components of GLM-Image make the pipeline's own images. They run step by step, in any batch."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from omnibus.errors import BadRequest, ContextTooLong
from omnibus_models import families, tiny
from omnibus_models.contract import ImageSpec
from omnibus_models.families import glm_image
from omnibus_models.families import glm_image as _glm_denoiser
from tests.close import DENOISED_BOUND, assert_close
from tests.oracles import glm_image as oracle

SIGN, RED = 'a sign that says "hello world"', "a red square"
BOTH, QUOTES = "'one' and “two” 「three」 and \"four\"", "a hill, it's green"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("glm_image", tmp_path_factory.mktemp("models") / "glm")


@pytest.fixture(scope="module")
def parts(checkpoint: Path) -> dict[str, Any]:
    family = families.family_of(checkpoint)
    return {name: family.load(name, checkpoint) for name in family.components}


def encode_guides(parts: dict[str, Any], prompt: str) -> list[Tensor]:
    encoder = parts["text_encoder"]
    return [one.embeds for one in encoder.encode([encoder.prepare(prompt), encoder.prepare_negative(prompt, "")])]


def run_steps(stepper: Any, one: Any) -> Any:
    """Return ``one`` after all of its steps, alone."""
    while one.done < one.steps:
        stepper.step([one])
    return one


def draw_prior(parts: dict[str, Any], prompt: str, picture: ImageSpec) -> Tensor:
    tokens: Tensor = parts["prior"].latents(run_steps(parts["prior"], parts["prior"].open(picture, prompt)))
    return tokens


def make_prior(picture: ImageSpec, seed: int = 0) -> Tensor:
    """Return random prior tokens, for tests of the later stages."""
    size = (1, 1, picture.height // 32, picture.width // 32)
    return torch.randint(64, size, generator=torch.Generator().manual_seed(seed)).float()


def denoise_image(parts: dict[str, Any], prompt: str, picture: ImageSpec, tokens: Tensor) -> Any:
    return run_steps(parts["dit"], parts["dit"].open(picture, encode_guides(parts, prompt), prior=tokens))


def test_the_family_is_known_by_its_pipeline(checkpoint: Path) -> None:
    assert families.family_of(checkpoint) is families.load_family("glm_image")


# Text in images


@pytest.mark.numeric
def test_texts_guide_as_in_the_pipeline_whatever_their_company(parts: dict[str, Any], checkpoint: Path) -> None:
    prompts = [SIGN, RED, BOTH, QUOTES, "''", ""]
    encoder = parts["text_encoder"]

    together = [one.embeds for one in encoder.encode([encoder.prepare(prompt) for prompt in prompts])]

    for prompt, actual in zip(prompts, together, strict=True):
        reference, nothing = oracle.load_pipeline(checkpoint).encode_prompt(prompt)
        assert_close(actual, reference[0])
        alone, negative = encode_guides(parts, prompt)
        assert_close(alone, reference[0])
        assert_close(negative, nothing[0])
    assert len({len(rows) for rows in together}) == 3


@pytest.mark.parametrize("prompt", [SIGN, RED, BOTH, QUOTES, "it's 'a' \"b'c\" d'", "「“a”」 “「b” c」 '", ""])
def test_what_is_to_be_written_is_found_as_in_the_pipeline(
    parts: dict[str, Any], checkpoint: Path, prompt: str
) -> None:
    [texts] = oracle.load_pipeline(checkpoint).get_glyph_texts(prompt)

    rows, mask = (parts["text_encoder"].prepare(prompt).features[name] for name in ("ids", "mask"))

    decoded_texts = [
        parts["text_encoder"].tokenizer.decode(row[row_mask.bool()], skip_special_tokens=True)
        for row, row_mask in zip(rows, mask, strict=True)
    ]
    assert decoded_texts == (texts or [""])


def test_prompts_that_cannot_be_used_are_refused(parts: dict[str, Any]) -> None:
    encoder = parts["text_encoder"]

    with pytest.raises(BadRequest, match="</s>"):
        encoder.prepare("a sign: 'hello </s>'")
    with pytest.raises(BadRequest, match="does not support negative prompts"):
        encoder.prepare_negative(RED, "clouds")
    with pytest.raises(ContextTooLong, match="2048"):
        encoder.prepare(f"a book: '{'hill ' * 1000}'")
    with pytest.raises(BadRequest, match="<eop>"):
        parts["prior"].open(ImageSpec(64, 64, 1, 1), "a <eop> b")
    with pytest.raises(ContextTooLong, match="4096"):
        parts["prior"].open(ImageSpec(64, 64, 1, 1), "hill " * 5000)


# The whole pipeline

WISHES: dict[str, dict[str, Any]] = {
    "sign": {"prompt": SIGN, "width": 64, "height": 64, "steps": 3, "seed": 1, "guidance": 3.0},
    "wide": {"prompt": RED, "width": 96, "height": 64, "steps": 4, "seed": 2},
    "unguided": {"prompt": BOTH, "width": 32, "height": 64, "steps": 2, "seed": 3, "guidance": 1.0},
}


@pytest.mark.numeric
@pytest.mark.parametrize("name", WISHES)
def test_the_picture_is_that_of_the_pipeline(parts: dict[str, Any], checkpoint: Path, name: str) -> None:
    wish = dict(WISHES[name])
    reference = oracle.paint_image(checkpoint, **wish)
    prompt, picture = wish.pop("prompt"), ImageSpec(**wish)

    tokens = draw_prior(parts, prompt, picture)
    one = denoise_image(parts, prompt, picture, tokens)
    image = parts["vae"].decode(parts["dit"].latents(one)).numpy()

    assert one.prior.tolist() == reference.prior.tolist()
    assert image.shape == (picture.height, picture.width, 3)
    assert image.std() > 10
    np.testing.assert_allclose(image, reference.pixels, atol=0.51)  # rounded
    assert one.rows == (1 if picture.guidance == 1.0 else 2)


# The prior


@pytest.mark.numeric
def test_positions_are_those_of_the_library(parts: dict[str, Any], checkpoint: Path) -> None:
    pipe = oracle.load_pipeline(checkpoint)
    for width, height in [(64, 64), (96, 64), (32, 128)]:
        one = parts["prior"].open(ImageSpec(width, height, 1, 1), RED)
        ids, _ = parts["prior"]._encode_prompt(ImageSpec(width, height, 1, 1), RED)
        grids = torch.tensor([[1, *one.grid], [1, *_find_small_grid(one)]])

        library_positions, _ = pipe.vision_language_encoder.model.get_rope_index(ids, image_grid_thw=grids)

        assert torch.equal(library_positions[:, 0], torch.arange(ids.shape[1]).expand(3, -1))
        reference = pipe.vision_language_encoder.model._cached_decode_position_ids[0]
        assert torch.equal(one.positions, reference[:, :-1])  # the last one is that of the end


def _find_small_grid(one: Any) -> tuple[int, int]:
    """Return rows and columns of the small image that is drawn first."""
    rows, columns = one.grid
    ratio = rows / columns
    return int(ratio**0.5 * 16), int((1 / ratio) ** 0.5 * 16)


def test_priors_that_come_and_go_are_as_if_each_were_alone(parts: dict[str, Any]) -> None:
    wishes = [(SIGN, ImageSpec(64, 64, 1, 1)), (RED, ImageSpec(96, 32, 1, 2)), (QUOTES, ImageSpec(32, 96, 1, 3))]
    waiting = [parts["prior"].open(picture, prompt) for prompt, picture in wishes]
    everybody, running, sizes = list(waiting), [], []

    while waiting or running:
        running += [waiting.pop(0)] if waiting else []
        parts["prior"].step(running)
        sizes.append(len(running))
        running = [one for one in running if one.done < one.steps]

    assert max(sizes) == 3
    for (prompt, picture), one in zip(wishes, everybody, strict=True):
        assert torch.equal(parts["prior"].latents(one), draw_prior(parts, prompt, picture))


def test_another_seed_or_prompt_draws_another_picture(parts: dict[str, Any]) -> None:
    first, seed, prompt = (
        draw_prior(parts, prompt, ImageSpec(128, 128, 1, seed)) for prompt, seed in [(RED, 1), (RED, 2), (SIGN, 1)]
    )

    assert not torch.equal(first, seed)
    assert not torch.equal(first, prompt)


def test_marks_are_no_part_of_a_picture(checkpoint: Path, tmp_path: Path, parts: dict[str, Any]) -> None:
    shutil.copytree(checkpoint, tmp_path / "untold")
    config_path = tmp_path / "untold" / "vision_language_encoder" / "generation_config.json"
    settings = json.loads(config_path.read_text())
    assert settings.pop("suppress_tokens") == [64, 65]
    config_path.write_text(json.dumps(settings | {"temperature": 5.0, "top_p": 1.0, "top_k": 0}))
    untold = families.family_of(checkpoint).load("prior", tmp_path / "untold")

    ones = [run_steps(untold, untold.open(ImageSpec(64, 64, 1, seed), RED)) for seed in range(2)]

    assert {one.done for one in ones} == {260}
    assert 40 < max(token for one in ones for token in one.chosen) < 64


# The later stages

PICTURES = [
    ImageSpec(64, 64, 4, 1, 3.0),
    ImageSpec(64, 64, 7, 2),
    ImageSpec(64, 64, 2, 3, 1.0),
    ImageSpec(64, 64, 5, 4, 6.0),
]


@pytest.mark.numeric
def test_pictures_that_come_and_go_are_as_if_each_were_alone(parts: dict[str, Any]) -> None:
    prompts = [SIGN, RED, BOTH, QUOTES]  # of which two have no texts, and so equal lengths
    waiting = [
        parts["dit"].open(picture, encode_guides(parts, prompt), prior=make_prior(picture, picture.seed))
        for prompt, picture in zip(prompts, PICTURES, strict=True)
    ]
    everybody, running = list(waiting), []

    while waiting or running:
        running += [waiting.pop(0)] if waiting else []
        parts["dit"].step(running)
        running = [one for one in running if one.done < one.steps]

    for prompt, picture, one in zip(prompts, PICTURES, everybody, strict=True):
        alone = denoise_image(parts, prompt, picture, make_prior(picture, picture.seed))
        assert_close(one.latents, alone.latents, DENOISED_BOUND)


def test_another_prior_seed_or_text_makes_another_picture(parts: dict[str, Any]) -> None:
    picture = PICTURES[0]
    first, prior, seed, text = (
        denoise_image(parts, prompt, ImageSpec(64, 64, 4, seed, 3.0), make_prior(picture, tokens)).latents
        for prompt, seed, tokens in [(SIGN, 1, 1), (SIGN, 1, 2), (SIGN, 2, 1), (BOTH, 1, 1)]
    )

    for other in (prior, seed, text):
        assert not torch.allclose(first, other, atol=1e-2)


def test_a_step_that_fails_leaves_everybody_where_they_were(parts: dict[str, Any]) -> None:
    good, bad = (
        parts["dit"].open(PICTURES[0], encode_guides(parts, SIGN), prior=make_prior(PICTURES[0])) for _ in range(2)
    )
    before = good.latents.clone()
    bad.guides = (torch.zeros(3, 5),)

    with pytest.raises(RuntimeError):
        parts["dit"].step([good, bad])

    assert good.done == 0
    assert torch.equal(good.latents, before)


def test_the_librarys_mask_still_lets_see_what_it_hides(parts: dict[str, Any]) -> None:
    """This fails once prompts of all lengths can share one pass: see ``_glm_denoiser.Denoiser.step``."""
    [text, _] = encode_guides(parts, SIGN)
    padded_text = torch.cat([text, torch.ones(5, 32)])[None]
    about = {
        "hidden_states": torch.randn(1, 4, 4, 4, generator=torch.Generator().manual_seed(0)),
        "prior_token_id": torch.zeros(1, 4, dtype=torch.long),
        "prior_token_drop": torch.zeros(1, 4, dtype=torch.bool),
        "timestep": torch.tensor([500.0]),
        "target_size": torch.tensor([[32.0, 32.0]]),
        "crop_coords": torch.zeros(1, 2),
        "return_dict": False,
    }
    mask = torch.arange(padded_text.shape[1])[None] < len(text)

    with torch.no_grad():
        [reference] = parts["dit"].module(encoder_hidden_states=text[None], **about)
        [masked_output] = parts["dit"].module(encoder_hidden_states=padded_text, attention_mask=mask, **about)

    assert not torch.allclose(reference, masked_output, atol=1e-4)


def test_a_preview_shows_where_the_picture_is_going(parts: dict[str, Any]) -> None:
    dit, picture = parts["dit"], ImageSpec(96, 64, 20, 5, 3.0)
    palette, one = dit.palette(), dit.open(picture, encode_guides(parts, RED), prior=make_prior(picture))
    noise = dit.preview(one, palette)

    previews = []
    while one.done < one.steps:
        dit.step([one])
        previews.append(dit.preview(one, palette).float())

    away = [float((each - previews[-1]).abs().mean()) for each in (noise.float(), previews[4], previews[14])]
    assert (noise.shape, noise.dtype) == ((8, 12, 3), torch.uint8)
    assert away[0] > away[1] > away[2]


def test_a_preview_has_the_colours_of_what_is_painted(parts: dict[str, Any]) -> None:
    dit, vae = parts["dit"], parts["vae"]
    palette, one = dit.palette(), dit.open(PICTURES[0], encode_guides(parts, RED), prior=make_prior(PICTURES[0]))
    generator = torch.Generator().manual_seed(9)

    images, previews = [], []
    for _ in range(20):
        one.latents = torch.randn(4, 8, 8, generator=generator)
        images.append(vae.decode(dit.latents(one)).float().view(8, 8, 8, 8, 3).mean((1, 3)))
        previews.append(dit.preview(one, palette).float())

    differences = [torch.stack(samples) - torch.stack(samples).mean(0) for samples in (images, previews)]
    assert np.corrcoef(differences[0].flatten(), differences[1].flatten())[0, 1] > 0.15


@pytest.mark.parametrize(
    ("picture", "param"),
    [
        (ImageSpec(48, 64, 4, 1), "width"),
        (ImageSpec(64, 0, 4, 1), "height"),
        (ImageSpec(64, 64, 4, 1, frames=9), "frames"),
        (ImageSpec(64, 64, 0, 1), "steps"),
        (ImageSpec(64, 64, 1001, 1), "steps"),
    ],
)
def test_pictures_that_cannot_be_made_are_refused(parts: dict[str, Any], picture: ImageSpec, param: str) -> None:
    with pytest.raises(BadRequest, match=param) as caught:
        parts["dit"].open(picture, encode_guides(parts, RED), prior=make_prior(picture))

    assert caught.value.param == param


@pytest.mark.parametrize("picture", [ImageSpec(48, 64, 1, 1), ImageSpec(64, 0, 1, 1), ImageSpec(32, 32 * 300, 1, 1)])
def test_priors_that_cannot_be_drawn_are_refused(parts: dict[str, Any], picture: ImageSpec) -> None:
    with pytest.raises(BadRequest, match="width|height|side"):
        parts["prior"].open(picture, RED)


@pytest.mark.parametrize(
    "tokens",
    [
        None,
        torch.zeros(1, 1, 2, 3),
        torch.zeros(4),
        torch.full((1, 1, 2, 2), 64.0),
        torch.full((1, 1, 2, 2), -1.0),
        torch.full((1, 1, 2, 2), 0.5),
        torch.full((1, 1, 2, 2), float("nan")),
    ],
)
def test_priors_that_are_none_are_refused(parts: dict[str, Any], tokens: Tensor | None) -> None:
    with pytest.raises(BadRequest, match="prior") as caught:
        parts["dit"].open(PICTURES[0], encode_guides(parts, RED), prior=tokens)

    assert caught.value.param == "prior"


def test_guides_and_latents_of_another_model_are_refused(parts: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=r"\[tokens, 32\]"):
        parts["dit"].open(PICTURES[0], [torch.zeros(3, 64)], prior=make_prior(PICTURES[0]))
    with pytest.raises(BadRequest, match=r"\[4, 1, height, width\]"):
        parts["vae"].decode(torch.zeros(16, 1, 8, 8))


# Loading


def test_the_usual_guidance_is_the_pipelines() -> None:
    import inspect

    from diffusers import GlmImagePipeline

    usual = inspect.signature(GlmImagePipeline.__call__).parameters
    assert usual["guidance_scale"].default == _glm_denoiser.GUIDANCE
    assert usual["max_sequence_length"].default == glm_image.MAX_TEXT_TOKENS


@pytest.mark.numeric
def test_a_picture_goes_on_from_the_state_of_another_one(parts: dict[str, Any]) -> None:
    picture = PICTURES[0]
    first, other = (
        parts["dit"].open(picture, encode_guides(parts, SIGN), prior=make_prior(picture, 1)) for _ in range(2)
    )
    for _ in range(picture.steps // 2):
        parts["dit"].step([first])

    other.resume(first.state(), first.done)
    while other.done < other.steps:
        parts["dit"].step([other])

    assert torch.equal(other.latents, denoise_image(parts, SIGN, picture, make_prior(picture, 1)).latents)
