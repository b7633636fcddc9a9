"""A checkpoint with rounded layer weights, quantised and as plain weights.

It covers the formats that quantisers write. Each format is a function of one weight [outputs, inputs]. It returns the
tensors that replace the weight in the checkpoint, by name suffix, and the weight that they represent.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

#: Inputs that share a scale.
GROUP = 32
#: The order in which AWQ packs eight outputs.
_AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


class Format(NamedTuple):
    config: dict[str, Any]
    write: Callable[[Tensor], tuple[dict[str, Tensor], Tensor]]


def write_checkpoint(base: Path, directory: Path, format: Format) -> tuple[Path, Path]:
    """Write ``base`` in ``format``, and with the equivalent plain weights."""
    packed_directory, rounded_directory = directory / "packed", directory / "rounded"
    for path in (packed_directory, rounded_directory):
        shutil.copytree(base, path)
    small: dict[str, Tensor] = {}
    plain: dict[str, Tensor] = {}
    for name, weight in load_file(base / "model.safetensors").items():
        if ".layers." in name and name.endswith("proj.weight"):
            tensors, plain[name] = format.write(weight.float())
            small |= {name.removesuffix("weight") + end: each.contiguous() for end, each in tensors.items()}
        else:
            small[name] = plain[name] = weight
    for path, weights in ((packed_directory, small), (rounded_directory, plain)):
        save_file(
            {name: each.contiguous() for name, each in weights.items()}, path / "model.safetensors", {"format": "pt"}
        )
    config = json.loads((packed_directory / "config.json").read_text())
    (packed_directory / "config.json").write_text(json.dumps({**config, "quantization_config": format.config}))
    return packed_directory, rounded_directory


def _pack_values(values: Tensor) -> Tensor:
    """Pack [..., n] of 0 to 15 into int32 [..., n / 8].

    The first value is in the lowest bits.
    """
    eight = values.reshape(*values.shape[:-1], -1, 8).to(torch.int64) << torch.arange(0, 32, 4)
    whole = eight.sum(-1)
    return torch.where(whole >= 1 << 31, whole - (1 << 32), whole).to(torch.int32)


def _round_groups(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Round to 0 to 15 around 8, by groups.

    Returns values [outputs, inputs], scales [outputs, groups], and the weight that they represent.
    """
    groups = weight.view(len(weight), -1, GROUP)
    scales = (groups.abs().amax(-1, keepdim=True) / 7).to(torch.bfloat16).float()
    values = (groups / scales).round().clamp(-8, 7)
    return (values + 8).view_as(weight), scales[..., 0], (values * scales).view_as(weight)


def _write_gptq(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    values, scales, rounded_weight = _round_groups(weight)
    groups, outputs = scales.shape[1], len(weight)
    return {
        "qweight": _pack_values(values).T,
        "qzeros": _pack_values(torch.full((groups, outputs), 7.0)),  # one less, as the format has it
        "scales": scales.T.to(torch.bfloat16),
        "g_idx": torch.arange(weight.shape[1], dtype=torch.int32) // GROUP,
    }, rounded_weight


def _write_awq(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    values, scales, rounded_weight = _round_groups(weight)

    def pack_rows(rows: Tensor) -> Tensor:
        return _pack_values(rows.reshape(len(rows), -1, 8)[..., _AWQ_ORDER].reshape(len(rows), -1))

    return {
        "qweight": pack_rows(values.T),
        "qzeros": pack_rows(torch.full((scales.shape[1], len(weight)), 8.0)),
        "scales": scales.T.to(torch.bfloat16),
    }, rounded_weight


def _write_packed(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    values, scales, rounded_weight = _round_groups(weight)
    return {
        "weight_packed": _pack_values(values),
        "weight_scale": scales.to(torch.bfloat16),
        "weight_shape": torch.tensor(weight.shape),
    }, rounded_weight


def _write_int8(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    scale = (weight.abs().amax(1, keepdim=True) / 127).to(torch.bfloat16).float()
    values = (weight / scale).round().clamp(-127, 127)
    return {"weight": values.to(torch.int8), "weight_scale": scale}, values * scale


def _write_fp8(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    scale = weight.abs().amax(1, keepdim=True) / torch.finfo(torch.float8_e4m3fn).max
    values = (weight / scale).to(torch.float8_e4m3fn)
    return {"weight": values, "weight_scale": scale}, values.float() * scale


def _make_compressed(format: str, weights: dict[str, Any], activations: dict[str, Any] | None = None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"symmetric": True, "dynamic": False, **weights}}
    if activations is not None:
        group["input_activations"] = {"symmetric": True, "dynamic": True, "strategy": "token", **activations}
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }


_INT8, _FP8 = {"num_bits": 8, "type": "int"}, {"num_bits": 8, "type": "float"}
_INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP}
FORMATS = {
    "gptq": Format(
        {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True}, _write_gptq
    ),
    "awq": Format(
        {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}, _write_awq
    ),
    "w4a16": Format(_make_compressed("pack-quantized", _INT4), _write_packed),
    "w8a8": Format(_make_compressed("int-quantized", {**_INT8, "strategy": "channel"}, _INT8), _write_int8),
    "fp8": Format(_make_compressed("float-quantized", {**_FP8, "strategy": "channel"}, _FP8), _write_fp8),
}
