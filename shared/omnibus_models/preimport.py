"""Imports all modules that loading and running any component needs, before forks.

The libraries import their parts on first use. Here each is used by name. No tensor is computed and no checkpoint read,
so no thread is started and no device used. Parts that need a missing library are left out.
"""

import importlib
from collections.abc import Iterable
from contextlib import suppress

from omnibus_models import families

#: Imported on first use by the families, by the library's loader (``torch.utils.serialization``) and by
#: its chat templates (``jinja2``).
_PARTS = (
    "av",
    "jinja2.sandbox",
    "omnibus_models._video",
    *(f"omnibus_models.tool_calls.{name}" for name in ("gemma", "hermes", "llama3", "mistral")),
    "torch.utils.serialization.config",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
)
#: Towers and language models that checkpoints of several families name.
_NAMED = ("clip", "llama", "mistral", "qwen2", "siglip")


def _import_modules(names: Iterable[str]) -> None:
    for name in names:
        with suppress(ModuleNotFoundError):
            importlib.import_module(name)


def _import_preprocessing() -> None:
    from transformers.models.auto import feature_extraction_auto, image_processing_auto, video_processing_auto

    # Checkpoints name these. The search for one imports what comes before it in the library's list.
    image_processing_auto.get_image_processor_class_from_name("Qwen2VLImageProcessor")
    video_processing_auto.video_processor_class_from_name("Qwen2VLVideoProcessor")
    video_processing_auto.video_processor_class_from_name("Qwen3VLVideoProcessor")
    feature_extraction_auto.feature_extractor_class_from_name("WhisperFeatureExtractor")


def _warm_loader() -> None:
    """Create the loader's per-process objects: patterns of renamed weights, skeleton operators."""
    import torch
    from transformers import conversion_mapping

    conversion_mapping.get_checkpoint_conversion_mapping("")
    torch.empty(1, device="meta").uniform_()


for _name in families.NAMES:
    _import_modules([f"{families.__name__}.{_name}"])
    # A family has the name of its architecture in the library.
    _import_modules(
        f"transformers.models.{_name}.{part}_{_name}" for part in ("configuration", "modeling", "processing")
    )
_import_modules(f"transformers.models.{_name}.modeling_{_name}" for _name in _NAMED)
_import_modules(_PARTS)
with suppress(ModuleNotFoundError):
    _import_preprocessing()
with suppress(ImportError, AttributeError):  # optional: without it, loads take longer
    _warm_loader()
