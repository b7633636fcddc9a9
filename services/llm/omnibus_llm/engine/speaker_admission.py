"""Admission of text-to-speech models: whether the model and its vocoder give the samples of the whole, by trying.

A small random copy with the checkpoint's own configuration speaks two texts as the class does, and in two parts. The
result is stored as that of language models.
"""

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import torch
import transformers
from torch import Tensor

from omnibus.checkpoints.report import TrialComparison
from omnibus.errors import Fatal
from omnibus_models import loading, verdicts
from omnibus_models.contract import SpeakingOptions
from omnibus_models.families._speech_classes import SpeechClass
from omnibus_models.families.text_to_speech import (
    ClassSpeaker,
    ClassSynthesizer,
    call_vocoder,
    find_run,
    flatten_samples,
)
from omnibus_models.miniature import CODES, build_speech_copy, shrink_speech

TEXTS = ("a small cat sat on the mat", "one more red circle is here")
#: Random models may choose tokens that their vocoder lacks, so there is another attempt.
SEEDS = (0, 1)
#: Largest difference of samples, which are at most 1.
TOLERANCE = 1e-4
_SUBJECT = "speech: the model and its vocoder apart"
#: Arguments that keep the speech of a copy short, by an argument that its class has.
_SHORT: Mapping[str, Mapping[str, Any]] = {
    "generation_config": {"max_new_tokens": 24},
    # Greedy random models often repeat a token, whatever the text is.
    "tgt_lang": {"text_max_new_tokens": 12, "speech_max_new_tokens": 24, "do_sample": True, "temperature": 9.0},
    "history_prompt": {"semantic_max_new_tokens": 9, "semantic_do_sample": True, "semantic_temperature": 9.0},
}


class SpeechVerdict(msgspec.Struct, frozen=True):
    """``fault`` is why a class cannot be served, or ""."""

    fault: str


def admit_speaker(speaker: ClassSpeaker) -> None:
    """Raise ``Fatal`` if the class of ``speaker`` cannot be served."""
    module: Any = speaker.module
    name = type(module).__name__
    key = (name, module.config.to_dict(), transformers.__version__, torch.__version__)
    path = verdicts.verdict_path(key, "speech-")
    verdict = verdicts.find_stored(path, SpeechVerdict, lambda: SpeechVerdict(find_fault(speaker)))
    if verdict.fault:
        raise Fatal(
            f"{name} of transformers {transformers.__version__} does not give its own samples in two parts "
            f"({verdict.fault}); it cannot be served"
        )


def find_fault(speaker: ClassSpeaker) -> str:
    """Return why a copy of ``speaker`` cannot be served, or ""."""
    options, fault = SpeakingOptions(speaker.voices[0]), ""
    for seed in SEEDS:
        try:
            return _SpeechTrial(speaker, [speaker.make_inputs(text, options) for text in TEXTS], seed).find_fault()
        except Exception as error:  # noqa: BLE001 whatever a library raises
            fault = f"no small copy of it speaks: {type(error).__name__}: {str(error)[:200]}"
    return fault


class _SpeechTrial:
    """A copy of the class of ``speaker``, and ``inputs`` of two texts."""

    def __init__(self, speaker: ClassSpeaker, inputs: Sequence[Mapping[str, Any]], seed: int) -> None:
        self._seed = seed
        original: Any = speaker.module
        self._row: SpeechClass = speaker.row
        self._processor = copy.copy(speaker.processor)
        config = shrink_speech(original.config)
        self._module = build_speech_copy(getattr(transformers, self._row.cls), config).to(original.device)
        if hasattr(original, "generation_config"):
            self._module.generation_config = copy.deepcopy(original.generation_config)
        parameters = inspect.signature(find_run(self._module)).parameters
        short: Mapping[str, Any] = next((values for name, values in _SHORT.items() if name in parameters), {})
        self._inputs = [{**each, **self._row.options, **short} for each in inputs]
        self._vocoder = self._build_vocoder().to(original.device) if self._row.other else None

    def _build_vocoder(self) -> Any:
        cls = getattr(transformers, self._row.other)
        config = cls.config_class()
        if hasattr(config, "codebook_size"):
            config.codebook_size = CODES
        return build_speech_copy(cls, config)

    def find_fault(self) -> str:
        """Return why the parts make other samples than the whole, or ""."""
        expected = [self._speak_whole(each) for each in self._inputs]
        given = self._speak_apart()
        pairs = list(zip(given, expected, strict=True))
        if any(one.shape != other.shape for one, other in pairs):
            return verdicts.record_comparison(TrialComparison(_SUBJECT, fault="the lengths of the samples differ"))
        difference, fault = max(float((one - other).abs().max()) for one, other in pairs), ""
        if not difference <= TOLERANCE:
            fault = f"samples differ by {difference:.2g}"
        elif given[0].shape == given[1].shape and float((given[0] - given[1]).abs().max()) <= 10 * TOLERANCE:
            fault = "samples do not depend on the text"
        return verdicts.record_comparison(TrialComparison(_SUBJECT, difference, TOLERANCE, fault))

    def _speak_whole(self, inputs: Mapping[str, Any]) -> Tensor:
        """Return the samples that the class makes without this product."""
        torch.manual_seed(self._seed)
        run, other = find_run(self._module), self._vocoder
        if other is not None and "vocoder" in inspect.signature(run).parameters:
            return flatten_samples(run(**inputs, vocoder=other))
        output = run(**inputs)
        if other is not None and self._row.processor:
            self._processor.audio_tokenizer = other
            return flatten_samples(self._processor.batch_decode(output))
        return flatten_samples(other(output.spectrogram) if other is not None else getattr(output, "waveform", output))

    def _speak_apart(self) -> list[Tensor]:
        """Return the samples of the two parts; the whole is gone then."""
        parts = copy.deepcopy(self._module)
        for name, _ in [*parts.named_children()]:
            loading.remove_part(self._module if name in self._row.parts else parts, name)
        vocoder = ClassSynthesizer(parts if self._vocoder is None else self._vocoder, self._row)
        samples = []
        for each in self._inputs:
            torch.manual_seed(self._seed)
            samples.append(vocoder.synthesize(call_vocoder(self._module, self._row, each, self._processor)))
        return samples
