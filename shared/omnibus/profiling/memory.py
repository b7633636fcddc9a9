"""Memory that an executor takes, and the part of it that weights take."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from omnibus.checkpoints import find_checkpoint, safetensors
from omnibus.errors import BadRequest, NotFound
from omnibus.families.specs import KNOWN
from omnibus.profiling.engine_stats import EngineStats

GB = 1e9


def memory_gb(pid: int) -> float:
    """Return the memory of process ``pid`` (proportional set size, PSS), in GB; 0 where the system does not say."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    found = [line.split() for line in text.splitlines() if line.startswith("Pss:")]
    return int(found[0][1]) * 1024 / GB if found else 0.0


def gpu_memory_gb(stats: EngineStats) -> float:
    """Return the most memory of GPUs that engines and their process have reserved, in GB; 0 where none says."""
    return (
        sum(
            max((float(each.get(key) or 0.0) for each in stats.values()), default=0.0)
            for key in ("gpu_bytes", "engine_gpu_bytes")
        )
        / GB
    )


def kv_bytes(stats: EngineStats) -> dict[str, tuple[float, float]]:
    """Return the bytes of keys and values by component, as far as engines say: per token, and those there is room
    for."""
    return {
        component: (float(each["kv_bytes_per_token"]), float(each.get("kv_bytes") or 0.0))
        for component, each in stats.items()
        if each.get("kv_bytes_per_token")
    }


def weights_gb(family: str, checkpoint: str, components: Iterable[str]) -> float:
    """Size of the tensors of ``components``; 0 for a family or a form of checkpoint that is not known here."""
    known = KNOWN.get(family)
    if known is None or not known.weights or not checkpoint:
        return 0.0
    chosen = {*components}
    total = 0
    for path in _weight_files(checkpoint):
        with suppress(BadRequest):  # of a file that cannot be read nothing is known, whoever loads it will say so
            tensors = safetensors.read_header(path).items()
            total += sum(tensor.nbytes for name, tensor in tensors if _loading_components(known.weights, name) & chosen)
    return total / GB


def _weight_files(checkpoint: str) -> list[Path]:
    try:
        return sorted(find_checkpoint(checkpoint).glob("*.safetensors"))
    except NotFound:
        return []


def _loading_components(prefixes: Mapping[str, Sequence[str]], tensor: str) -> set[str]:
    """The components that load ``tensor``: all that name the longest beginning that fits."""
    fits = [(len(start), part) for part, starts in prefixes.items() for start in starts if tensor.startswith(start)]
    longest = max(fits, default=(0, ""))[0]
    return {part for length, part in fits if length == longest}
