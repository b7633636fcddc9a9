"""Comparison of a checkpoint's own weights, as an executor runs them, with the library's whole model.

The trial of a class (``engine.admission``) has random weights. This one finds faults of the checkpoint: names that are
loaded in another way, scales that random weights do not reach. The whole model is loaded in float32 on the CPU.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig

from omnibus.checkpoints.report import TrialComparison
from omnibus_llm.engine import admission, media_admission
from omnibus_models.families._item_processor import ItemProcessor
from omnibus_models.families._media_parts import find_class, load_parts
from omnibus_models.verdicts import repeat_trials


def compare_text(family: Any, checkpoint: Path) -> list[TrialComparison]:
    """Compare a language model: prompts of different lengths, alone in the library and together in the engine."""
    decoder = family.load("thinker", checkpoint)
    admission.admit_decoder(decoder)
    prompts = admission.make_prompts()
    whole = _load_whole(type(decoder.module), checkpoint)
    expected = [admission.generate_logits(whole, prompt) for prompt in prompts]
    del whole
    prefills = [admission.make_prefill(decoder, prompt) for prompt in prompts]
    given = admission.engine_logits(decoder, prefills)
    changed = admission.engine_logits(decoder, prefills[::-1])[0]
    with repeat_trials() as comparisons:
        admission.find_difference(given, expected, changed, "text")
    return comparisons


def compare_media(_: Any, checkpoint: Path) -> list[TrialComparison]:
    """Compare a model with encoders: prompts with each kind of media that its class takes."""
    cls, config = find_class(checkpoint)
    processor = ItemProcessor.load(checkpoint)
    verdicts = media_admission.find_media_verdicts(cls, config, processor)
    parts, whole = load_parts(checkpoint), _load_whole(cls, checkpoint)
    with repeat_trials() as comparisons:
        for modality, verdict in verdicts.items():
            if verdict.mode is not None:
                trial = partial(media_admission.MediaTrial, whole, processor, parts, modality)
                _compare_trial(partial(media_admission.make_trial, trial, alone=verdict.alone), verdict.mode, modality)
    return comparisons


def _compare_trial(make_trial: Callable[[], admission.EngineTrial], mode: admission.Mode, subject: str) -> None:
    try:
        trial = make_trial()
    except Exception as error:  # noqa: BLE001 whatever a library raises
        admission.record_error(subject, error)
        return
    admission.find_fault(trial, mode)


def _load_whole(cls: Any, checkpoint: Path) -> Any:
    """Return the library's model, which generates greedily and to the full length."""
    model = cls.from_pretrained(checkpoint, dtype=torch.float32, local_files_only=True).eval()
    model.generation_config = GenerationConfig()
    return model
