"""Trials of all text-to-speech models that transformers knows.

``python -m tests.auto_families.speakers [--write]`` tries a small copy of each class and prints a row for it.
"""

import tempfile
from pathlib import Path

import torch

from omnibus_models import families, torchvision_cpu

torchvision_cpu.install_operators()

from omnibus_llm.engine.media_admission import find_fault  # noqa: E402
from omnibus_models.families._speech_classes import CLASSES  # noqa: E402
from tests.auto_families import trials  # noqa: E402
from tests.auto_families.trials import REFUSED, UNTRIED, Trial  # noqa: E402
from tests.families import SPEAKING  # noqa: E402
from tests.unit.models.speech_checkpoints import write_checkpoint  # noqa: E402

KIND = "speakers"
STREAMS, SENTENCES, WHOLE, OWN, ABSENT = SPEAKING


def list_types() -> list[str]:
    """Return the types of all text-to-speech models, with those of ``CLASSES``."""
    from transformers.models.auto import modeling_auto as auto

    names = {*auto.MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES, *auto.MODEL_FOR_TEXT_TO_SPECTROGRAM_MAPPING_NAMES}
    return sorted(names | {*CLASSES})


def try_type(model_type: str) -> Trial:
    """Try ``model_type`` in this process."""
    if model_type not in CLASSES:
        return Trial(model_type, "", OWN if model_type in families.NAMES else ABSENT, "")
    row = CLASSES[model_type]
    with tempfile.TemporaryDirectory() as directory, torch.inference_mode():
        try:
            write_checkpoint(model_type, Path(directory))
            speaker = families.family_of(Path(directory)).load("speaker", Path(directory))
        except Exception as error:  # noqa: BLE001 whatever a library raises
            return Trial(model_type, row.cls, UNTRIED, f"{type(error).__name__}: {error}")
        fault = find_fault(speaker)
    way = STREAMS if row.streams else SENTENCES if row.sentences else WHOLE
    return Trial(model_type, row.cls, REFUSED if fault else way, fault)


if __name__ == "__main__":
    trials.sweep_types(list_types(), try_type, KIND)
