"""The safetensors files of a checkpoint's directory, by their headers: no weight is read."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

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
