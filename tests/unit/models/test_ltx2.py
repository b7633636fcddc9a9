"""The parts of LTX-2 make the library's own video and audio. They run step by step, in any batch."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from omnibus.errors import BadRequest, ContextTooLong, Fatal, NotFound
from omnibus.families.templates import LTX2
from omnibus_models import families
from omnibus_models.contract import Encoded, ImageSpec
from omnibus_models.families import ltx2 as family_ltx2
from omnibus_models.tiny import _weights
from tests.close import DENOISED_BOUND, assert_close
from tests.oracles import ltx2 as oracle
from tests.unit.models.ltx2_films import (
    CAT,
    FILMS,
    HILL,
    NOTHING,
    denoise_film,
    encode_prompts,
    list_inputs,
    load_parts,
    normalize_latents,
    read_latents,
)


@pytest.fixture(scope="module")
def parts(ltx2: Path) -> dict[str, Any]:
    return load_parts(ltx2)


def test_the_family_is_known_by_its_pipeline(ltx2: Path) -> None:
    assert families.family_of(ltx2) is families.load_family("ltx2")


@pytest.mark.numeric
def test_a_prompt_guides_as_in_the_pipeline_whatever_its_company(parts: dict[str, Any], ltx2: Path) -> None:
    prompts = [CAT, HILL, NOTHING, "  birds ", CAT * 20]

    together = encode_prompts(parts, *prompts)

    for prompt, actual in zip(prompts, together, strict=True):
        reference = oracle.make_guides(ltx2, prompt)
        assert_close(actual, reference)
        assert_close(encode_prompts(parts, prompt)[0], reference)
    assert not torch.allclose(together[0][:3], together[1][:3], atol=1e-2)


@pytest.mark.parametrize(("picture", "guidance"), FILMS, ids=["usual", "guided", "plain"])
def test_film_and_sound_are_those_of_the_pipeline(
    parts: dict[str, Any], ltx2: Path, picture: ImageSpec, guidance: dict[str, Any]
) -> None:
    one = denoise_film(parts, CAT, picture, HILL)

    frames = parts["vae"].decode(parts["dit"].latents(one)).numpy()
    samples = parts["audio_vae"].decode(parts["dit"].audio_latents(one)).numpy()

    reference = oracle.generate_video(ltx2, CAT, **list_inputs(picture), negative=HILL, **guidance)
    assert one.rows == (1 if picture.guidance == 1.0 else 4)
    assert frames.shape == (picture.frames, picture.height, picture.width, 3)
    assert frames.std() > 10
    np.testing.assert_allclose(frames, reference.frames, atol=0.51)  # rounded
    assert samples.std() > 0.01
    np.testing.assert_allclose(samples, reference.sound, atol=1e-5)
    library_film = oracle.generate_video(ltx2, CAT, **list_inputs(picture), negative=HILL, output="latent", **guidance)
    for own_latents, library_latents in zip(
        read_latents(parts, one), normalize_latents(parts, library_film), strict=True
    ):
        assert_close(own_latents, library_latents, DENOISED_BOUND)


def test_without_a_negative_prompt_the_other_guidance_stays(parts: dict[str, Any], ltx2: Path) -> None:
    one = denoise_film(parts, CAT, FILMS[0][0])

    own = {"guidance_scale": 1.0, "audio_guidance_scale": 1.0}
    library_film = oracle.generate_video(ltx2, CAT, **list_inputs(FILMS[0][0]), output="latent", **own)
    assert one.rows == 3
    for own_latents, library_latents in zip(
        read_latents(parts, one), normalize_latents(parts, library_film), strict=True
    ):
        assert_close(own_latents, library_latents, DENOISED_BOUND)


@pytest.mark.numeric
def test_films_that_come_and_go_are_as_if_each_were_alone(parts: dict[str, Any]) -> None:
    wishes = [
        (CAT, ImageSpec(64, 32, 4, 1, frames=9), (HILL,)),
        (HILL, ImageSpec(64, 32, 6, 2, guidance=6.0, frames=9), (CAT,)),
        (CAT * 9, ImageSpec(64, 32, 2, 3, guidance=1.0, frames=9, fps=24.2), (NOTHING,)),
        (NOTHING, ImageSpec(64, 32, 5, 4, frames=9), ()),
    ]
    waiting = [
        parts["dit"].open(picture, encode_prompts(parts, prompt, *negative)) for prompt, picture, negative in wishes
    ]
    everybody, running, sizes = list(waiting), [], []
    assert len({one.shape for one in everybody}) == 1

    while waiting or running:
        running += [waiting.pop(0)] if waiting else []
        parts["dit"].step(running)
        sizes.append(len(running))
        running = [one for one in running if one.done < one.steps]

    assert max(sizes) > 2
    for (prompt, picture, negative), one in zip(wishes, everybody, strict=True):
        alone = denoise_film(parts, prompt, picture, *negative)
        for actual, reference in zip(read_latents(parts, one), read_latents(parts, alone), strict=True):
            assert_close(actual, reference, DENOISED_BOUND)


def test_another_prompt_seed_guidance_or_speed_makes_another_film_and_sound(parts: dict[str, Any]) -> None:
    usual = ImageSpec(64, 32, 3, 1, frames=9)

    first, *other_latents = (
        read_latents(parts, denoise_film(parts, prompt, picture, *negative))
        for prompt, picture, negative in [
            (CAT, usual, (NOTHING,)),
            (HILL, usual, (NOTHING,)),
            (CAT, usual, (HILL,)),
            (CAT, ImageSpec(64, 32, 3, 2, frames=9), (NOTHING,)),
            (CAT, ImageSpec(64, 32, 3, 1, guidance=1.0, frames=9), (NOTHING,)),
            (CAT, ImageSpec(64, 32, 3, 1, frames=9, fps=24.5), (NOTHING,)),
        ]
    )

    again = read_latents(parts, denoise_film(parts, CAT, usual, NOTHING))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    for other in other_latents:
        for one, second in zip(first, other, strict=True):
            assert not torch.allclose(one, second, atol=1e-2)


def test_film_and_sound_are_made_with_an_eye_and_an_ear_for_the_other(parts: dict[str, Any]) -> None:
    picture = ImageSpec(64, 32, 3, 1, guidance=1.0, frames=9)
    first, other = (parts["dit"].open(picture, encode_prompts(parts, CAT)) for _ in range(2))
    other.latents = other.latents._replace(sound=other.latents.sound.flip(0))

    while first.done < first.steps:
        parts["dit"].step([first])
        parts["dit"].step([other])

    assert not torch.allclose(parts["dit"].latents(first), parts["dit"].latents(other), atol=1e-2)


def test_a_step_that_fails_leaves_everybody_where_they_were(parts: dict[str, Any]) -> None:
    good, bad = (parts["dit"].open(FILMS[0][0], encode_prompts(parts, CAT)) for _ in range(2))
    bad.guides = (torch.zeros(3, 5),)

    with pytest.raises(RuntimeError):
        parts["dit"].step([good, bad])

    assert good.done == 0
    assert torch.equal(good.latents.film, parts["dit"].open(FILMS[0][0], encode_prompts(parts, CAT)).latents.film)


def test_a_preview_shows_where_the_film_is_going(parts: dict[str, Any]) -> None:
    dit = parts["dit"]
    palette, one = dit.palette(), dit.open(ImageSpec(64, 32, 12, 5, frames=9), encode_prompts(parts, CAT, NOTHING))
    noise = dit.preview(one, palette)

    previews = []
    while one.done < one.steps:
        dit.step([one])
        previews.append(dit.preview(one, palette).float())

    away = [float((each - previews[-1]).abs().mean()) for each in (noise.float(), previews[3], previews[9])]
    assert (noise.shape, noise.dtype) == ((4, 8, 3), torch.uint8)
    assert away[0] > away[1] > away[2]


@pytest.mark.parametrize(
    ("picture", "param"),
    [
        (ImageSpec(60, 64, 4, 1, frames=9), "width"),
        (ImageSpec(64, 0, 4, 1, frames=9), "height"),
        (ImageSpec(64, 64, 4, 1, frames=8), "frames"),
        (ImageSpec(64, 64, 4, 1, frames=0), "frames"),
        (ImageSpec(64, 64, 4, 1, frames=9, fps=0.0), "fps"),
        (ImageSpec(64, 64, 4, 1, frames=9, fps=float("nan")), "fps"),
        (ImageSpec(64, 64, 4, 1, frames=9, fps=1e9), "fps"),
        (ImageSpec(64, 64, 4, 1, frames=1, fps=120.0), "frames"),
        (ImageSpec(64, 64, 1, 1, frames=9), "steps"),
        (ImageSpec(64, 64, 1001, 1, frames=9), "steps"),
    ],
)
def test_films_that_cannot_be_made_are_refused(parts: dict[str, Any], picture: ImageSpec, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parts["dit"].open(picture, encode_prompts(parts, CAT))
    with pytest.raises(BadRequest) as early:  # by the gateway, which has no checkpoint
        LTX2.check_frames(picture.width, picture.height, picture.frames, picture.fps)
        LTX2.check_steps(picture.steps)

    assert (caught.value.param, early.value.param) == (param, param)
    assert early.value.message == caught.value.message


def test_prompts_that_are_no_text_or_too_much_of_it_are_refused(parts: dict[str, Any]) -> None:
    encoder = parts["text_encoder"]

    with pytest.raises(BadRequest, match="start_of_turn"):
        encoder.prepare("a <start_of_turn> b")
    with pytest.raises(ContextTooLong, match="1024"):
        encoder.prepare("hill " * 1024)
    with pytest.raises(BadRequest, match="only text"):
        encoder.prepare(CAT, [Encoded(torch.zeros(4, 32), {"modality": "image"})])
    with pytest.raises(BadRequest, match="tokens, 64"):
        parts["dit"].open(FILMS[0][0], [torch.zeros(3, 65)])


@pytest.mark.parametrize("shape", [(8, 2, 4), (16, 2, 4, 4), (8, 0, 4, 4), (8, 2, 4, 1)])
def test_latents_that_are_no_film_are_refused(parts: dict[str, Any], shape: tuple[int, ...]) -> None:
    with pytest.raises(BadRequest, match=r"\[8, frames, height, width\]"):
        parts["vae"].decode(torch.zeros(shape))


@pytest.mark.parametrize("shape", [(2, 9), (3, 9, 4), (2, 0, 4), (2, 9, 5)])
def test_latents_that_are_no_sound_are_refused(parts: dict[str, Any], shape: tuple[int, ...]) -> None:
    with pytest.raises(BadRequest, match=r"\[2, time, 4\]"):
        parts["audio_vae"].decode(torch.zeros(shape))


def test_the_components_share_nothing_and_leave_nothing_out(parts: dict[str, Any], ltx2: Path) -> None:
    pipeline = oracle.load_pipeline(ltx2)

    def count_parameters(*modules: torch.nn.Module) -> int:
        return sum(parameter.numel() for module in modules for parameter in module.parameters())

    assert {name: part.parameters for name, part in parts.items()} == {
        "text_encoder": count_parameters(pipeline.text_encoder.model.language_model, pipeline.connectors),
        "vae_encoder": count_parameters(pipeline.vae.encoder),
        "dit": count_parameters(pipeline.transformer),
        "vae": count_parameters(pipeline.vae.decoder),
        "audio_vae": count_parameters(pipeline.audio_vae.decoder, pipeline.vocoder),
    }


# Later releases of the model have other connectors and another transformer


@pytest.fixture(scope="module")
def later_checkpoint(ltx2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with learned registers, gates, more modulation, and separate projections. These are for video and
    audio.
    """
    from diffusers import LTX2VideoTransformer3DModel
    from diffusers.pipelines.ltx2 import LTX2TextConnectors

    copy = tmp_path_factory.mktemp("models") / "later"
    shutil.copytree(ltx2, copy)
    connectors, transformer = (dict(kind.load_config(ltx2 / part)) for kind, part in (
        (LTX2TextConnectors, "connectors"), (LTX2VideoTransformer3DModel, "transformer"),
    ))  # fmt: skip
    connectors |= {
        "per_modality_projections": True, "video_hidden_dim": 24, "audio_hidden_dim": 16, "proj_bias": True,
        "video_connector_attention_head_dim": 12, "audio_connector_attention_head_dim": 8,
        "video_connector_num_learnable_registers": 8, "audio_connector_num_learnable_registers": 8,
        "video_gated_attn": True, "audio_gated_attn": True,
    }  # fmt: skip
    transformer |= {
        "use_prompt_embeddings": False, "cross_attention_dim": 24, "audio_cross_attention_dim": 16,
        "gated_attn": True, "audio_gated_attn": True, "cross_attn_mod": True, "audio_cross_attn_mod": True,
    }  # fmt: skip
    for module, part in (
        (LTX2TextConnectors.from_config(connectors), "connectors"),
        (LTX2VideoTransformer3DModel.from_config(transformer), "transformer"),
    ):
        _weights.redraw_weights(module, 0)
        module.save_pretrained(copy / part)
    return copy


def test_later_releases_are_served_too(later_checkpoint: Path) -> None:
    parts = load_parts(later_checkpoint)
    picture = FILMS[0][0]

    one = denoise_film(parts, CAT, picture, NOTHING)

    reference = oracle.make_guides(later_checkpoint, CAT)
    assert reference.shape == (family_ltx2.PROMPT_TOKENS, 40)
    assert_close(encode_prompts(parts, CAT)[0], reference)
    library_film = oracle.generate_video(later_checkpoint, CAT, **list_inputs(picture), output="latent")
    for own_latents, library_latents in zip(
        read_latents(parts, one), normalize_latents(parts, library_film), strict=True
    ):
        assert_close(own_latents, library_latents, DENOISED_BOUND)


# Incomplete checkpoints


@pytest.mark.parametrize(
    ("component", "file", "weight_name"),
    [
        ("text_encoder", "text_encoder/model.safetensors", "layers.1.mlp.up_proj"),
        ("text_encoder", "connectors/diffusion_pytorch_model.safetensors", "video_connector.transformer_blocks.0.ff"),
        ("dit", "transformer/diffusion_pytorch_model.safetensors", "transformer_blocks.1.audio_ff"),
        ("vae_encoder", "vae/diffusion_pytorch_model.safetensors", "encoder.conv_out"),
        ("vae", "vae/diffusion_pytorch_model.safetensors", "decoder.conv_out"),
        ("audio_vae", "audio_vae/diffusion_pytorch_model.safetensors", "decoder.conv_out"),
        ("audio_vae", "vocoder/diffusion_pytorch_model.safetensors", "conv_out"),
    ],
)
def test_missing_weights_are_fatal_for_whom_they_belong_to(
    ltx2: Path, tmp_path: Path, component: str, file: str, weight_name: str
) -> None:
    shutil.copytree(ltx2, tmp_path / "broken")
    weights = load_file(tmp_path / "broken" / file)
    kept_weights = {name: value for name, value in weights.items() if weight_name not in name}
    assert len(kept_weights) < len(weights)
    save_file(kept_weights, tmp_path / "broken" / file, {"format": "pt"})
    family = families.family_of(ltx2)

    with pytest.raises(Fatal, match=weight_name):
        family.load(component, tmp_path / "broken")
    for other in {*family.components} - {component}:
        assert family.load(other, tmp_path / "broken").parameters > 0


def test_the_latents_statistics_are_not_to_be_missing(ltx2: Path, tmp_path: Path) -> None:
    shutil.copytree(ltx2, tmp_path / "broken")
    for part, component in (("vae", "vae"), ("audio_vae", "audio_vae")):
        file = tmp_path / "broken" / part / "diffusion_pytorch_model.safetensors"
        weights = load_file(file)
        save_file({name: value for name, value in weights.items() if name != "latents_std"}, file, {"format": "pt"})

        with pytest.raises(Fatal, match="latents_std"):
            families.family_of(ltx2).load(component, tmp_path / "broken")


@pytest.mark.parametrize(
    ("component", "file_name"),
    [
        ("dit", "scheduler/scheduler_config.json"),
        ("dit", "vae/config.json"),
        ("dit", "audio_vae/config.json"),
        ("audio_vae", "vocoder/config.json"),
        ("text_encoder", "model_index.json"),
    ],
)
def test_a_component_without_its_configurations_is_fatal(
    ltx2: Path, tmp_path: Path, component: str, file_name: str
) -> None:
    shutil.copytree(ltx2, tmp_path / "bare")
    (tmp_path / "bare" / file_name).unlink()

    with pytest.raises(Fatal):
        families.load_family("ltx2").load(component, tmp_path / "bare")


@pytest.mark.parametrize(
    ("component", "part", "other"),
    [("text_encoder", "text_encoder", "Gemma4Unified"), ("audio_vae", "vocoder", "LTX9Vocoder")],
)
def test_parts_of_another_kind_are_named(ltx2: Path, tmp_path: Path, component: str, part: str, other: str) -> None:
    shutil.copytree(ltx2, tmp_path / "other")
    index = tmp_path / "other" / "model_index.json"
    index_fields = json.loads(index.read_text())
    index.write_text(json.dumps({**index_fields, part: ["x", other]}))

    with pytest.raises(Fatal, match=other):
        families.family_of(ltx2).load(component, tmp_path / "other")


def test_an_unknown_component_is_not_found(ltx2: Path) -> None:
    with pytest.raises(NotFound, match="text_encoder, vae_encoder, dit, vae, audio_vae"):
        families.family_of(ltx2).load("thinker", ltx2)
