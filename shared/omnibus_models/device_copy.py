"""Copies between arrays of the host and tensors of a device."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def copy_to_device(arrays: Sequence[np.ndarray], device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    """Return each of ``arrays`` as ``dtype`` on ``device``.

    On a GPU, their memory may be reused afterwards. The GPU reads arrays in pinned memory itself, one copy after the
    other, and this function waits once for all. Conversions of types happen on the device. On a CPU, an array that
    needs no conversion shares its memory.
    """
    copies = [torch.from_numpy(array).to(device, non_blocking=True) for array in arrays]
    if copies:
        finish_copies(device)
    return [copy.to(dtype) for copy in copies]


def copy_to_host(tensor: Tensor) -> np.ndarray:
    """Return ``tensor`` in host memory, floats as float32; a float32 tensor on a CPU is not copied."""
    values = tensor.float() if tensor.is_floating_point() else tensor
    if values.device.type == "cpu":
        return values.numpy()
    host = empty_on_host(values.shape, values.dtype, values.device)
    host.copy_(values, non_blocking=True)
    finish_copies(values.device)
    return host.numpy()


def empty_on_host(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return host memory that ``device`` writes to directly, see ``finish_copies``.

    For a GPU it is pinned memory that torch reuses. Pages that are new to a process cost many times as much as the
    copy.
    """
    return torch.empty(*shape, dtype=dtype, pin_memory=device.type == "cuda")


def finish_copies(device: torch.device) -> None:
    """Wait until asynchronous copies of ``device`` are complete."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
