"""Changes of a Qwen2.5-VL checkpoint: realistic conversion faults, and harmless ones."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Weights = dict[str, torch.Tensor]
#: A change of the files in a directory.
Edit = Callable[[Path], None]

VISION_BLOCK, LAYER = "visual.blocks.{}.", "model.layers.{}."
_WEIGHTS, _METADATA = "model.safetensors", {"format": "pt"}


def copy_checkpoint(source: Path, target: Path, edit: Edit) -> Path:
    """Copy a checkpoint and change the copy."""
    shutil.copytree(source, target)
    edit(target)
    return target


def edit_weights(change: Callable[[Weights], None]) -> Edit:
    """An edit of the tensors by name."""

    def apply_edit(directory: Path) -> None:
        weights = load_file(directory / _WEIGHTS)
        change(weights)
        save_file({name: each.contiguous() for name, each in weights.items()}, directory / _WEIGHTS, _METADATA)

    return apply_edit


def edit_json(name: str, change: Callable[[Any], None]) -> Edit:
    """An edit of a JSON file."""

    def apply_edit(directory: Path) -> None:
        content = json.loads((directory / name).read_text())
        change(content)
        (directory / name).write_text(json.dumps(content, sort_keys=True))

    return apply_edit


def edit_text(name: str, old: str, new: str) -> Edit:
    """Edit a text file, which must contain ``old``."""

    def apply_edit(directory: Path) -> None:
        text = (directory / name).read_text()
        assert old in text, f"{name} has no {old!r}"
        (directory / name).write_text(text.replace(old, new))

    return apply_edit


def zero_row(name: str, row: int) -> Edit:
    """One row of a matrix is missing."""

    def change_weights(weights: Weights) -> None:
        weights[name][row] = 0

    return edit_weights(change_weights)


def zero_tensor(name: str) -> Edit:
    """One tensor is missing."""

    def change_weights(weights: Weights) -> None:
        weights[name] = torch.zeros_like(weights[name])

    return edit_weights(change_weights)


def swap_layers(prefix: str) -> Edit:
    """Layers 0 and 1 below ``prefix`` are in each other's place."""
    first, second = prefix.format(0), prefix.format(1)

    def change_weights(weights: Weights) -> None:
        for name in [each for each in weights if each.startswith(first)]:
            other = second + name.removeprefix(first)
            weights[name], weights[other] = weights[other], weights[name]

    return edit_weights(change_weights)


def flip_channels(weights: Weights) -> None:
    """Colours are read in the wrong order."""
    name = "visual.patch_embed.proj.weight"
    weights[name] = weights[name].flip(1)


def round_weights(prefix: str, levels: int) -> Edit:
    """Round matrices below ``prefix`` to ``levels`` values on each side of zero."""

    def change_weights(weights: Weights) -> None:
        for name, each in weights.items():
            if name.startswith(prefix) and each.ndim > 1:
                scale = each.abs().max() / levels
                weights[name] = (each / scale).round() * scale

    return edit_weights(change_weights)


def add_noise(prefix: str, part: float) -> Edit:
    """Change weights below ``prefix`` by ``part``, as other kernels would.

    The difference is below tolerances.
    """

    def change_weights(weights: Weights) -> None:
        generator = torch.Generator().manual_seed(1)
        for name, each in weights.items():
            if name.startswith(prefix):
                weights[name] = each * (1 + part * torch.randn(each.shape, generator=generator))

    return edit_weights(change_weights)


def swap_tokens(tokenizer: Any) -> None:
    """Two frequent words have each other's number."""
    words = tokenizer["model"]["vocab"]
    words["Ġis"], words["Ġand"] = words["Ġand"], words["Ġis"]


def shard_weights(directory: Path) -> None:
    """Split the weights into two files, as other tools save them."""
    weights = load_file(directory / _WEIGHTS)
    names, index = sorted(weights), dict[str, str]()
    for part, part_names in enumerate((names[::2], names[1::2]), 1):
        file = f"model-0000{part}-of-00002.safetensors"
        save_file({name: weights[name] for name in part_names}, directory / file, _METADATA)
        index |= dict.fromkeys(part_names, file)
    (directory / f"{_WEIGHTS}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    (directory / _WEIGHTS).unlink()


def add_file(directory: Path) -> None:
    """Add a file that no loader reads."""
    (directory / "NOTES.md").write_text("the same weights\n")


def keep_copy(_: Path) -> None:
    """Leave the copy unchanged."""
