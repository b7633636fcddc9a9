"""Calls of vocoders as small JSON and one array of bytes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from omnibus_models.contract import VocoderCall

_PLAIN = (bool, int, float, str, type(None))


def pack_call(call: VocoderCall) -> tuple[dict[str, Any], np.ndarray]:
    """Return the JSON of ``call``, and its tensors as uint8 [n].

    Raises ``ValueError`` for an argument that is neither a tensor nor a plain value.
    """
    parts: list[Tensor] = []

    def describe_value(value: Any) -> Any:
        if isinstance(value, _PLAIN):
            return {"value": value}
        if isinstance(value, (list, tuple)):
            return {"list": [describe_value(each) for each in value]}
        if not isinstance(value, Tensor):
            raise ValueError(f"a vocoder takes a {type(value).__name__}, which cannot travel")
        parts.append(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8))
        return {"dtype": str(value.dtype).removeprefix("torch."), "shape": [*value.shape]}

    about = {
        "args": [describe_value(value) for value in call.args],
        "named": {name: describe_value(value) for name, value in call.named.items()},
        "partial": call.partial,
    }
    return about, torch.cat(parts).numpy() if parts else np.zeros(0, np.uint8)


def unpack_call(data: Mapping[str, Any], array: np.ndarray) -> VocoderCall:
    """Return the call that ``pack_call`` packed. Raises ``ValueError`` for anything else."""
    content, place = torch.from_numpy(array.copy()), 0

    def read_value(about: Mapping[str, Any]) -> Any:
        nonlocal place
        if "list" in about:
            return [read_value(each) for each in about["list"]]
        if "dtype" not in about:
            return about["value"]
        dtype, shape = getattr(torch, about["dtype"]), about["shape"]
        size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        place += size
        return content[place - size : place].clone().view(dtype).reshape(shape)

    try:
        args: Sequence[Any] = [read_value(each) for each in data["args"]]
        call = VocoderCall(
            args, {name: read_value(each) for name, each in data["named"].items()}, bool(data["partial"])
        )
    except (AttributeError, KeyError, RuntimeError, TypeError) as error:
        raise ValueError(f"this is not the call of a vocoder: {error}") from error
    if place != len(array):
        raise ValueError("the tensors of a vocoder's call do not match its description")
    return call
