"""Memory of an executor, and the part that weights take."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from omnibus.checkpoints import find_checkpoint, safetensors
from omnibus.checkpoints.gguf_header import is_gguf, read_gguf_header
from omnibus.errors import BadRequest, NotFound
from omnibus.families.specs import KNOWN
from omnibus.profiling.monitor import EngineStats

GB = 1e9


def memory_gb(pid: int) -> float:
    """Return the proportional set size (PSS) of ``pid`` in GB: 0 if unknown."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    fields = [line.split() for line in text.splitlines() if line.startswith("Pss:")]
    return int(fields[0][1]) * 1024 / GB if fields else 0.0


def gpu_memory_gb(stats: EngineStats) -> float:
    """Return the peak GPU memory of engines and their process, in GB.

    It is 0 if no engine reports it.
    """
    return (
        sum(
            max((float(each.get(key) or 0.0) for each in stats.values()), default=0.0)
            for key in ("gpu_bytes", "engine_gpu_bytes")
        )
        / GB
    )


def kv_bytes(stats: EngineStats) -> dict[str, tuple[float, float]]:
    """Return bytes of keys and values by component, if engines report them.

    The values are bytes per token, and the capacity in bytes.
    """
    return {
        component: (float(each["kv_bytes_per_token"]), float(each.get("kv_bytes") or 0.0))
        for component, each in stats.items()
        if each.get("kv_bytes_per_token")
    }


def weights_gb(family: str, checkpoint: str, components: Iterable[str]) -> float:
    """Return the size of ``components`` in GB: 0 for an unknown family or format.

    Components of a GGUF file, which is one language model, all have its weights.
    """
    if is_gguf(Path(checkpoint)):
        with suppress(BadRequest):
            return sum(tensor.nbytes for tensor in read_gguf_header(Path(checkpoint)).tensors.values()) / GB
    declaration = KNOWN.get(family)
    if declaration is None or not declaration.weights or not checkpoint:
        return 0.0
    parts = {*components}
    total = 0
    for path in _weight_files(checkpoint):
        with suppress(BadRequest):  # an unreadable file counts as 0; loading it raises the error
            tensors = safetensors.read_header(path).items()
            total += sum(
                tensor.nbytes for name, tensor in tensors if _loading_components(declaration.weights, name) & parts
            )
    return total / GB


def _weight_files(checkpoint: str) -> list[Path]:
    try:
        return sorted(find_checkpoint(checkpoint).glob("*.safetensors"))
    except NotFound:
        return []


def _loading_components(prefixes: Mapping[str, Sequence[str]], tensor: str) -> set[str]:
    """Return the components that load ``tensor``: all with the longest matching prefix."""
    fits = [(len(start), part) for part, starts in prefixes.items() for start in starts if tensor.startswith(start)]
    longest = max(fits, default=(0, ""))[0]
    return {part for length, part in fits if length == longest}
