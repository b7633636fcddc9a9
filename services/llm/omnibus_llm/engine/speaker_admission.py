"""Admission of text-to-speech models: whether the model and its vocoder give the samples of the whole, by trying.

A small random copy with the checkpoint's own configuration speaks a text as the class does, and in two parts. The
result is stored as that of language models.
"""

import copy
import inspect
from collections.abc import Mapping
from typing import Any

import msgspec
import torch
import transformers
from torch import Tensor

from omnibus.errors import Fatal
from omnibus_models import loading, verdicts
from omnibus_models.contract import SpeakingOptions
from omnibus_models.families._speech_classes import SpeechClass
from omnibus_models.families.text_to_speech import ClassSpeaker, ClassSynthesizer, call_vocoder, flatten_samples
from omnibus_models.miniature import CODES, build_speech_copy, shrink_speech

TEXTS = ("a small cat sat on the mat", "one more red circle is here")
#: Largest difference of samples, and their usual size.
TOLERANCE = 1e-4
#: Arguments that keep the speech of a copy short.
_SHORT: Mapping[str, Any] = {
    "generation_config": {"max_new_tokens": 24},
    # Greedy random models with tied embeddings repeat a token, whatever the text is.
    "tgt_lang": {"text_max_new_tokens": 12, "speech_max_new_tokens": 24, "do_sample": True, "temperature": 9.0},
    "history_prompt": {"semantic_max_new_tokens": 9},
}


class SpeechVerdict(msgspec.Struct, frozen=True):
    """``fault`` is why a class cannot be served, or ""."""

    fault: str


def admit_speaker(speaker: ClassSpeaker) -> None:
    """Raise ``Fatal`` if a copy of the class of ``speaker`` in two parts does not give its samples."""
    module: Any = speaker.module
    cls, row = type(module), speaker.row
    key = (cls.__name__, module.config.to_dict(), transformers.__version__, torch.__version__)
    verdict = verdicts.find_stored(
        verdicts.verdict_path(key, "speech-"), SpeechVerdict, lambda: SpeechVerdict(find_fault(speaker, row))
    )
    if verdict.fault:
        raise Fatal(
            f"{cls.__name__} of transformers {transformers.__version__} does not give its own samples in two parts "
            f"({verdict.fault}); it cannot be served"
        )


def find_fault(speaker: ClassSpeaker, row: SpeechClass) -> str:
    """Return why a copy of ``speaker`` cannot be served, or ""."""
    options = SpeakingOptions(speaker.voices[0])
    try:
        inputs = [speaker.make_inputs(text, options) for text in TEXTS]
        return try_speaker(
            getattr(transformers, row.cls), speaker.module.config, row, inputs, speaker.module, speaker.processor
        )
    except Exception as error:  # noqa: BLE001 whatever a library raises
        return f"no small copy of it speaks: {type(error).__name__}: {str(error)[:200]}"


def try_speaker(
    cls: Any, config: Any, row: SpeechClass, inputs: list[dict[str, Any]], original: Any, processor: Any
) -> str:
    """Return why a copy of ``cls`` in two parts differs from the whole for two ``inputs``, or ""."""
    module = build_speech_copy(cls, shrink_speech(config)).to(next(iter(inputs[0].values())).device)
    if getattr(original, "generation_config", None) is not None:
        module.generation_config = copy.deepcopy(original.generation_config)
    other = _build_vocoder(row)
    expected = [_speak_whole(module, row, each, other, processor) for each in inputs]
    pruned = copy.deepcopy(module)
    for name, _ in list(module.named_children()):
        loading.remove_part(pruned, name) if name not in row.parts else loading.remove_part(module, name)
    vocoder = ClassSynthesizer(pruned if other is None else other, row)
    given = []
    for each in inputs:
        torch.manual_seed(0)
        given.append(
            vocoder.synthesize(call_vocoder(module, row, find_run(module), _shorten(module, row, each), processor))
        )
    if any(one.shape != other.shape for one, other in zip(given, expected, strict=True)):
        return "the lengths of the samples differ"
    difference = max(float((one - other).abs().max()) for one, other in zip(given, expected, strict=True))
    if not difference <= TOLERANCE:
        return f"samples differ by {difference:.2g}"
    same = given[0].shape == given[1].shape and float((given[0] - given[1]).abs().max()) <= 10 * TOLERANCE
    return "samples do not depend on the text" if same else ""


def find_run(module: Any) -> Any:
    """Return the function of ``module`` that speaks."""
    return module.generate if module.can_generate() else module.forward


def _shorten(module: Any, row: SpeechClass, inputs: Mapping[str, Any]) -> dict[str, Any]:
    accepted = inspect.signature(find_run(module)).parameters
    short: Mapping[str, Any] = next((values for name, values in _SHORT.items() if name in accepted), {})
    return {**inputs, **row.options, **short}


def _speak_whole(module: Any, row: SpeechClass, inputs: Mapping[str, Any], other: Any, processor: Any) -> Tensor:
    """Return the samples that the class makes without this product."""
    torch.manual_seed(0)
    run, named = find_run(module), _shorten(module, row, inputs)
    if other is not None and "vocoder" in inspect.signature(run).parameters:
        return flatten_samples(run(**named, vocoder=other))
    made = run(**named)
    if row.processor and other is not None:
        processor.audio_tokenizer = other
        return flatten_samples(processor.batch_decode(made))
    if other is not None:
        return flatten_samples(other(made.spectrogram))
    return flatten_samples(getattr(made, "waveform", made))


def _build_vocoder(row: SpeechClass) -> Any:
    if not row.other:
        return None
    cls = getattr(transformers, row.other)
    config = cls.config_class()
    if hasattr(config, "codebook_size"):
        config.codebook_size = CODES
    return build_speech_copy(cls, config)
