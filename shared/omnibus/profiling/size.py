"""How much memory an executor takes, and how much of it are weights."""

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from omnibus.known import KNOWN

GB = 1e9
_HEADER = 100 << 20  # bytes of a header at most, as the format has it


def memory_gb(pid: int) -> float:
    """What process ``pid`` takes, with its part of what it shares (PSS); 0 where the system does not say."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    found = [line.split() for line in text.splitlines() if line.startswith("Pss:")]
    return int(found[0][1]) * 1024 / GB if found else 0.0


def weights_gb(family: str, checkpoint: str, components: Iterable[str]) -> float:
    """Size of the tensors of ``components``; 0 for a family or a form of checkpoint that is not known here."""
    known = KNOWN.get(family)
    if known is None or not known.weights or not checkpoint:
        return 0.0
    wanted = {*components}
    total = 0
    for path in sorted(Path(checkpoint).glob("*.safetensors")):
        total += sum(size for name, size in _tensors(path) if _owners(known.weights, name) & wanted)
    return total / GB


def _owners(prefixes: Mapping[str, Sequence[str]], tensor: str) -> set[str]:
    """The components that load ``tensor``: all that name the longest beginning that fits."""
    fits = [(len(start), part) for part, starts in prefixes.items() for start in starts if tensor.startswith(start)]
    longest = max(fits, default=(0, ""))[0]
    return {part for length, part in fits if length == longest}


def _tensors(path: Path) -> list[tuple[str, int]]:
    """Names and bytes of a safetensors file's tensors; none when it is no such file."""
    try:
        with path.open("rb") as file:
            length = struct.unpack("<Q", file.read(8))[0]
            header = json.loads(file.read(length)) if length <= _HEADER else {}
        return [
            (name, end - begin) for name, each in header.items() for begin, end in [each.get("data_offsets", (0, 0))]
        ]
    except (OSError, struct.error, ValueError, AttributeError, TypeError):
        return []
