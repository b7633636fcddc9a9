"""Copies of arrays to a device, side by side."""

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
    if device.type == "cuda" and copies:
        torch.cuda.current_stream(device).synchronize()
    return [copy.to(dtype) for copy in copies]
