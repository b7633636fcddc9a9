"""Each component loads alone, complete, and without parts of the others."""

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2_5OmniForConditionalGeneration

from omnibus.errors import Fatal, NotFound
from omnibus_models import diffusers_loading, families, loading


def copy_without(checkpoint: Path, copy: Path, weight_name: str) -> Path:
    """Return a copy of a checkpoint without weights named like ``weight_name``."""
    shutil.copytree(checkpoint, copy)
    weights = load_file(copy / "model.safetensors")
    kept_weights = {name: value for name, value in weights.items() if weight_name not in name}
    assert len(kept_weights) < len(weights)
    save_file(kept_weights, copy / "model.safetensors", {"format": "pt"})
    return copy


def count_parameters(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_the_components_of_qwen2_5_vl_share_nothing_and_leave_nothing_out(vl: Path, vl_parts: dict[str, Any]) -> None:
    whole = Qwen2_5_VLForConditionalGeneration.from_pretrained(vl)

    assert vl_parts["vision"].parameters == count_parameters(whole.model.visual)
    assert vl_parts["thinker"].parameters == count_parameters(whole.model.language_model) + count_parameters(
        whole.lm_head
    )
    assert sum(part.parameters for part in vl_parts.values()) == count_parameters(whole)


def test_the_components_of_qwen2_5_omni_share_nothing_and_leave_nothing_out(
    omni: Path, omni_parts: dict[str, Any]
) -> None:
    whole = Qwen2_5OmniForConditionalGeneration.from_pretrained(omni)

    assert {name: part.parameters for name, part in omni_parts.items()} == {
        "vision": count_parameters(whole.thinker.visual),
        "audio": count_parameters(whole.thinker.audio_tower),
        "thinker": count_parameters(whole.thinker.model) + count_parameters(whole.thinker.lm_head),
        "talker": count_parameters(whole.talker),
        "vocoder": count_parameters(whole.token2wav),
    }


def test_the_weights_are_those_of_the_checkpoint(vl: Path, vl_parts: dict[str, Any]) -> None:
    weights = load_file(vl / "model.safetensors")

    head = vl_parts["thinker"].module.lm_head.weight

    [reference] = [value for name, value in weights.items() if name.endswith("lm_head.weight")]
    assert torch.equal(head, reference)


@pytest.mark.parametrize(
    ("component", "weight_name"),
    [("vision", "visual.merger"), ("thinker", "layers.1.mlp.up_proj")],
)
def test_missing_weights_of_qwen2_5_vl_are_fatal(vl: Path, tmp_path: Path, component: str, weight_name: str) -> None:
    broken_checkpoint = copy_without(vl, tmp_path / "broken", weight_name)

    with pytest.raises(Fatal, match=weight_name.replace("visual.", "")):
        families.family_of(broken_checkpoint).load(component, broken_checkpoint)


@pytest.mark.parametrize(
    ("component", "weight_name"),
    [
        ("vision", "visual.merger"),
        ("audio", "audio_tower.proj"),
        ("thinker", "thinker.lm_head"),
        ("talker", "codec_head"),
        ("vocoder", "code2wav_bigvgan_model.conv_post"),
    ],
)
def test_missing_weights_of_qwen2_5_omni_are_fatal(
    omni: Path, tmp_path: Path, component: str, weight_name: str
) -> None:
    broken_checkpoint = copy_without(omni, tmp_path / "broken", weight_name)

    with pytest.raises(Fatal, match=weight_name.rpartition(".")[2]):
        families.family_of(broken_checkpoint).load(component, broken_checkpoint)


def test_a_component_does_not_need_the_weights_of_the_others(vl: Path, tmp_path: Path) -> None:
    broken_checkpoint = copy_without(vl, tmp_path / "broken", "visual")

    assert families.family_of(broken_checkpoint).load("thinker", broken_checkpoint).parameters > 0


def test_a_checkpoint_without_weights_is_fatal(vl: Path, tmp_path: Path) -> None:
    shutil.copytree(vl, tmp_path / "bare")
    (tmp_path / "bare" / "model.safetensors").unlink()

    with pytest.raises(Fatal, match="bare"):
        families.family_of(vl).load("vision", tmp_path / "bare")


def test_voices_that_are_missing_are_fatal(omni: Path, tmp_path: Path) -> None:
    shutil.copytree(omni, tmp_path / "mute")
    (tmp_path / "mute" / "spk_dict.pt").unlink()

    with pytest.raises(Fatal, match="voices"):
        families.family_of(omni).load("thinker", tmp_path / "mute")


def test_a_component_can_be_loaded_in_half_precision(vl: Path) -> None:
    thinker = families.family_of(vl).load("thinker", vl, dtype="bfloat16")

    prefill = thinker.assemble_prefill(thinker.prompt([{"role": "user", "content": "hello"}]), [])

    assert thinker.dtype == prefill.inputs.dtype == torch.bfloat16
    assert thinker.logits(prefill.inputs).dtype == torch.float32


def test_an_unknown_dtype_is_fatal(vl: Path) -> None:
    with pytest.raises(Fatal, match="float99"):
        families.family_of(vl).load("thinker", vl, dtype="float99")


@pytest.mark.parametrize("name", ["vocoder", "", "Vision"])
def test_an_unknown_component_is_not_found(vl: Path, name: str) -> None:
    with pytest.raises(NotFound, match="vision, thinker"):
        families.family_of(vl).load(name, vl)


def test_an_unknown_family_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mystery"}')

    with pytest.raises(NotFound, match="mystery"):
        families.family_of(tmp_path)
    with pytest.raises(NotFound, match="qwen2_5_vl"):
        families.load_family("mystery")
    with pytest.raises(NotFound, match=r"config\.json"):
        families.family_of(tmp_path / "nowhere")


def test_a_path_that_the_class_does_not_have_is_passed_over(vl: Path) -> None:
    module = loading.load_model(Qwen2_5_VLForConditionalGeneration, vl, drop=["model.no.such", "model.visual"])

    assert module.model.visual is None


class SlowLoadModule(torch.nn.Module):
    """A module that records the largest number of concurrent loads."""

    inside = most = 0
    _keep_in_fp32_modules = None

    @classmethod
    def from_pretrained(cls, *_: Any, **__: Any) -> tuple[torch.nn.Module, dict[str, list[str]]]:
        SlowLoadModule.inside += 1
        SlowLoadModule.most = max(SlowLoadModule.most, SlowLoadModule.inside)
        time.sleep(0.02)
        SlowLoadModule.inside -= 1
        return torch.nn.Linear(1, 1), {"missing_keys": []}


def test_loads_in_threads_take_turns(tmp_path: Path) -> None:
    """The library replaces functions of its classes during a load: see ``loading.TURN``."""
    loads = [
        partial(loading.load_model, SlowLoadModule, tmp_path),
        partial(diffusers_loading.load_model, SlowLoadModule, tmp_path, "vae"),
    ] * 4

    with ThreadPoolExecutor(len(loads)) as pool:
        modules = list(pool.map(lambda load: load(), loads))

    assert len(modules) == 8
    assert SlowLoadModule.most == 1
