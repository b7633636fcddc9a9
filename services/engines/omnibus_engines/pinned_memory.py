"""Pinned host memory: pages that the driver has registered, and that a GPU copies from and to directly."""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from omnibus.tensors.memory import MemoryRange

log = logging.getLogger(__name__)

#: Flags of ``cudaHostRegister``: for all contexts of the process; memory that the GPU only reads.
_PORTABLE, _READ_ONLY = 1, 8


def pin_memory(ranges: Sequence[MemoryRange]) -> Callable[[], None]:
    """Register ``ranges`` with CUDA in a thread. Returns a function that waits for this and undoes it.

    Copies from and to a range that cannot be registered are as slow as before; the log has the reason.
    """
    thread = ThreadPoolExecutor(1, "pin")
    future = thread.submit(lambda: [each for each in ranges if _register(each)])

    def unpin() -> None:
        for each in future.result():
            _unregister(each)
        thread.shutdown()

    return unpin


def _register(memory: MemoryRange) -> bool:
    flags = _PORTABLE | (0 if memory.is_writable else _READ_ONLY)
    try:
        torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(memory.address, memory.nbytes, flags))
    except RuntimeError as error:  # also if memory is too small for the arena, or a limit forbids it
        log.warning(
            "%d MiB of the arena cannot be pinned (%s), so the GPU copies them in steps. Make room for all of "
            "OMNIBUS_SIDECAR_ARENA_MIB, and set `ulimit -l unlimited`.",
            memory.nbytes >> 20, error,
        )  # fmt: skip
        return False
    return True


def _unregister(memory: MemoryRange) -> None:
    try:
        torch.cuda.check_error(torch.cuda.cudart().cudaHostUnregister(memory.address))
    except RuntimeError as error:
        log.warning("the arena remains pinned: %s", error)
