"""``python -m omnibus_models.device DEVICE``: checks that torch can compute there, and describes it.

``auto`` is the first GPU, or the CPU without one.

See ``omnibus.process.run_module``.

Copies between arrays of the host and tensors of a device.

GPU streams that run an encoder's kernels concurrently with a language model's.
"""

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from omnibus.errors import BadRequest
from omnibus.process import run_module


def check_device(name: str) -> str:
    """Return the name of the device ``name``, such as ``cuda:1``.

    Raises ``BadRequest`` with torch's error.
    """
    import torch

    try:
        return str(torch.zeros(1, device=name).device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        here = "cuda is available" if torch.cuda.is_available() else "this machine has no GPU that torch can use"
        raise BadRequest(f"OMNIBUS_EXECUTOR_DEVICE={name!r}: {reason} ({here}; `cpu` always works)") from error


def describe_device(name: str) -> dict[str, Any]:
    """Return the device ``name``, its free memory in bytes (None if unknown), and whether it multiplies bfloat16.

    Raises as ``check_device``.
    """
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = check_device(name)
    if not device.startswith("cuda"):
        return {"device": name, "free_bytes": None, "bfloat16": True}
    free_bytes, _ = torch.cuda.mem_get_info(device)
    return {"device": name, "free_bytes": free_bytes, "bfloat16": torch.cuda.is_bf16_supported(False)}


if __name__ == "__main__":
    sys.exit(run_module.report_answer(lambda: describe_device(sys.argv[1])))


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


def own_stream(device: str) -> AbstractContextManager[Any]:
    """Return a new stream on ``device``: a null context on a CPU.

    It is for one thread, which may enter it repeatedly.
    """
    if not device.startswith("cuda"):
        return nullcontext()
    return torch.cuda.stream(torch.cuda.Stream(torch.device(device)))
