"""Trials of all multimodal models that the installed transformers knows: whether they come apart."""

import json
from pathlib import Path

import torch
import transformers

from omnibus_llm.engine import media_admission
from omnibus_models.families._item_processor import ItemProcessor
from tests.auto_families.trials import REFUSED, UNTRIED, Trial

from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES  # isort: skip

from tests.auto_families.media_copies import make_copy  # isort: skip


def list_types() -> list[str]:
    """Return the types of all multimodal models that transformers knows."""
    return sorted(MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES)


def try_type(model_type: str) -> Trial:
    """Try ``model_type`` in this process. The way of one that comes apart names its modalities."""
    try:
        cls, config, processor = make_copy(model_type)
    except Exception as error:  # noqa: BLE001 whatever a library raises
        return Trial(model_type, "", UNTRIED, f"{type(error).__name__}: {error}")
    with torch.inference_mode():
        verdicts = media_admission.try_parts(cls, config, ItemProcessor(processor))
    apart = [f"{name}{' (one)' * each.alone}" for name, each in verdicts.items() if each.mode is not None]
    reasons = [reason for verdict in verdicts.values() for reason in verdict.reasons.values()]
    way = ", ".join(apart) or (UNTRIED if "" in verdicts else REFUSED)
    return Trial(model_type, cls.__name__, way, reasons[-1] if reasons else "" if apart else "it has no encoder")


def outcomes_path(version: str = transformers.__version__) -> Path:
    """Return the file with the expected outcomes for a ``version`` of transformers."""
    return Path(__file__).parent / "outcomes" / "multimodal" / f"transformers-{version}.json"


def read_outcomes() -> dict[str, str]:
    """Return the expected modalities of each type for the installed version."""
    ways: dict[str, str] = json.loads(outcomes_path().read_text())
    return ways
