"""The header of a GGUF file: its metadata and its tensors. Reads no weights, and needs no library.

The reader of the package ``gguf`` takes seconds for the tokens of a vocabulary, which this one skips.
"""

import mmap
import re
import struct
from collections.abc import Collection, Mapping
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from omnibus.checkpoints.safetensors import TensorHeader
from omnibus.errors import BadRequest

#: Architectures of which transformers gives the model's own logits from GGUF, as tests show, and its types of models.
MODEL_TYPES: Mapping[str, str] = {
    **{name: name for name in ("gemma2", "gpt2", "llama", "phi3", "qwen2", "qwen3", "stablelm", "starcoder2")},
    "gemma3": "gemma3_text",
    "qwen2moe": "qwen2_moe",
    "qwen2vl": "qwen2",  # of texts alone, positions are plain
    "qwen3moe": "qwen3_moe",
}
#: The engine of GGUF files on a CPU.
LLAMA_CPP = "omnibus_engines:llama_cpp"
#: Family of embedders, and architectures of text encoders of which llama.cpp gives the model's own vectors.
EMBEDDERS, ENCODERS = "sentence_encoder", frozenset({"bert", "nomic-bert"})
#: Names of poolings by their numbers in the format, and those of a vector for each text.
_POOLINGS = ("none", "mean", "cls", "last", "rank")
_VECTOR_POOLINGS = ("mean", "cls", "last")
#: Part of the names of files with an encoder of media, and their architecture.
_PROJECTOR, _PROJECTOR_ARCHITECTURE = "mmproj", "clip"
#: Types of projectors that tests compare: the architecture of their language models, and the tensor with its width on
#: an axis. The width in the metadata is another one in older files.
_PROJECTORS = {
    "gemma3": ("gemma3", "mm.input_projection.weight", 1),
    "idefics3": ("llama", "mm.model.fc.weight", 0),
    "mlp": ("llama", "mm.2.weight", 0),
    "qwen2vl_merger": ("qwen2vl", "mm.2.weight", 0),
    "qwen2.5vl_merger": ("qwen2vl", "mm.2.weight", 0),
}
#: Family of language models with a projector.
MULTIMODAL = "multimodal_lm"
#: Layers of Gemma 2 27B, which scales its attention by a number of its own.
_GEMMA2_LARGE = 46
#: Name, values of a block and its bytes of each type of tensors, by its number.
_TYPES: Mapping[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
}  # fmt: skip
#: Names of the types with several values in a block. Loading them dequantises them.
GGUF_BLOCKS = frozenset(name for name, values, _ in _TYPES.values() if values > 1)
#: Formats of metadata with a fixed size, by their numbers.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)
_ALIGNMENT = 32  # default of the format
_MAX_KEPT_ITEMS = 1024  # of an array: values of layers, not of tokens
_MAX_AXES = 4
#: Prefix of the names of tensors with factors of rotary positions.
_ROPE_FACTORS = "rope_f"
_SHARD = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")


class GgufHeader(NamedTuple):
    """Header of the file at ``path``. ``metadata`` maps keys to values; long arrays and those of texts are replaced by
    their lengths. Shapes in ``tensors`` are in torch's order."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorHeader]

    @property
    def architecture(self) -> str:
        """Name of the architecture in the format's words, such as ``qwen2moe``."""
        return str(self.metadata.get("general.architecture", ""))

    @property
    def model_type(self) -> str:
        """Type of the model in transformers' words, such as ``qwen2_moe``. It is the architecture if unknown there."""
        return MODEL_TYPES.get(self.architecture, self.architecture)

    @property
    def pooling(self) -> str:
        """Name of the pooling of hidden rows, such as ``mean``; empty if the file has none."""
        number = self.field("pooling_type")
        return "" if number is None else dict(enumerate(_POOLINGS)).get(number, f"number {number}")

    @property
    def is_embedder(self) -> bool:
        """True if the model gives a vector for each text.

        It is a text encoder, or a language model that pools its rows.
        """
        return self.architecture in ENCODERS or self.pooling not in ("", "none")

    @property
    def scaling(self) -> str:
        """The field or tensor by which positions are scaled; empty without one."""
        kind = self.field("rope.scaling.type")
        factors = next((tensor for tensor in self.tensors if tensor.startswith(_ROPE_FACTORS)), "")
        return factors or ("" if kind in (None, "none") else f"rope.scaling.type {kind}")

    def field(self, name: str) -> Any:
        """Return the value of the architecture's field ``name``, such as ``context_length``, or None."""
        return self.metadata.get(f"{self.architecture}.{name}")


def is_gguf(path: Path) -> bool:
    """Return whether ``path`` is a file whose name ends with ``.gguf``."""
    return path.suffix == ".gguf" and path.is_file()


def read_gguf_header(path: Path) -> GgufHeader:
    """Read the header of the file at ``path``. Raises ``BadRequest`` for another, a truncated or a split file."""
    shard = _SHARD.search(path.name)
    _require_single(path, int(shard[1]) if shard else 1)
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _HeaderReader(path, data).read()
    except OSError as error:
        raise BadRequest(f"{path.name} cannot be read: {error.strerror}") from error
    except (struct.error, ValueError, TypeError, OverflowError):  # an empty file; lengths beyond the end
        raise BadRequest(f"{path.name} is truncated or not a GGUF file: download it again") from None


def require_embedder(header: GgufHeader) -> None:
    """Raise ``BadRequest`` unless the file has a known embedder."""
    name, pooling = header.path.name, header.pooling
    _require_known(header, {*MODEL_TYPES, *ENCODERS})
    if pooling == "rank":
        raise BadRequest(f"{name} is a reranker, which is not served from GGUF: use its safetensors")
    if pooling not in _VECTOR_POOLINGS:
        reason = f"has the pooling type {pooling!r}" if pooling else "has no pooling type"
        raise BadRequest(
            f"{name} {reason} in its metadata, which gives no vector for a text. Use a file with the pooling "
            f"{', '.join(_VECTOR_POOLINGS)}, or the model's safetensors"
        )


def require_language_model(header: GgufHeader) -> None:
    """Raise ``BadRequest`` unless the file has a known language model."""
    _require_known(header, MODEL_TYPES)


def require_convertible(header: GgufHeader, native: bool = False) -> None:
    """Raise ``BadRequest`` if transformers cannot load the language model of the file, or loads another one.

    If it is ``native``, it may have scaled positions: llama.cpp runs it.
    """
    name, architecture = header.path.name, header.architecture
    require_language_model(header)
    if header.scaling and not native:
        raise BadRequest(
            f"{name} scales positions ({header.scaling}), which transformers ignores in GGUF: its answers would "
            f"differ. Use the engine {LLAMA_CPP} on a CPU, or the model's safetensors"
        )
    if architecture == "gemma2" and header.field("block_count") == _GEMMA2_LARGE:
        raise BadRequest(f"{name} lacks the scale of this model's attention: use the model's safetensors")


def find_projectors(directory: Path) -> list[Path]:
    """Return the files of image or audio encoders (mmproj) in ``directory``, by their names."""
    return [file for file in sorted(directory.glob("*.gguf")) if _PROJECTOR in file.name.lower()]


def find_projector(checkpoint: Path) -> Path | None:
    """Return the projector of images for the model in ``checkpoint``: None without one that fits.

    It is the first one by name next to the file.
    """
    if not is_gguf(checkpoint) or not (files := find_projectors(checkpoint.parent)):
        return None
    model = read_gguf_header(checkpoint)
    for file in files:
        with suppress(BadRequest):
            header = read_gguf_header(file)
            architecture, name, axis = _PROJECTORS.get(read_projector_type(header), ("", "", 0))
            tensor = header.tensors.get(name)
            if architecture == model.architecture and tensor and tensor.shape[axis] == model.field("embedding_length"):
                return file
    return None


def read_projector_type(header: GgufHeader) -> str:
    """Return the type of a projector in the format's words, such as ``idefics3``.

    It is ``mlp`` in files from before there were others; ``mlp_norm`` and ``llava-1.6`` are told from ``mlp``.
    """
    fields = header.metadata
    name = str(fields.get("clip.projector_type") or fields.get("clip.vision.projector_type") or "mlp")
    if name == "mlp" and "clip.vision.image_grid_pinpoints" in fields:
        return "llava-1.6"
    return "mlp_norm" if name == "mlp" and "mm.3.weight" in header.tensors else name


def projector_notes(checkpoint: Path) -> list[str]:
    """Return what is to be told about projectors next to the file ``checkpoint``, in words."""
    used_file = find_projector(checkpoint)
    names = ", ".join(_name_projector(file) for file in find_projectors(checkpoint.parent) if file != used_file)
    notes = [] if used_file is None else [f"images: by {used_file.name}, on llama.cpp only"]
    reason = "another one fits" if used_file else f"images need a type of {', '.join(_PROJECTORS)} that fits the model"
    return [*notes, f"{names} is not used: {reason}"] if names else notes


def _name_projector(file: Path) -> str:
    try:
        return f"{file.name} ({read_projector_type(read_gguf_header(file))})"
    except BadRequest:
        return file.name


def _require_known(header: GgufHeader, architectures: Collection[str]) -> None:
    if header.architecture == _PROJECTOR_ARCHITECTURE:
        raise BadRequest(
            f"{header.path.name} is a projector (mmproj), the encoder of a model's images or audio. Name the file of "
            "the model, next to which the projector is found"
        )
    if header.architecture not in architectures:
        raise BadRequest(
            f"{header.path.name} has the architecture {header.architecture!r}, which is not served from GGUF: use its "
            f"safetensors. Served are {', '.join(sorted({*MODEL_TYPES, *ENCODERS}))}"
        )


def _require_single(path: Path, parts: int) -> None:
    if parts > 1:
        raise BadRequest(
            f"{path.name} is one of {parts} parts of a model; parts are not read: merge them with "
            "`llama-gguf-split --merge`, or download a single file"
        )


class _HeaderReader:
    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path, self._data, self._position = path, data, 0

    def read(self) -> GgufHeader:
        if self._data[:4] != b"GGUF":
            raise BadRequest(f"{self._path.name} is not a GGUF file: download it again")
        self._position = 4
        version, tensor_count, count = self._take("I"), self._take("Q"), self._take("Q")
        if version not in _VERSIONS:
            raise BadRequest(f"{self._path.name} has version {version} of GGUF; versions 2 and 3 are read")
        metadata = {self._take_string(): self._take_value(self._take("I")) for _ in range(count)}
        _require_single(self._path, int(metadata.get("split.count", 1)))
        tensors, ends = {}, [0]
        for _ in range(tensor_count):
            name, header, offset = self._take_tensor()
            tensors[name] = header
            ends.append(offset + header.nbytes)
        alignment = max(1, int(metadata.get("general.alignment", _ALIGNMENT)))
        whole = -(-self._position // alignment) * alignment + max(ends)
        if len(self._data) < whole:
            raise BadRequest(
                f"{self._path.name} is truncated, it has {len(self._data)} of {whole} bytes: download it again"
            )
        return GgufHeader(self._path, metadata, tensors)

    def _take_tensor(self) -> tuple[str, TensorHeader, int]:
        name, axes = self._take_string(), self._take("I")
        if axes > _MAX_AXES:
            raise ValueError
        shape = tuple(reversed([self._take("Q") for _ in range(axes)]))
        number, offset = self._take("I"), self._take("Q")
        if number not in _TYPES:
            raise BadRequest(
                f"{self._path.name} has weights of the unknown type {number}: use a file with another quantisation"
            )
        dtype, values, nbytes = _TYPES[number]
        return name, TensorHeader(dtype, shape, prod(shape) // values * nbytes), offset

    def _take_value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._take_string()
        return self._take_array() if kind == _ARRAY else self._take(_SCALARS.get(kind, ""))

    def _take_array(self) -> Any:
        kind, count = self._take("I"), self._take("Q")
        form = _SCALARS.get(kind)
        if form and count <= _MAX_KEPT_ITEMS:
            return [self._take(form) for _ in range(count)]
        if form:
            self._position += struct.calcsize(form) * count
        else:
            for _ in range(count):
                self._skip_string(kind)
        return count

    def _skip_string(self, kind: int) -> None:
        if kind != _STRING:  # arrays of arrays are not in the format
            raise ValueError
        length = self._take("Q")
        self._position += length

    def _take_string(self) -> str:
        length = self._take("Q")
        start, self._position = self._position, self._position + length
        if self._position > len(self._data):
            raise ValueError
        return self._data[start : self._position].decode()

    def _take(self, form: str) -> Any:
        (value,) = struct.unpack_from(f"<{form}", self._data, self._position)
        self._position += struct.calcsize(f"<{form}")
        return value
