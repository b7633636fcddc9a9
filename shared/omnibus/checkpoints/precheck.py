"""Quick check of a checkpoint's files, in milliseconds and without a library."""

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from omnibus.checkpoints import gguf_header, safetensors
from omnibus.errors import BadRequest

_CONFIG_FILES = ("model_index.json", "modular_model_index.json", "config.json")
_MAX_NAMED = 3
_PROCESSOR_FILES = ("processor", "preprocessor", "video_preprocessor")
#: Fields of these files, and files, that only processors of a modality have.
_PROCESSOR_FIELDS = {
    "image": frozenset({"image_processor", "image_processor_type", "image_mean"}),
    "video": frozenset({"video_processor", "video_preprocessor"}),
    "audio": frozenset({"feature_extractor", "feature_extractor_type", "audio_processor"}),
}


def require_usable(directory: Path, family: str, families: Collection[str]) -> None:
    """Raise ``BadRequest`` if ``directory`` is not a usable checkpoint of ``family``. This includes missing and
    truncated weights. It may be a GGUF file.

    ``family`` is compared if the checkpoint names one of the families in ``families``. ``omnibus models check`` also
    checks each component.
    """
    if gguf_header.is_gguf(directory):
        if family == gguf_header.EMBEDDERS:
            gguf_header.require_embedder(gguf_header.read_gguf_header(directory))
        own_type = read_model_type(directory)
        # A file is a language model without encoders.
        model_type = own_type if own_type in {*families, gguf_header.EMBEDDERS} else "causal_lm"
        if family == gguf_header.MULTIMODAL and gguf_header.find_projector(directory):
            model_type = family
    else:
        config = _read_config(directory)[1]
        model_type = str(config.get("model_type") or config.get("_class_name") or "")
    if model_type != family and model_type in {*families, "causal_lm", gguf_header.EMBEDDERS}:
        raise BadRequest(f"{directory} is a checkpoint of the family {model_type}, not of {family}")
    require_whole(directory)


def read_model_type(directory: Path, native: bool = False) -> str:
    """Return the ``model_type`` of a checkpoint, empty for a pipeline; of an embedder in GGUF, its family.

    Raises ``BadRequest`` without a configuration, and for a GGUF file that cannot be loaded: by llama.cpp if it is
    ``native``, or by transformers.
    """
    if gguf_header.is_gguf(directory):
        header = gguf_header.read_gguf_header(directory)
        if header.is_embedder:
            gguf_header.require_embedder(header)
            return gguf_header.EMBEDDERS
        gguf_header.require_convertible(header, native or gguf_header.find_projector(directory) is not None)
        return header.model_type
    return str(_read_config(directory)[1].get("model_type") or "")


def read_modalities(directory: Path) -> frozenset[str]:
    """Return the modalities of the media that a checkpoint's processor takes, by its configuration files."""
    if gguf_header.find_projector(directory):
        return frozenset({"image"})
    files = {name: _read_json(directory / f"{name}_config.json") for name in _PROCESSOR_FILES}
    # Parts have a file of their own, or are written into that of the whole processor.
    fields = {name for config in files.values() for name in config} | {name for name in files if files[name]}
    return frozenset(modality for modality, names in _PROCESSOR_FIELDS.items() if fields & names)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text())) if path.is_file() else {}
    except (OSError, ValueError, TypeError) as error:
        raise BadRequest(f"{path} cannot be read: {error}") from error


def require_whole(directory: Path) -> list[safetensors.TensorHeader]:
    """Return the tensors in the files of weights. Raises ``BadRequest`` for missing and truncated files."""
    if gguf_header.is_gguf(directory):
        return [*gguf_header.read_gguf_header(directory).tensors.values()]
    name, config = _read_config(directory)
    parts = _pipeline_parts(config) if name != _CONFIG_FILES[-1] else [""]
    missing_files = [f"{part}/{file}".lstrip("/") for part in parts for file in _lost_files(directory / part)]
    if missing_files:
        more = f" and {len(missing_files) - _MAX_NAMED} more" if len(missing_files) > _MAX_NAMED else ""
        raise BadRequest(
            f"{directory} lacks the weights {', '.join(missing_files[:_MAX_NAMED])}{more}: download it again"
        )
    return [tensor for part in parts for tensor in _read_headers(directory / part)]


def _read_config(directory: Path) -> tuple[str, dict[str, Any]]:
    for name in _CONFIG_FILES:
        path = directory / name
        if not path.is_file():
            continue
        try:
            return name, dict(json.loads(path.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise BadRequest(f"{path} cannot be read: {error}") from error
    raise BadRequest(f"{directory} is not a checkpoint: it has neither {' nor '.join(_CONFIG_FILES)}")


def _pipeline_parts(config: dict[str, Any]) -> list[str]:
    return [name for name, kind in config.items() if isinstance(kind, list) and kind and kind[0] is not None]


def _lost_files(directory: Path) -> list[str]:
    return safetensors.find_weight_files(directory)[1]


def _read_headers(directory: Path) -> Iterator[safetensors.TensorHeader]:
    for path in safetensors.find_weight_files(directory)[0]:
        try:
            yield from safetensors.read_header(path).values()
        except BadRequest as error:
            raise BadRequest(f"{directory}: {error.message}") from error
