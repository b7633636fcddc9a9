"""The safetensors files of a checkpoint's directory, by their headers: no weight is read."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from omnibus.errors import BadRequest

#: What files of weights are called: by transformers, by diffusers.
_STEMS = ("model", "diffusion_pytorch_model")
_MAX_HEADER_BYTES = 100 << 20  # bytes of a header at most, as the format has it


class TensorHeader(NamedTuple):
    """A tensor as a header has it; ``dtype`` in the format's words, for example ``BF16``."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int


def weight_file_names(directory: Path) -> list[str]:
    """The files that hold the weights of ``directory``, there or not: those of its index, else the usual ones."""
    for stem in _STEMS:
        whole, index = directory / f"{stem}.safetensors", directory / f"{stem}.safetensors.index.json"
        if index.exists() and not whole.exists():
            return sorted(_shard_names(index))
    return [f"{stem}.safetensors" for stem in _STEMS]


def find_weight_files(directory: Path) -> tuple[list[Path], list[str]]:
    """The files of weights that are there, and the names of those that an index tells of and are not."""
    names = weight_file_names(directory)
    there = [directory / name for name in names if (directory / name).is_file()]
    usual = {f"{stem}.safetensors" for stem in _STEMS}
    return there, [name for name in names if name not in usual and directory / name not in there]


def read_header(path: Path) -> dict[str, TensorHeader]:
    """The tensors of a file by name. Raises ``BadRequest`` that says what is wrong with the file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            length = struct.unpack("<Q", file.read(8))[0]
            header = json.loads(file.read(length)) if length <= min(_MAX_HEADER_BYTES, size) else None
        found = dict(_parse_tensors(header))
        whole = 8 + length + max((each["data_offsets"][1] for each in _tensor_entries(header)), default=0)
    except OSError as error:
        raise BadRequest(f"{path.name} cannot be read: {error.strerror}") from error
    except (struct.error, ValueError, AttributeError, TypeError, LookupError):
        raise BadRequest(f"{path.name} is no safetensors file; was it downloaded whole?") from None
    if size < whole:
        raise BadRequest(f"{path.name} is cut off: {size} of {whole} bytes are there")
    return found


def _shard_names(index: Path) -> set[str]:
    try:
        return {str(name) for name in json.loads(index.read_text())["weight_map"].values()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {index.name.removesuffix(".index.json")}  # which is not there, and so is missed


def _tensor_entries(header: Any) -> list[dict[str, Any]]:
    return [each for name, each in header.items() if name != "__metadata__"]


def _parse_tensors(header: Any) -> Iterator[tuple[str, TensorHeader]]:
    for name, each in header.items():
        if name != "__metadata__":
            begin, end = each["data_offsets"]
            yield name, TensorHeader(str(each["dtype"]), tuple(map(int, each["shape"])), int(end) - int(begin))
