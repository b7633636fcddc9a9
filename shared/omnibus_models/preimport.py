"""Importing this imports what loading and running any component would import, for processes that are forked.

The libraries import their parts when a part is first used; here each is used by name. No tensor is
computed and no checkpoint read, so no thread is started and no device touched. What needs a library
that is not installed is left out.
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
    """Make what the library's loader makes once per process: patterns of renamed weights, operators of skeletons."""
    import torch
    from transformers import conversion_mapping

    conversion_mapping.get_checkpoint_conversion_mapping("")
    torch.empty(1, device="meta").uniform_()


for _name in families.NAMES:
    _import_modules([f"{families.__name__}.{_name}"])
    # A family is named as its architecture is in the library.
    _import_modules(
        f"transformers.models.{_name}.{part}_{_name}" for part in ("configuration", "modeling", "processing")
    )
_import_modules(f"transformers.models.{_name}.modeling_{_name}" for _name in _NAMED)
_import_modules(_PARTS)
with suppress(ModuleNotFoundError):
    _import_preprocessing()
with suppress(ImportError, AttributeError):  # the library's own affair: without it loads take longer
    _warm_loader()
