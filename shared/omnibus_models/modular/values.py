"""Values that go from one component of a modular pipeline to the next, as the bytes of one tensor.

The format is that of safetensors: tensors by number, and their names and all other values in its metadata.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors.torch
import torch
from PIL import Image
from safetensors import SafetensorError
from torch import Tensor

from omnibus import errors

#: Entry of the metadata.
_VALUES = "values"


def pack_values(values: Mapping[str, Any]) -> Tensor:
    """Return ``values`` as uint8 [1, n] on the CPU.

    They are tensors, arrays, images, dtypes and plain data, also in lists, tuples and dictionaries. Raises ``Fatal``
    for other objects.
    """
    tensors: dict[str, Tensor] = {}
    tree = {name: _describe_value(value, tensors, name) for name, value in values.items()}
    data = safetensors.torch.save(tensors, {_VALUES: json.dumps(tree)})
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)[None]


def unpack_values(packed: Tensor, device: str | torch.device) -> dict[str, Any]:
    """Return the values in ``packed``, uint8 with any shape; tensors are on ``device``.

    Raises ``BadRequest`` for other bytes.
    """
    data = packed.contiguous().numpy().tobytes()
    try:
        tensors = safetensors.torch.load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        tree = json.loads(header["__metadata__"][_VALUES])
        return {name: _restore_value(node, tensors, device) for name, node in tree.items()}
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise errors.BadRequest(f"these are no values of a component of this model: {error}", param="embeds") from error


def _describe_value(value: Any, tensors: dict[str, Tensor], name: str) -> Any:
    """Return JSON for ``value``, whose tensors are added to ``tensors``."""
    node: Any
    match value:
        case None | bool() | int() | float() | str():
            node = value
        case Tensor():
            node = {"tensor": str(len(tensors))}
            tensors[node["tensor"]] = value.detach().cpu().contiguous().clone()
        case np.ndarray():
            node = {"array": _describe_value(torch.from_numpy(value), tensors, name)}
        case np.generic():
            node = value.item()
        case Image.Image():
            node = {"image": _describe_value(np.array(value), tensors, name), "mode": value.mode}
        case torch.dtype():
            node = {"dtype": str(value).removeprefix("torch.")}
        case list() | tuple():
            node = {type(value).__name__: [_describe_value(each, tensors, name) for each in value]}
        case dict():
            node = {"dict": [[key, _describe_value(each, tensors, name)] for key, each in value.items()]}
        case _:
            raise errors.Fatal(f"{name} is a {type(value).__name__}, which cannot be sent to another component")
    return node


def _restore_value(node: Any, tensors: Mapping[str, Tensor], device: str | torch.device) -> Any:
    value = node
    match node:
        case {"tensor": key}:
            value = tensors[key].to(device)
        case {"array": inner}:
            value = _restore_value(inner, tensors, "cpu").numpy()
        case {"image": inner, "mode": mode}:
            value = Image.fromarray(_restore_value(inner, tensors, "cpu"), mode)
        case {"dtype": name}:
            value = getattr(torch, name)
        case {"list": items} | {"tuple": items}:
            value = [_restore_value(each, tensors, device) for each in items]
            value = tuple(value) if "tuple" in node else value
        case {"dict": items}:
            value = {key: _restore_value(each, tensors, device) for key, each in items}
    return value
