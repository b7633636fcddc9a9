"""A report says of a checkpoint what loading it would say, and reads no weight."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import DynamicCache

from omnibus.errors import Fatal, NotFound
from omnibus_models import families, tiny
from omnibus_models.examine.report import report


def changed(checkpoint: Path, copy: Path, file: str = "config.json", **fields: Any) -> Path:
    """A copy of a checkpoint with other values in a file, those of ``None`` left out."""
    shutil.copytree(checkpoint, copy, dirs_exist_ok=True)
    told = {**json.loads((copy / file).read_text()), **fields}
    (copy / file).write_text(json.dumps({name: value for name, value in told.items() if value is not None}))
    return copy


def with_weights(checkpoint: Path, copy: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> Path:
    shutil.copytree(checkpoint, copy)
    weights = load_file(copy / "model.safetensors")
    change(weights)
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    return copy


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_components_are_as_large_as_they_load(family: str, tmp_path: Path) -> None:
    checkpoint = tiny.build(family, tmp_path / "it")

    found = report(checkpoint, "bfloat16")

    assert found.complete, found
    loaded = {name: families.family(family).load(name, checkpoint, dtype="bfloat16") for name in found.parts}
    assert {name: part.parameters for name, part in found.parts.items()} == {
        name: part.parameters for name, part in loaded.items()
    }
    for name, part in loaded.items():
        held = [*part.module.parameters(), *part.module.buffers()]
        assert found.parts[name].nbytes == sum(tensor.numel() * tensor.element_size() for tensor in held)


def test_a_token_takes_what_it_takes_in_a_cache(vl: Path, vl_parts: dict[str, Any]) -> None:
    thinker, cache = vl_parts["thinker"], DynamicCache()
    inputs = thinker.embed(torch.zeros(1, 10, dtype=torch.int64))
    thinker.forward(inputs, torch.arange(10).expand(3, 1, 10), cache, None)
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)

    found = report(vl, "float32").parts

    assert found["thinker"].kv_bytes == held / 10
    assert found["thinker"].context == thinker.context
    assert found["vision"].kv_bytes == 0


def test_nothing_is_read_but_headers(vl: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(vl, copy)
    with (copy / "model.safetensors").open("r+b") as file:
        begin = 8 + int.from_bytes(file.read(8), "little")
        file.seek(0, 2)
        end = file.tell()
        file.truncate(begin)
        file.truncate(end)  # a hole

    assert report(copy).parts == report(vl).parts


def test_weights_that_are_missing_are_named_with_their_component(vl: Path, tmp_path: Path) -> None:
    lost = "model.visual.blocks.0.attn.qkv.weight"
    copy = with_weights(
        vl,
        tmp_path / "copy",
        lambda weights: weights.pop(lost.replace("model.visual", "visual"), None) is None and weights.pop(lost),
    )

    found = report(copy)

    assert found.parts["vision"].missing == [lost]
    assert found.parts["vision"].faults == [f"lacks 1 weight: {lost}"]
    assert found.parts["thinker"].faults == []
    assert not found.complete
    with pytest.raises(Fatal, match=lost):
        families.family_of(copy).load("vision", copy)
