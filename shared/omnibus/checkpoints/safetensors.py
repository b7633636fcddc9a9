"""The safetensors files of a checkpoint's directory, by their headers: no weight is read.

Digests of stored tensors' bytes, kept between starts.

Each file of weights has a file of digests below ``OMNIBUS_CACHE`` (``~/.cache/omnibus``). The digests are valid while
size and modification time of the weights are unchanged. If the directory cannot be written, digests are computed again.
"""

import json
import os
import struct
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from omnibus.errors import BadRequest

#: Names of files of weights: of transformers, of diffusers.
_STEMS = ("model", "diffusion_pytorch_model")
_MAX_HEADER_BYTES = 100 << 20  # limit of the format for a header


class TensorHeader(NamedTuple):
    """Tensor in a header. ``dtype`` is in the format's words, for example ``BF16``."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int


def weight_file_names(directory: Path) -> list[str]:
    """Return the names of the files with weights of ``directory``. They are those of its index, else the usual ones,
    and may not exist."""
    for stem in _STEMS:
        whole, index = directory / f"{stem}.safetensors", directory / f"{stem}.safetensors.index.json"
        if index.exists() and not whole.exists():
            return sorted(_shard_names(index))
    return [f"{stem}.safetensors" for stem in _STEMS]


def find_weight_files(directory: Path) -> tuple[list[Path], list[str]]:
    """Return the existing files of weights, and the names of missing ones. The latter are in an index."""
    names = weight_file_names(directory)
    there = [directory / name for name in names if (directory / name).is_file()]
    usual = {f"{stem}.safetensors" for stem in _STEMS}
    return there, [name for name in names if name not in usual and directory / name not in there]


def read_header(path: Path) -> dict[str, TensorHeader]:
    """Return the tensors of a file by name. Raises ``BadRequest`` with the fault of the file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            length = struct.unpack("<Q", file.read(8))[0]
            header = json.loads(file.read(length)) if length <= min(_MAX_HEADER_BYTES, size) else None
        tensors = dict(_parse_tensors(header))
        whole = 8 + length + max((each["data_offsets"][1] for each in _tensor_entries(header)), default=0)
    except OSError as error:
        raise BadRequest(f"{path.name} cannot be read: {error.strerror}") from error
    except (struct.error, ValueError, AttributeError, TypeError, LookupError):
        raise BadRequest(f"{path.name} is not a safetensors file: download it again") from None
    if size < whole:
        raise BadRequest(f"{path.name} is truncated, it has {size} of {whole} bytes: download it again")
    return tensors


def _shard_names(index: Path) -> set[str]:
    try:
        return {str(name) for name in json.loads(index.read_text())["weight_map"].values()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {index.name.removesuffix(".index.json")}  # which does not exist, so it is reported as missing


def _tensor_entries(header: Any) -> list[dict[str, Any]]:
    return [each for name, each in header.items() if name != "__metadata__"]


def _parse_tensors(header: Any) -> Iterator[tuple[str, TensorHeader]]:
    for name, each in header.items():
        if name != "__metadata__":
            begin, end = each["data_offsets"]
            yield name, TensorHeader(str(each["dtype"]), tuple(map(int, each["shape"])), int(end) - int(begin))


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
