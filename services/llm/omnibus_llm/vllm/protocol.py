"""Interface that a version of vLLM must implement. It is small and uses none of vLLM's types.

Shared memory without a name: another process of this user opens it while its owner keeps it open.

No file remains if a process dies: the kernel frees the memory with the last descriptor.
"""

import os
import weakref
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from omnibus.checkpoints.adapters import AdapterSource
from omnibus.executor.step_budget import NO_GOALS, StepGoals
from omnibus_llm.engine.model import NO_ADAPTERS, AdapterLimits
from omnibus_llm.engine.sampler import TokenLogprobs
from omnibus_models.contract import TokenSamplingParams

#: The location of memory for another process: small JSON.
Place = dict[str, Any]


class SharedBuffer:
    """Bytes that grow as they are written; free them with ``close``, or by dropping the last reference."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("omnibus-llm", os.MFD_CLOEXEC)
        self.close = weakref.finalize(self, os.close, self._fd)
        self._size = 0

    @property
    def place(self) -> Place:
        """Current location of the memory. The inode distinguishes it from later memory under the same descriptor."""
        status = os.fstat(self._fd)
        return {"path": f"/proc/{os.getpid()}/fd/{self._fd}", "inode": status.st_ino, "nbytes": status.st_size}

    def append(self, array: np.ndarray) -> int:
        """Write the bytes of a contiguous ``array`` at the end; returns their offset."""
        offset, left = self._size, array.data.cast("B")
        while left:
            written_bytes = os.pwrite(self._fd, left, self._size)
            self._size += written_bytes
            left = left[written_bytes:]
        return offset

    def read(self, offset: int, nbytes: int) -> bytes | None:
        """Return ``nbytes`` at ``offset``, or None if they were not written."""
        buffer = bytearray()
        while len(buffer) < nbytes:
            piece = os.pread(self._fd, nbytes - len(buffer), offset + len(buffer))
            if not piece:
                return None
            buffer += piece
        return bytes(buffer)


def open_memory(place: Place, flags: int = os.O_RDONLY) -> int:
    """Open another process's memory; returns a descriptor. Raises ``FileNotFoundError`` after its owner released it."""
    fd = os.open(place["path"], flags | os.O_CLOEXEC)
    if os.fstat(fd).st_ino != place["inode"]:
        os.close(fd)
        raise FileNotFoundError(f"the memory at {place['path']} was released")
    return fd


def map_memory(place: Place, dtype: torch.dtype, shared: bool = False) -> torch.Tensor:
    """Return the numbers written before ``place`` was made, as a vector.

    Makes no copy. With ``shared``, writes to the tensor are visible to all processes. The tensor keeps no descriptor.
    Raises as ``open_memory``, and ``RuntimeError``.
    """
    fd = open_memory(place, os.O_RDWR if shared else os.O_RDONLY)
    try:
        count = place["nbytes"] // dtype.itemsize
        # Python's own mmap would keep a copy of the descriptor as long as the tensor lives.
        return torch.from_file(f"/proc/self/fd/{fd}", shared=shared, size=count, dtype=dtype)
    finally:
        os.close(fd)


def relocate_place(place: Place, fd: int) -> Place:
    """Return ``place`` as other processes find it through this process's own descriptor."""
    return {**place, "path": f"/proc/{os.getpid()}/fd/{fd}"}


@dataclass(frozen=True)
class Launch:
    """Parameters for the start of an engine.

    ``slots`` is the most sequences in one step, ``context`` the longest sequence, ``step_tokens`` the most prompt
    tokens in one step. ``kv_bytes`` is the size of the KV cache, and ``threads`` those of the CPU; 0 leaves either to
    the engine. ``memory`` is the share of a GPU's memory. ``rows`` requests hidden rows. ``halves`` allows transfers of
    prompts' caches. ``goals`` determine the tokens of a step, up to ``step_tokens``. With ``prefix_cache`` prompts
    reuse the blocks of earlier ones. ``adapters`` are names and directories of LoRA adapters, and ``loadable`` limits
    others that requests may bring. ``quantization`` is vLLM's name of a method for weights that the checkpoint has in
    full precision. ``speculative_tokens`` are drafted in each step, 0 for none. The checkpoint ``speculative_model``
    drafts them, or n-grams without it. ``tensor_parallel`` GPUs share each layer, and each of ``pipeline_parallel``
    groups of them has a part of the layers.
    """

    component: str
    checkpoint: Path
    device: str
    dtype: str
    slots: int
    context: int
    step_tokens: int
    kv_bytes: int
    memory: float
    tensor_parallel: int
    eager: bool
    threads: int
    rows: bool = False
    halves: bool = False
    goals: StepGoals = NO_GOALS
    prefix_cache: bool = True
    adapters: tuple[tuple[str, Path], ...] = ()
    loadable: AdapterLimits = NO_ADAPTERS
    quantization: str = ""
    speculative_tokens: int = 0
    speculative_model: Path | None = None
    pipeline_parallel: int = 1


@dataclass(frozen=True)
class Medium:
    """One media item of a prompt.

    ``key`` is a hash of the embedding and its metadata: items with equal keys are equal. Its rows replace the prompt's
    ids from ``start``. ``shape`` [n, H] lies at ``offset`` of the request's parcel in the engine's dtype.
    """

    key: str
    modality: str
    start: int
    shape: tuple[int, int]
    offset: int


class Positions(NamedTuple):
    """Rotary positions of a prompt: int32 [axes, T], and the offset of those of generated tokens."""

    prompt: Tensor
    delta: int


class CacheBlockLayout(NamedTuple):
    """Memory layout of an engine's caches: uint8 [layers, blocks, ``nbytes``] with ``tokens`` tokens in a block.

    Engines with the same ``name`` read each other's caches. ``blocks`` is the total of this engine.
    """

    name: str
    layers: int
    nbytes: int
    tokens: int
    blocks: int

    def count(self, length: int) -> int:
        """Return the blocks of a sequence of ``length`` tokens."""
        return -(-length // self.tokens)


class ExternalCache(NamedTuple):
    """A cache from another engine: of the first ``length`` ids, which may be placeholders.

    ``delta`` is added to later rotary positions.
    """

    place: Place
    length: int
    delta: int


@dataclass(frozen=True)
class Generation:
    """One request.

    ``positions`` None means counted from 0. ``rows`` is the place for the hidden row of each position, float32 [H], one
    after another. ``gives`` is the place for the cache of the prompt. ``draws`` is the number of tokens of the answer
    that were chosen elsewhere, the last of ``ids``: so many random numbers were used. Of waiting requests the one with
    the lowest ``priority`` is first. ``adapter`` is the name of its LoRA adapter; empty means the base model. With an
    ``adapter_source`` it is loaded from there. Blocks of the prompt are shared with requests that have the same
    ``cache_salt`` and are ``spoken`` as well. Hidden rows of ``spoken`` requests are kept with the blocks, with or
    without ``rows``.
    """

    id: str
    ids: Sequence[int]
    media: Sequence[Medium]
    positions: Positions | None
    parcel: Place | None
    rows: Place | None
    sampling: TokenSamplingParams
    ends: frozenset[int]
    gives: Place | None = None
    takes: ExternalCache | None = None
    draws: int = 0
    priority: int = 0
    adapter: str = ""
    adapter_source: AdapterSource | None = None
    cache_salt: str = ""
    spoken: bool = False


class Tokens(NamedTuple):
    """The next tokens. ``finish`` is ``stop`` or ``length`` with the last ones.

    ``logprobs`` are those of each token, if requested. ``cached`` is the number of prompt tokens that the engine reused
    from earlier prompts.
    """

    ids: Sequence[int]
    finish: str | None
    logprobs: Sequence[TokenLogprobs] = ()
    cached: int = 0


class VllmEngine(Protocol):
    """One engine, started once. All methods are called on the event loop."""

    @property
    def layout(self) -> CacheBlockLayout:
        """Memory layout of the engine's caches; available after a launch with ``halves``."""

    @property
    def keeps_rows(self) -> bool:
        """True if hidden rows are kept with blocks of prompts.

        ``spoken`` requests then start with those of earlier ones. Available after ``start``.
        """

    async def start(self) -> None:
        """Load the weights, which takes long. Raises the library's errors."""

    def generate(self, generation: Generation) -> AsyncGenerator[Tokens, None]:
        """Yield tokens as they arrive; closing the generator aborts the request within a step.

        The rows of all positions but the last are written before its token arrives, and the cache in ``gives`` before
        the first token. Raises ``BadRequest``, as ``AdapterSlots.use`` for an adapter of the request, ``StageFailed``,
        and ``StageUnavailable`` if the engine is dead.
        """

    async def deliver(self, generation: Generation, consume: Callable[[Tokens], bool]) -> None:
        """Call ``consume`` with the tokens of ``generate``, without a task.

        It is called in the turns of the event loop in which tokens arrive, so no task is woken for each. Returns when
        there are no more, or ``consume`` has returned True. A cancellation aborts the request within a step. Raises as
        ``generate`` and ``consume`` do.
        """

    async def wait_for_exit(self) -> None:
        """Wait until the engine is dead."""

    async def stop(self) -> None:
        """Stop the engine and all processes that it started. Stopping twice is harmless."""

    def stats(self) -> dict[str, Any]:
        """Return counters.

        They are parameters, used, waiting, tokens, prompt_tokens, kv_usage, prefix_hits and prefix_hit_rate. Those of
        memory are kv_bytes, kv_bytes_per_token and engine_gpu_bytes.
        """
