"""Choices of ``omnibus serve`` for one checkpoint on one machine: dtype, context, requests at a time, shape."""

import importlib.util
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from omnibus.checkpoints.gguf_header import GGUF_BLOCKS, LLAMA_CPP, is_gguf
from omnibus.checkpoints.report import Report
from omnibus.checkpoints.safetensors import TensorHeader
from omnibus.cli.format.models import option_bytes
from omnibus.cli.format.tables import size_text
from omnibus.errors import BadRequest
from omnibus.executor.settings import INT8
from omnibus.families import catalog
from omnibus.spare_places import count_spare_places

#: Bytes of a weight of each dtype that executors load.
DTYPES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
#: What llama.cpp needs, and its sequences at a time: memory of all is taken at the start.
_LLAMA_CPP_PACKAGE, LLAMA_CPP_BATCH = "xllamacpp", 4
#: Dtypes in headers of safetensors and of GGUF, and those that executors load them in.
_STORED = {"F64": "float32", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
#: Memory of services, libraries and the arena beside weights and cache, an estimate.
SYSTEM_BYTES = 1 << 30
#: The least context in tokens that is chosen without `--max-model-len`, and the unit of chosen contexts.
_MIN_CONTEXT, _CONTEXT_STEP = 2048, 256
#: Names in /proc/cpuinfo of instructions that multiply bfloat16: of x86, of ARM.
_BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
_CPU_INFO, _THREADS_PER_CORE = Path("/proc/cpuinfo"), Path("/sys/devices/system/cpu/smt/active")


class Machine(msgspec.Struct, frozen=True):
    """The device that serves: its free memory in bytes, None if unknown, and whether it multiplies bfloat16."""

    device: str
    free_bytes: int | None = None
    bfloat16: bool = True

    @property
    def is_cpu(self) -> bool:
        return self.device.partition(":")[0] == "cpu"


class CachePlan(NamedTuple):
    """Longest sequence in tokens (0 without a language model), and sequences at a time."""

    context: int
    batch: int


def multiplies_bfloat16(cpu_info: Path = _CPU_INFO) -> bool:
    """Return whether this CPU has instructions for bfloat16. Without them it emulates each product."""
    try:
        return not _BFLOAT16_FLAGS.isdisjoint(cpu_info.read_text().split())
    except OSError:  # not Linux
        return False


def count_threads(executors: int = 1, smt: Path = _THREADS_PER_CORE) -> int:
    """Return the CPU threads of each of ``executors``: this process's cores, shared evenly."""
    try:
        per_core = 2 if smt.read_text().strip() == "1" else 1
    except OSError:  # not Linux
        per_core = 1
    return max(1, len(os.sched_getaffinity(0)) // per_core // executors)


def choose_engine(checkpoint: Path, machine: Machine) -> str:
    """Return the engine for ``checkpoint``: llama.cpp for a GGUF file on a CPU if it is installed, else "", the usual
    one."""
    has_llama_cpp = is_gguf(checkpoint) and importlib.util.find_spec(_LLAMA_CPP_PACKAGE) is not None
    return LLAMA_CPP if machine.is_cpu and has_llama_cpp else ""


def quantise_report(report: Report, tensors: Sequence[TensorHeader]) -> Report:
    """Return ``report`` with the weights of its language model as they are in its file."""
    nbytes = sum(tensor.nbytes for tensor in tensors)
    parts = dict(report.parts)
    if "thinker" in parts:
        parts["thinker"] = msgspec.structs.replace(parts["thinker"], nbytes=nbytes)
    types = Counter[str]()
    for tensor in tensors:
        types[tensor.dtype] += tensor.nbytes
    return msgspec.structs.replace(report, parts=parts, dtype=types.most_common(1)[0][0])


def stored_dtype(tensors: Iterable[TensorHeader]) -> str:
    """Return the dtype of most of the weights that are floats.

    Blocks of GGUF are dequantised at load, and bfloat16 is enough for their values.
    """
    byte_counts: Counter[str] = Counter()
    for tensor in tensors:
        stored = "bfloat16" if tensor.dtype in GGUF_BLOCKS else _STORED.get(tensor.dtype, "")
        byte_counts[stored] += tensor.nbytes
    byte_counts.pop("", None)
    return byte_counts.most_common(1)[0][0] if byte_counts else "float32"


def loaded_bytes(tensors: Iterable[TensorHeader], dtype: str) -> int:
    """Return the bytes of ``tensors`` in memory.

    Floats and blocks of GGUF are loaded in ``dtype``, other quantised weights as they are.
    """
    sizes = {name: DTYPES[dtype] / DTYPES[stored] for name, stored in _STORED.items()} | {"F64": DTYPES[dtype] / 8}
    return int(
        sum(
            prod(tensor.shape) * DTYPES[dtype]
            if tensor.dtype in GGUF_BLOCKS
            else tensor.nbytes * sizes.get(tensor.dtype, 1)
            for tensor in tensors
        )
    )


def choose_dtype(requested: str, tensors: Sequence[TensorHeader], machine: Machine) -> str:
    """Return the dtype for ``requested``, which may be ``auto``.

    This is that of the weights on a GPU. On a CPU it is float32, unless the CPU multiplies bfloat16, or float32 weights
    do not fit into its memory. Raises ``BadRequest`` for integers on a GPU.
    """
    stored = stored_dtype(tensors)
    if requested == INT8 and not machine.is_cpu:
        raise BadRequest(f"--dtype int8 is for CPUs: choose another one for {machine.device}, or --device cpu")
    if requested != "auto":
        return requested
    if not machine.is_cpu:
        return "float16" if stored == "bfloat16" and not machine.bfloat16 else stored
    usual = stored if stored == "bfloat16" and machine.bfloat16 else "float32"
    return usual if _fits(loaded_bytes(tensors, usual), machine) else stored


def require_memory(name: str, nbytes: int, dtype: str, machine: Machine) -> None:
    """Raise ``BadRequest`` if weights of ``nbytes`` do not fit into the machine's free memory."""
    if not _fits(nbytes, machine):
        smaller = "--dtype bfloat16, " if dtype == "float32" else ""
        raise BadRequest(
            f"{name} does not fit: its weights in {dtype} take {size_text(nbytes)} and the system "
            f"{size_text(SYSTEM_BYTES)}, but {_free_text(machine)}. Use {smaller}a smaller or quantised checkpoint, "
            "or free memory"
        )


def choose_shape(family: str) -> list[str]:
    """Return the options of the family's path with the fewest executors.

    Several executors pay off on several devices. On one, they would only load more and copy tensors.
    """
    shapes: list[list[str]] = [list(path["options"]) for path in catalog.find_family(family)["paths"]]
    return min(shapes, key=len)


def plan_cache(report: Report, options: Sequence[str], context: int, batch: int, machine: Machine) -> CachePlan:
    """Return the longest sequence, at most ``context`` unless that is 0, and sequences at a time, at most ``batch``.

    Their caches fit next to the weights. Raises ``BadRequest`` if ``context`` does not, or only a very short one does.
    """
    parts = [part for part in report.parts.values() if part.kv_bytes and part.context]
    if not parts:
        return CachePlan(0, batch)
    longest = max(part.context for part in parts)
    chosen = min(context or longest, longest)
    if machine.free_bytes is None:
        return CachePlan(chosen, batch)
    sizes = option_bytes(report)
    room = machine.free_bytes - SYSTEM_BYTES - sum(sizes.get(option, 0) for option in options)
    fitting = max(0, room) // (_row_count(1) * sum(part.kv_bytes for part in parts))
    if fitting < chosen:
        fitting -= fitting % _CONTEXT_STEP
        if context or fitting < min(_MIN_CONTEXT, longest):
            raise _cache_error(report, chosen, fitting, machine)
        chosen = fitting
    row_bytes = sum(part.kv_bytes * min(chosen, part.context) for part in parts)
    return CachePlan(
        chosen, max(count for count in range(1, batch + 1) if count == 1 or _row_count(count) * row_bytes <= room)
    )


def declare(name: str, report: Report, checkpoint: str, options: Sequence[str], context: int) -> dict[str, Any]:
    """Return the declaration that serves ``checkpoint`` as ``name`` in ``options``."""
    model: dict[str, Any] = {"family": report.family, "checkpoint": checkpoint}
    if len(catalog.find_family(report.family)["paths"]) > 1:
        model["paths"] = [{"options": list(options), "share": 1}]
    if context:
        model["context"] = context
    if report.image_defaults:
        model["image_defaults"] = report.image_defaults
    return {"models": {name: model}}


def _row_count(batch: int) -> int:
    """Return the sequences that an executor has memory for."""
    return batch + count_spare_places(batch)


def _fits(nbytes: int, machine: Machine) -> bool:
    return machine.free_bytes is None or nbytes + SYSTEM_BYTES <= machine.free_bytes


def _free_text(machine: Machine) -> str:
    return f"{size_text(machine.free_bytes or 0)} of memory is free" + (
        "" if machine.is_cpu else f" on {machine.device}"
    )


def _cache_error(report: Report, context: int, fitting: int, machine: Machine) -> BadRequest:
    kv_bytes = sum(part.kv_bytes for part in report.parts.values())
    weights = sum(part.nbytes for part in report.parts.values())
    remedy = f"--max-model-len {fitting} or less, " if fitting > 0 else ""
    return BadRequest(
        f"{Path(report.path).name} does not fit: its weights in {report.dtype} take {size_text(weights)}, the cache of "
        f"{context} tokens {size_text(_row_count(1) * kv_bytes * context)} and the system {size_text(SYSTEM_BYTES)}, "
        f"but {_free_text(machine)}. Use {remedy}--dtype bfloat16 or a smaller checkpoint, or free memory"
    )
