"""PEFT adapters: reading their headers, and rejecting unsupported ones by name."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from omnibus.checkpoints.adapters import read_adapter
from omnibus.errors import BadRequest

LAYER = "base_model.model.model.layers.0.self_attn.q_proj"
CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}


def write_adapter(directory: Path, shapes: dict[str, tuple[int, ...]] | None = None, **config: Any) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "adapter_config.json").write_text(json.dumps({**CONFIG, **config}))
    shapes = {f"{LAYER}.lora_A.weight": (4, 16), f"{LAYER}.lora_B.weight": (8, 4)} if shapes is None else shapes
    arrays = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    save_file(arrays, directory / "adapter_model.safetensors")
    return directory


def test_rank_scale_and_shapes_are_read(tmp_path: Path) -> None:
    parsed_adapter = read_adapter(write_adapter(tmp_path))

    assert (parsed_adapter.rank, parsed_adapter.scale) == (4, 2.0)
    assert parsed_adapter.modules == {"model.layers.0.self_attn.q_proj": (8, 16)}


def test_rank_stabilised_scale_goes_by_the_root_of_the_rank(tmp_path: Path) -> None:
    assert read_adapter(write_adapter(tmp_path, use_rslora=True)).scale == 8 / math.sqrt(4)


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "lora_only"}, "bias 'lora_only'"),
        ({"lora_bias": True}, "lora_bias"),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern"),
        ({"alpha_pattern": {"q_proj": 8}}, "alpha_pattern"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights 'pissa'"),
        ({"peft_type": "IA3"}, "peft_type 'IA3'"),
        ({"r": 0}, "as rank r, not 0"),
        ({"r": 8}, r"with rank 8 they must be \[8, n\] and \[m, 8\]"),
        ({"lora_alpha": "much"}, "must have a number 'lora_alpha'"),
        ({"target_modules": ["v_proj"]}, "adapts model.layers.0.self_attn.q_proj, not among target_modules"),
        ({"target_modules": ["q_proj", "v_proj"]}, "target_modules has v_proj, of which"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(tmp_path: Path, config: dict[str, Any], fault: str) -> None:
    with pytest.raises(BadRequest, match=fault):
        read_adapter(write_adapter(tmp_path, **config))


@pytest.mark.parametrize(
    ("shapes", "fault"),
    [
        ({}, "contains no weights"),
        ({f"{LAYER}.lora_A.weight": (4, 16)}, "only one of the two matrices"),
        ({f"{LAYER}.lora_embedding_A": (4, 16)}, "lora_embedding_A, which is not a LoRA matrix"),
        ({f"{LAYER}.lora_A.weight": (4, 16), f"{LAYER}.lora_B.weight": (4, 4, 4)}, "has matrices of"),
    ],
)
def test_weights_that_are_no_pairs_of_matrices_are_refused(
    tmp_path: Path, shapes: dict[str, tuple[int, ...]], fault: str
) -> None:
    with pytest.raises(BadRequest, match=fault):
        read_adapter(write_adapter(tmp_path, shapes))


def test_missing_files_and_pickles_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"it has no adapter_config.json"):
        read_adapter(tmp_path)
    (write_adapter(tmp_path) / "adapter_model.safetensors").unlink()
    with pytest.raises(BadRequest, match=r"it has no adapter_model.safetensors"):
        read_adapter(tmp_path)
    (tmp_path / "adapter_model.bin").write_bytes(b"\x80\x02")
    with pytest.raises(BadRequest, match=r"adapter_model.bin is a pickle"):
        read_adapter(tmp_path)
