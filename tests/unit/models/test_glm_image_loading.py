"""Each component of GLM-Image loads alone, with only its own weights."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from omnibus.errors import Fatal, NotFound
from omnibus_models import families, tiny
from tests.oracles import glm_image as oracle


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("glm_image", tmp_path_factory.mktemp("models") / "glm")


@pytest.fixture(scope="module")
def parts(checkpoint: Path) -> dict[str, Any]:
    family = families.family_of(checkpoint)
    return {name: family.load(name, checkpoint) for name in family.components}


def test_the_components_share_nothing_and_leave_nothing_out(parts: dict[str, Any], checkpoint: Path) -> None:
    def count_parameters(*modules: torch.nn.Module) -> int:
        return sum(parameter.numel() for module in modules for parameter in module.parameters())

    pipe = oracle.load_pipeline(checkpoint)
    language = pipe.vision_language_encoder
    assert {name: part.parameters for name, part in parts.items()} == {
        "text_encoder": count_parameters(pipe.text_encoder),
        "prior": count_parameters(language.model.language_model, language.lm_head),
        "dit": count_parameters(pipe.transformer),
        "vae": count_parameters(pipe.vae.decoder),
    }


FILES = {
    "text_encoder": "text_encoder/model.safetensors",
    "prior": "vision_language_encoder/model.safetensors",
    "dit": "transformer/diffusion_pytorch_model.safetensors",
    "vae": "vae/diffusion_pytorch_model.safetensors",
}


@pytest.mark.parametrize(
    ("component", "weight_name"),
    [
        ("text_encoder", "block.1.layer.0.SelfAttention.q"),
        ("prior", "layers.1.self_attn.o_proj"),
        ("dit", "glyph_projector.net.2"),
        ("vae", "decoder.conv_out"),
    ],
)
def test_missing_weights_are_fatal(checkpoint: Path, tmp_path: Path, component: str, weight_name: str) -> None:
    shutil.copytree(checkpoint, tmp_path / "broken")
    weights = load_file(tmp_path / "broken" / FILES[component])
    kept_weights = {name: weight for name, weight in weights.items() if weight_name not in name}
    assert len(kept_weights) < len(weights)
    save_file(kept_weights, tmp_path / "broken" / FILES[component], {"format": "pt"})

    with pytest.raises(Fatal, match=weight_name):
        families.family_of(checkpoint).load(component, tmp_path / "broken")


@pytest.mark.parametrize("component", FILES)
def test_a_component_needs_the_weights_of_no_other(checkpoint: Path, tmp_path: Path, component: str) -> None:
    shutil.copytree(checkpoint, tmp_path / "alone")
    for other in FILES.keys() - {component}:
        (tmp_path / "alone" / FILES[other]).unlink()

    assert families.family_of(checkpoint).load(component, tmp_path / "alone").parameters > 0


@pytest.mark.parametrize("file_name", ["vae/config.json", "scheduler/scheduler_config.json"])
def test_a_denoiser_without_its_configurations_is_fatal(checkpoint: Path, tmp_path: Path, file_name: str) -> None:
    shutil.copytree(checkpoint, tmp_path / "bare")
    (tmp_path / "bare" / file_name).unlink()

    with pytest.raises(Fatal, match="scheduler or VAE"):
        families.family_of(checkpoint).load("dit", tmp_path / "bare")


def test_an_unknown_component_is_not_found(checkpoint: Path) -> None:
    with pytest.raises(NotFound, match="text_encoder, prior, dit, vae"):
        families.family_of(checkpoint).load("thinker", checkpoint)
