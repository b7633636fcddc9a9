"""Trials of all multimodal models that the installed transformers knows: whether they come apart."""

import torch

from omnibus_llm.engine import media_admission
from omnibus_models.families._item_processor import ItemProcessor
from omnibus_models.families._media_parts import choose_class
from tests.auto_families.trials import REFUSED, UNTRIED, Trial

from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES  # isort: skip

from tests.auto_families.media_copies import has_processor, make_copy  # isort: skip

KIND = "multimodal"


def list_types() -> list[str]:
    """Return the types of all multimodal models that transformers knows."""
    return sorted(MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES)


def try_type(model_type: str) -> Trial:
    """Try ``model_type`` in this process. The way of one that is served names its modalities.

    *(one)* is for one item in a prompt, *whole* for a model that does not come apart.
    """
    if not has_processor(model_type):
        return Trial(model_type, "", REFUSED, "transformers lists no processor of media for it")
    try:
        config, processor = make_copy(model_type)
        cls, config = choose_class(config)
    except Exception as error:  # noqa: BLE001 whatever a library raises
        return Trial(model_type, "", UNTRIED, f"{type(error).__name__}: {error}")
    with torch.inference_mode():
        verdicts = media_admission.try_parts(cls, config, ItemProcessor(processor))
    apart = [f"{name}{' (one)' * each.alone}" for name, each in verdicts.items() if each.mode is not None]
    reasons = [reason for verdict in verdicts.values() for reason in verdict.reasons.values()]
    whole = "whole: " if any(each.whole for each in verdicts.values()) else ""
    way = f"{whole}{', '.join(apart)}" if apart else (UNTRIED if "" in verdicts else REFUSED)
    return Trial(model_type, cls.__name__, way, reasons[-1] if reasons else "" if apart else "it has no encoder")
