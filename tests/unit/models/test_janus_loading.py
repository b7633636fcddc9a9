"""Each component of Janus loads alone, with only its own weights."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from omnibus.errors import Fatal, NotFound
from omnibus_models import families, tiny


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("janus", tmp_path_factory.mktemp("models") / "janus")


@pytest.fixture(scope="module")
def parts(checkpoint: Path) -> dict[str, Any]:
    family = families.family_of(checkpoint)
    return {name: family.load(name, checkpoint) for name in family.components}


def test_the_components_leave_nothing_out(parts: dict[str, Any], checkpoint: Path) -> None:
    weights = load_file(checkpoint / "model.safetensors")

    def count_weights(*begins: str) -> int:
        return sum(weight.numel() for name, weight in weights.items() if name.startswith(begins))

    table, language = count_weights("model.language_model.embed_tokens"), count_weights("model.language_model.")
    assert {name: part.parameters for name, part in parts.items()} == {
        "vision": count_weights("model.vision_model.", "model.aligner."),
        "thinker": language + count_weights("lm_head."),
        "text_encoder": table,
        "dit": language - table + count_weights("model.generation_"),
        "vae": count_weights("model.vqmodel.") - count_weights("model.vqmodel.encoder.", "model.vqmodel.quant_conv."),
    }
    assert families.family_of(checkpoint).reader(checkpoint).parameters < language


@pytest.mark.parametrize(
    ("component", "weight_name"),
    [
        ("vision", "aligner.fc1"),
        ("thinker", "layers.1.mlp.up_proj"),
        ("text_encoder", "embed_tokens"),
        ("dit", "generation_head.vision_head"),
        ("vae", "vqmodel.decoder.conv_out"),
    ],
)
def test_missing_weights_are_fatal(checkpoint: Path, tmp_path: Path, component: str, weight_name: str) -> None:
    shutil.copytree(checkpoint, tmp_path / "broken")
    weights = load_file(tmp_path / "broken" / "model.safetensors")
    kept_weights = {name: weight for name, weight in weights.items() if weight_name not in name}
    assert len(kept_weights) < len(weights)
    save_file(kept_weights, tmp_path / "broken" / "model.safetensors", {"format": "pt"})

    with pytest.raises(Fatal, match=weight_name):
        families.family_of(checkpoint).load(component, tmp_path / "broken")


def test_an_unknown_component_is_not_found(checkpoint: Path) -> None:
    with pytest.raises(NotFound, match="text_encoder, dit, vae"):
        families.family_of(checkpoint).load("audio", checkpoint)
