"""Digests of stored tensors' bytes, kept between starts.

Each file of weights has a file of digests below ``OMNIBUS_CACHE`` (``~/.cache/omnibus``). The digests are valid while
size and modification time of the weights are unchanged. If the directory cannot be written, digests are computed again.
"""

import json
import os
import struct
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from omnibus.checkpoints.safetensors import read_header

_READ_BYTES = 1 << 22


class StoredTensor(NamedTuple):
    """Tensor in a file: its ``dtype`` in the format's words, such as ``BF16``, and the place of its bytes."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    nbytes: int

    def describe(self) -> str:
        """Return type and shape, such as ``BF16 4x8``."""
        return f"{self.dtype} {'x'.join(map(str, self.shape)) or 'scalar'}"


def read_stored_tensors(file: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a safetensors file by name, from its header. Raises ``BadRequest`` for an invalid file."""
    headers = read_header(file)
    with file.open("rb") as data:
        length = struct.unpack("<Q", data.read(8))[0]
        entries = json.loads(data.read(length))
    return {
        name: StoredTensor(
            file, name, header.dtype, header.shape, 8 + length + int(entries[name]["data_offsets"][0]), header.nbytes
        )
        for name, header in headers.items()
    }


def tensor_digests(tensors: Mapping[str, StoredTensor]) -> dict[str, str]:
    """Return the digest of each tensor's bytes, by the given names. Raises ``OSError`` if a file cannot be read."""
    by_file: dict[Path, list[StoredTensor]] = {}
    for tensor in tensors.values():
        by_file.setdefault(tensor.file, []).append(tensor)
    digests = {file: _file_digests(file, own) for file, own in by_file.items()}
    return {name: digests[tensor.file][tensor.name] for name, tensor in tensors.items()}


def _file_digests(file: Path, tensors: list[StoredTensor]) -> dict[str, str]:
    """Return the digests of ``tensors`` by their names in ``file``. Missing ones are computed and kept."""
    stamp, cache = _file_stamp(file), _cache_path(file)
    digests = _read_kept(cache, stamp)
    lacking = [tensor for tensor in tensors if tensor.name not in digests]
    if lacking:
        with file.open("rb") as data:
            digests |= {tensor.name: _content_digest(data, tensor) for tensor in lacking}
        if _file_stamp(file) == stamp:  # else the file changed meanwhile, and is read again next time
            _write_kept(cache, stamp, digests)
    return digests


def _content_digest(data: BinaryIO, tensor: StoredTensor) -> str:
    digest, left = blake2b(digest_size=16), tensor.nbytes
    data.seek(tensor.begin)
    while left > 0:
        piece = data.read(min(left, _READ_BYTES))
        if not piece:
            raise OSError(f"{tensor.file.name} was truncated while it was read")
        digest.update(piece)
        left -= len(piece)
    return digest.hexdigest()


def _file_stamp(file: Path) -> list[int]:
    status = file.stat()
    return [status.st_size, status.st_mtime_ns]


def cache_directory() -> Path:
    """Return the directory of what is computed or built once on this machine."""
    return Path(os.environ.get("OMNIBUS_CACHE", "") or Path.home() / ".cache" / "omnibus")


def _cache_path(file: Path) -> Path:
    return cache_directory() / "identity" / f"{blake2b(str(file.resolve()).encode(), digest_size=16).hexdigest()}.json"


def _read_kept(cache: Path, stamp: list[int]) -> dict[str, str]:
    try:
        entry: dict[str, Any] = json.loads(cache.read_text())
        return dict(entry["digests"]) if entry["stamp"] == stamp else {}
    except (OSError, ValueError, LookupError, TypeError):
        return {}


def _write_kept(cache: Path, stamp: list[int], digests: Mapping[str, str]) -> None:
    with suppress(OSError):
        cache.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=cache.parent, prefix=f".{cache.name}-", delete=False) as file:
            json.dump({"stamp": stamp, "digests": digests}, file)
        Path(file.name).replace(cache)
