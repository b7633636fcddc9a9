"""Copies between arrays of the host and tensors of a device."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def copy_to_device(arrays: Sequence[np.ndarray], device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    """Return each of ``arrays`` as ``dtype`` on ``device``; their memory may be of somebody else afterwards on a GPU.

    Arrays in pinned memory are read by the GPU itself, one copy behind the other, and this waits once for all.
    What has another type is converted on the device. On a CPU what needs no conversion shares the array's memory.
    """
    copies = [torch.from_numpy(array).to(device, non_blocking=True) for array in arrays]
    if copies:
        finish_copies(device)
    return [copy.to(dtype) for copy in copies]


def copy_to_host(tensor: Tensor) -> np.ndarray:
    """Return ``tensor`` as float32 in memory of the host; on a CPU without a copy where it has that type."""
    values = tensor.float()
    if values.device.type == "cpu":
        return values.numpy()
    host = empty_on_host(values.shape, values.dtype, values.device)
    host.copy_(values, non_blocking=True)
    finish_copies(values.device)
    return host.numpy()


def empty_on_host(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return memory of the host that ``device`` writes to by itself, see ``finish_copies``.

    For a GPU it is pinned memory that torch keeps for the next one: pages that are new to a process cost many times as
    much as the copy itself.
    """
    return torch.empty(*shape, dtype=dtype, pin_memory=device.type == "cuda")


def finish_copies(device: torch.device) -> None:
    """Wait until copies that ``device`` makes without being waited for are complete."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
