"""A checkpoint with a missing tensor: the component that needs it names it, for every family."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from omnibus.errors import Fatal
from omnibus.families.specs import KNOWN
from omnibus_models import families, tiny


@pytest.mark.parametrize("name", KNOWN)
def test_each_component_names_the_weights_that_it_misses(tmp_path: Path, name: str):
    whole = tiny.build(name, tmp_path / "whole")
    family = families.load_family(name)
    stored_tensors = {path: load_file(path) for path in sorted(whole.rglob("*.safetensors"))}

    for component in family.components:
        module = family.load(component, whole).module
        if not any(True for _ in module.parameters()):
            continue  # a pipeline from text alone encodes no image
        weight, path, key = choose_weight(module, stored_tensors)
        lacking = copy_without(whole, tmp_path / component, path, key, stored_tensors)

        with pytest.raises(Fatal) as caught:
            family.load(component, lacking)

        assert "lacks weights of" in caught.value.message, (component, key)
        assert weight in caught.value.message, (component, key)


def choose_weight(
    module: torch.nn.Module, stored_tensors: dict[Path, dict[str, torch.Tensor]]
) -> tuple[str, Path, str]:
    """Choose a weight loaded from one tensor; returns the end of its name, the tensor's file, and its key."""
    candidates = [
        (".".join(weight.rsplit(".", 2)[1:]), *places[0])
        for weight, parameter in module.named_parameters()
        if len(places := list(find_equal(parameter, stored_tensors))) == 1
    ]
    return candidates[len(candidates) // 2]


def find_equal(
    parameter: torch.Tensor, stored_tensors: dict[Path, dict[str, torch.Tensor]]
) -> Iterator[tuple[Path, str]]:
    for path, tensors in stored_tensors.items():
        for key, tensor in tensors.items():
            if tensor.shape == parameter.shape and torch.equal(tensor, parameter):
                yield path, key


def copy_without(
    whole: Path, target: Path, lacking: Path, key: str, stored_tensors: dict[Path, dict[str, Any]]
) -> Path:
    """Copy all files of ``whole``, except the tensor ``key``."""
    for path in whole.rglob("*"):
        copy = target / path.relative_to(whole)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path == lacking:
            rest = {name: tensor for name, tensor in stored_tensors[path].items() if name != key}
            save_file(rest, copy, metadata={"format": "pt"})
        elif path.is_file():
            copy.symlink_to(path)
    return target
