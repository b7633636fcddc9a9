"""Identity of a component's weights: equal digests mean equal weights, read from the files without loading them.

Of each tensor the name within its component, type and shape count, and its bytes: all of a small one, of a large one
pieces at the beginning, in the middle and at the end. Training moves weights everywhere, so pieces tell them apart.
"""

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

from omnibus.checkpoints.safetensors import find_weight_files, read_header
from omnibus.errors import BadRequest

_PIECE_BYTES = 4096


def component_digest(directory: Path, component: str, prefixes: Mapping[str, Sequence[str]]) -> str:
    """Digest of the weights of ``component`` in the checkpoint ``directory``; empty when they are not known there.

    ``prefixes`` say how the names of each component's tensors begin, the longest that fits counts.
    """
    if not prefixes.get(component) or not directory.is_dir():
        return ""
    files, lost = find_weight_files(directory)
    if lost:
        return ""
    try:
        found = sorted(entry for file in files for entry in _tensor_digests(file, component, prefixes))
    except (BadRequest, OSError, ValueError, LookupError, struct.error):  # whoever loads it says what is wrong
        return ""
    return blake2b("\n".join(found).encode(), digest_size=16).hexdigest() if found else ""


def _tensor_digests(file: Path, component: str, prefixes: Mapping[str, Sequence[str]]) -> Iterator[str]:
    headers = read_header(file)
    with file.open("rb") as data:
        length = struct.unpack("<Q", data.read(8))[0]
        entries = json.loads(data.read(length))
        for name, header in headers.items():
            stem = _component_stem(name, component, prefixes)
            if stem is not None:
                begin = 8 + length + int(entries[name]["data_offsets"][0])
                shape = "x".join(map(str, header.shape))
                yield f"{name[len(stem) :]} {header.dtype} {shape} {_sample_digest(data, begin, header.nbytes)}"


def _component_stem(name: str, component: str, prefixes: Mapping[str, Sequence[str]]) -> str | None:
    """The prefix by which ``name`` is of ``component``; None when it is another's."""
    fitting = [stem for stems in prefixes.values() for stem in stems if name.startswith(stem)]
    longest = max(fitting, key=len, default=None)
    return longest if longest in prefixes[component] else None


def _sample_digest(data: BinaryIO, begin: int, nbytes: int) -> str:
    found = blake2b(digest_size=16)
    if nbytes <= 3 * _PIECE_BYTES:
        pieces = [(begin, nbytes)]
    else:
        places = (begin, begin + nbytes // 2, begin + nbytes - _PIECE_BYTES)
        pieces = [(place, _PIECE_BYTES) for place in places]
    for place, size in pieces:
        data.seek(place)
        found.update(data.read(size))
    return found.hexdigest()
