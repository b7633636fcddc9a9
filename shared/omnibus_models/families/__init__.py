"""Architectures with separable components, found by name or by a checkpoint's configuration."""

import importlib
import json
import pkgutil
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omnibus import errors
from omnibus.checkpoints import precheck
from omnibus.checkpoints.gguf_header import MULTIMODAL as GGUF_MULTIMODAL
from omnibus.checkpoints.gguf_header import find_projector, is_gguf
from omnibus.families.specs import ABSENT
from omnibus_models import torchvision_cpu
from omnibus_models.contract import ModelFamily
from omnibus_models.llama_cpp.library import find_library

# The library imports torchvision with its models if it is installed.
torchvision_cpu.install_operators()

#: Endings of the names of classes that generate text.
_GENERATORS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")

#: Names of families in declarations and plans that run as ``multimodal_lm``, whose encoder is called ``vision``.
MULTIMODAL = ("internvl", "llava", "llava_next", "llava_onevision")

_MODULES = tuple(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))
NAMES = tuple(sorted({*_MODULES, *MULTIMODAL}))


def load_family(name: str) -> ModelFamily:
    """Return the family ``name``, such as ``qwen2_5_vl``. Raises ``NotFound``."""
    if name in ABSENT:
        raise errors.NotFound(f"{name}: {ABSENT[name]}")
    if name not in NAMES:
        raise errors.NotFound(f"unknown model family {name!r}; known: {', '.join(NAMES)}")
    if name in MULTIMODAL:
        from omnibus_models.families.multimodal_lm import MultimodalFamily

        return MultimodalFamily(name, "vision")
    family: ModelFamily = importlib.import_module(f"{__name__}.{name}").FAMILY
    return family


def family_of(checkpoint: Path) -> ModelFamily:
    """Return the family of a checkpoint: a directory, or a GGUF file.

    It is the ``model_type`` in config.json, or the class in model_index.json. A pipeline without a family of its own,
    which diffusers has in blocks, is of ``modular_image`` or ``modular_video``. A language model of transformers
    without a family of its own is of the family ``causal_lm``, or of ``multimodal_lm`` if it has encoders. Embedders
    and rerankers are of ``sentence_encoder`` and ``cross_encoder``. Embedders of texts and images are of
    ``dual_encoder``, recognizers with an encoder and a decoder of ``speech_to_text``, and text-to-speech models of
    ``text_to_speech``. Raises ``NotFound`` if no configuration can be read, or the architecture is unknown, and
    ``BadRequest`` for a GGUF file that cannot be loaded. A GGUF file with a projector that fits is of
    ``multimodal_lm``, if llama.cpp is installed.
    """
    for index in (Path(checkpoint) / "model_index.json", Path(checkpoint) / "modular_model_index.json"):
        if index.exists():
            return _pipeline_family(_read_config(index))
    if is_gguf(Path(checkpoint)):
        is_native = find_library() is not None
        name = precheck.read_model_type(Path(checkpoint), is_native)
        if is_native and find_projector(Path(checkpoint)):
            return load_family(GGUF_MULTIMODAL)
        return load_family(name if name in NAMES else "causal_lm")
    config = _read_config(Path(checkpoint) / "config.json")
    name = _retrieval_family(Path(checkpoint), config) or str(config.get("model_type", ""))
    if name not in {*NAMES, *ABSENT}:
        name = _generic_family(name, config) or name
    return load_family(name)


def _pipeline_family(index: Mapping[str, Any]) -> ModelFamily:
    """Return the family of the pipeline that ``index`` describes: its own, or that of pipelines in blocks."""
    pipeline = str(index.get("_class_name", "")).removesuffix("Pipeline")
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", pipeline).lower()
    if name in {*NAMES, *ABSENT}:
        return load_family(name)
    from omnibus_models.modular import blocks as modular_blocks

    cls = modular_blocks.find_pipeline_class(index)
    return load_family(name if cls is None else modular_blocks.output_family(cls))


def _generic_family(name: str, config: Mapping[str, Any]) -> str:
    """Return the generic family of the type ``name``, or "".

    It is that of recognizers, of language models with or without encoders, or of embedders of texts and images.
    """
    from transformers.models.auto import modeling_auto as auto

    if _is_speaker(name, config):
        return "text_to_speech"
    if is_recognizer(name, config):
        return "speech_to_text"
    if _is_class_of(config, auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(name, ()), but="ForConditionalGeneration"):
        return "causal_lm"
    if _is_class_of(config, auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES.get(name, ())):
        return "multimodal_lm"
    return "dual_encoder" if is_dual_encoder(name, config) else ""


def is_dual_encoder(name: str, config: Mapping[str, Any]) -> bool:
    """Return whether ``config`` of type ``name`` embeds texts and images."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    [architecture, *_] = config.get("architectures") or [MODEL_MAPPING_NAMES.get(name, "")]
    try:
        cls = getattr(transformers, str(architecture), None)
        return all(hasattr(cls, f"get_{kind}_features") for kind in ("text", "image"))
    except ImportError:  # a class of a library that is not installed
        return False


def _is_class_of(config: Mapping[str, Any], known: str | Sequence[str], but: str = " ") -> bool:
    """Return whether the class of ``config`` is among the ``known`` ones.

    Classes that end with ``but`` do not count.
    """
    classes = (known,) if isinstance(known, str) else known
    [architecture, *_] = config.get("architectures") or [*classes, ""]
    return architecture in classes and not architecture.endswith(but)


def is_recognizer(name: str, config: Mapping[str, Any]) -> bool:
    """Return whether transformers loads ``config`` of type ``name`` as a recognizer.

    Only recognizers with an encoder and a decoder count.
    """
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES

    architecture = MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES.get(name, "")
    if architecture not in (config.get("architectures") or [architecture or None]):
        return False
    if _is_speaker(name, {"architectures": [architecture]}):
        return False
    return bool(getattr(CONFIG_MAPPING[name], "is_encoder_decoder", False))


def _is_speaker(name: str, config: Mapping[str, Any]) -> bool:
    """Return whether ``config`` of type ``name`` is a text-to-speech model.

    Other models of the same type may be recognizers.
    """
    from omnibus_models.families._speech_classes import CLASSES

    return name in CLASSES and _is_class_of(config, CLASSES[name].cls)


def _retrieval_family(checkpoint: Path, config: Mapping[str, Any]) -> str:
    """Return the generic family of a reranker or an embedder, or "".

    Its files and its class decide. The ``model_type`` does not: language models are rerankers with another head, and
    embedders with another pooling.
    """
    architecture = str((config.get("architectures") or [""])[0])
    if architecture.endswith("ForSequenceClassification"):
        return "cross_encoder"
    if (checkpoint / "modules.json").exists():
        return "sentence_encoder"
    if config.get("model_type") in NAMES or architecture.endswith(_GENERATORS):
        return ""
    from transformers.models.auto import modeling_auto as auto

    masked_models = {} if config.get("is_encoder_decoder") else auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    encoders = {*masked_models, *auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES} & {*auto.MODEL_MAPPING_NAMES}
    return "sentence_encoder" if config.get("model_type") in encoders else ""


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        raise errors.NotFound(f"{path} cannot be read; give the directory of a Hugging Face checkpoint") from None
    return config
