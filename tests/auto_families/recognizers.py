"""Trials of all recognizers with an encoder and a decoder that transformers knows.

``python -m tests.auto_families.recognizers [--write]`` tries a small copy of each class and prints a row for it.
"""

from collections.abc import Mapping

import torch
import transformers

from omnibus.errors import Fatal
from omnibus_llm.engine.recognizer_admission import try_recognizer
from omnibus_models.families import is_recognizer
from omnibus_models.families._recognition_rules import require_known_prompts
from omnibus_models.miniature import shrink_config
from tests.auto_families import trials
from tests.auto_families.trials import REFUSED, UNTRIED, Trial

KIND = "recognizers"


def list_types() -> list[str]:
    """Return the types of recognizers that the family may serve."""
    return sorted(name for name in _class_names() if is_recognizer(name, {}))


def try_type(model_type: str) -> Trial:
    """Try ``model_type`` in this process."""
    cls = getattr(transformers, _class_names()[model_type])
    try:
        require_known_prompts(model_type)
    except Fatal as error:
        return Trial(model_type, cls.__name__, REFUSED, error.message)
    try:
        with torch.inference_mode():
            verdict = try_recognizer(cls, shrink_config(transformers.CONFIG_MAPPING[model_type]()))
    except Exception as error:  # noqa: BLE001 whatever a library raises
        return Trial(model_type, "", UNTRIED, f"{type(error).__name__}: {error}")
    way = REFUSED if verdict.mode is None else "batched" if verdict.mode.batches else "one at a time"
    reasons = list(verdict.reasons.values())
    return Trial(
        model_type, cls.__name__, UNTRIED if "copy" in verdict.reasons else way, reasons[-1] if reasons else ""
    )


def _class_names() -> Mapping[str, str]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES

    return MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES


if __name__ == "__main__":
    trials.sweep_types(list_types(), try_type, KIND)
