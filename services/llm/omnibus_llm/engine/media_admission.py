"""Admission of models with encoders, without code for their class: whether they come apart, found by trying.

A small random copy answers prompts with media whole, by the library's ``generate`` on the processor's own inputs, and
apart: its encoders without the language model, and its language model in the engine without the encoders. Their logits
are compared, in batches of prompts of different lengths, with two media in one of them.

Admission of text-to-speech models: whether the model and its vocoder give the samples of the whole, by trying.

A small random copy with the checkpoint's own configuration speaks two texts as the class does, and in two parts. The
result is stored as that of language models.
"""

import copy
import inspect
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
import torch
import transformers
from torch import Tensor

from omnibus.checkpoints.report import TrialComparison
from omnibus.errors import Fatal
from omnibus_llm.engine.admission import ANSWER, MODES, Mode, TrialVerdict, describe_class, find_mode
from omnibus_models import loading, verdicts
from omnibus_models.contract import Encoded, PrefillInputs, Prepared, SpeakingOptions
from omnibus_models.families._item_processor import MEDIUM, ItemProcessor, sample_items
from omnibus_models.families._media_parts import Parts, copy_model, find_class, split_copy
from omnibus_models.families._own_encoder import OwnEncoder
from omnibus_models.families._own_prompt import OwnPrompts
from omnibus_models.families._speech_classes import SpeechClass
from omnibus_models.families._whole_model import MediaPreparer, WholeDecoder, WholePrompts
from omnibus_models.families.causal_lm import OwnDecoder, OwnHead, find_backbone
from omnibus_models.families.multimodal_lm import OwnThinker
from omnibus_models.families.text_to_speech import (
    ClassSpeaker,
    ClassSynthesizer,
    call_vocoder,
    find_run,
    flatten_samples,
)
from omnibus_models.loading import remove_part
from omnibus_models.miniature import CODES, SmallTokens, build_speech_copy, shrink_speech
from omnibus_models.verdicts import find_stored, record_comparison, verdict_path

R = TypeVar("R")

_log = logging.getLogger(__name__)

#: Prompts of a trial.
_PROMPTS = (f"a red {MEDIUM} hill {MEDIUM} dog", f"{MEDIUM} the cat sleeps on")
_SINGLE_PROMPTS = (f"a red {MEDIUM} hill", f"{MEDIUM} the cat sleeps on")


def admit_thinker(thinker: OwnThinker) -> None:
    """Set the mode in which ``thinker`` runs. Raises ``Fatal`` if no modality gives its own logits."""
    cls, config = find_class(thinker.checkpoint)
    verdicts = find_media_verdicts(cls, config, thinker.processor)
    modes = [verdict.mode for verdict in verdicts.values() if verdict.mode is not None]
    reasons = {name: "; ".join(verdict.reasons.values()) for name, verdict in verdicts.items() if verdict.reasons}
    if not modes:
        raise Fatal(
            f"{cls.__name__} of transformers {transformers.__version__} cannot be served in parts: "
            f"{reasons or 'it has no encoder'}"
        )
    thinker.batches, thinker.splits_prompts, thinker.takes_masks = (all(values) for values in zip(*modes, strict=True))
    thinker.alone = frozenset(name for name, verdict in verdicts.items() if verdict.alone)
    if reasons:
        _log.info("%s runs in mode %s: %s", cls.__name__, modes, reasons)


def find_media_verdicts(cls: Any, config: Any, processor: ItemProcessor) -> dict[str, TrialVerdict]:
    """Return the verdicts of ``try_parts``: stored ones, or those of a trial."""
    try:
        path = verdict_path([*describe_class(cls, config), str(processor.processor)])
    except Exception as error:  # noqa: BLE001 whatever a stranger's configuration makes a library raise
        return {"": _refused(error)}
    return find_stored(path, dict[str, TrialVerdict], lambda: try_parts(cls, config, processor))


class MediaTrial:
    """See ``admission.EngineTrial``: prompts with media of one ``modality`` for ``module``, the whole model."""

    def __init__(
        self,
        module: Any,
        processor: ItemProcessor,
        parts: Parts,
        modality: str,
        prompts: Sequence[str],
        *,
        same_size: bool = False,
    ) -> None:
        self._processor = processor
        self._modality = modality
        several = any(text.count(MEDIUM) > 1 for text in prompts)
        self.subject = modality if several else f"{modality}, one item in a prompt"
        self._whole = parts.whole
        half = partial(OwnEncoder, _remove_parts(module, parts.language), inverted=parts.inverted)
        self._encoder = (MediaPreparer if parts.whole else half)(processor)
        self._language = _remove_parts(module, parts.encoders)
        self._sample = partial(sample_items, modality, same_size=same_size)
        items = list(self._sample())
        self._prompts = [
            (self._processor.write_prompt(text, self._modality), items[: text.count(MEDIUM)][::-1]) for text in prompts
        ]
        self._media = [self._encode(chosen) for _, chosen in self._prompts]
        self.expected = [_with_seed(self._generate, module, text, chosen) for text, chosen in self._prompts]

    def _encode(self, items: Sequence[Any]) -> list[Encoded]:
        prepared = [self._process_item(item, alone=len(items) == 1) for item in items]
        return _with_seed(self._encoder.encode, prepared)

    def _process_item(self, item: Any, *, alone: bool) -> Prepared:
        alone = alone or self._modality not in self._processor.closer
        return self._processor.process_item(item, self._modality, alone)

    def make_decoder(self) -> OwnDecoder:
        if self._whole:
            return WholeDecoder(self._language, find_backbone(self._language), torch.nn.Identity(), ())
        return OwnDecoder(self._language, find_backbone(self._language), OwnHead(self._language, by_ids=True), ())

    def make_prefills(self, decoder: OwnDecoder) -> list[PrefillInputs]:
        return self._assemble(decoder, self._media)

    def make_control(self, decoder: OwnDecoder) -> list[PrefillInputs]:
        """Return the prompts with other rows of the same shapes."""
        others = [*self._sample(seed=1)]
        return self._assemble(decoder, [self._encode(others[: len(items)][::-1]) for _, items in self._prompts])

    def _assemble(self, decoder: OwnDecoder, media: Sequence[Sequence[Encoded]]) -> list[PrefillInputs]:
        prompts = (WholePrompts if self._whole else OwnPrompts)(decoder, self._processor)
        prefills = []
        for (text, _), items in zip(self._prompts, media, strict=True):
            tokens, starts = self._processor.expand_prompt(text, items)
            no_media = torch.zeros(len(tokens), dtype=torch.bool)
            prefills.append(prompts.assemble_prefill(tokens, starts, items, no_media))
        return prefills

    def _generate(self, module: Any, text: str, items: Sequence[Any]) -> Tensor:
        """Return the logits [ANSWER, V] of the library's greedy answer.

        Raises ``ValueError`` if the processor expands the prompt in another way than item by item.
        """
        inputs = self._processor.call_processor(text, {self._modality: items})
        media = self._media[[each for each, _ in self._prompts].index(text)]
        if inputs["input_ids"][0].tolist() != self._processor.expand_prompt(text, media)[0]:
            raise ValueError("its processor does not expand a prompt item by item")
        names = inspect.signature(module.forward).parameters
        accepted = {
            name: value.float() if isinstance(value, Tensor) and value.is_floating_point() else value
            for name, value in inputs.items()
            if name in names or not name.endswith("type_ids")
        }
        accepted["input_ids"] = self._processor.model_tokens(inputs["input_ids"])
        answer = module.generate(
            **accepted, max_new_tokens=ANSWER, do_sample=False, output_logits=True, return_dict_in_generate=True
        )
        return torch.cat(answer.logits).float()


def _with_seed(function: Callable[..., R], *values: Any) -> R:
    """Return the result of ``function``, which always draws the same numbers (VibeVoice's encoder adds noise)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return function(*values)


def try_parts(cls: Any, config: Any, processor: ItemProcessor) -> dict[str, TrialVerdict]:
    """Return the verdict on a copy of ``cls`` with ``config`` for each modality of its encoders."""
    try:
        processor = processor.with_tokens(SmallTokens(config))
        module = copy_model(cls, config)
    except Exception as error:  # noqa: BLE001 whatever a library raises
        return {"any" if isinstance(error, Fatal) else "": _refused(error)}
    try:
        parts = split_copy(module, processor)
    except Exception as error:  # noqa: BLE001 whatever a library raises
        return {"any": _refused(error)}
    faults = {name: TrialVerdict(None, {"trial": fault}) for name, fault in parts.faults.items() if name}
    trials = [partial(MediaTrial, module, processor, parts, modality) for modality in parts.modalities]
    modes = MODES[-1:] if parts.whole else MODES
    verdicts = [msgspec.structs.replace(_try_modality(trial, modes), whole=parts.whole) for trial in trials]
    return dict(zip(parts.modalities, verdicts, strict=True)) | faults


def _try_modality(trial: Callable[..., MediaTrial], modes: Sequence[Mode]) -> TrialVerdict:
    verdict = _try_prompts(trial, modes, _PROMPTS)
    if verdict.mode is not None:
        return verdict
    single = _try_prompts(trial, modes, _SINGLE_PROMPTS)
    return single if single.mode is None else TrialVerdict(single.mode, {**verdict.reasons, **single.reasons}, True)


def _try_prompts(trial: Callable[..., MediaTrial], modes: Sequence[Mode], prompts: Sequence[str]) -> TrialVerdict:
    try:
        return find_mode(make_trial(trial, alone=prompts is _SINGLE_PROMPTS), modes)
    except Exception as error:  # noqa: BLE001 whatever a library raises
        return _refused(error)


def make_trial(trial: Callable[..., MediaTrial], *, alone: bool) -> MediaTrial:
    """Return ``trial`` of the usual prompts; ``alone`` for those with one item each."""
    prompts = _SINGLE_PROMPTS if alone else _PROMPTS
    try:
        return trial(prompts)
    except Exception:  # noqa: BLE001 whatever a library raises: some processors take items of one size in a prompt
        return trial(prompts, same_size=True)


def _refused(error: Exception) -> TrialVerdict:
    text = re.sub(r"\s+", " ", str(error))[:200]
    fault = record_comparison(TrialComparison("a small copy", fault=f"{type(error).__name__}: {text}"))
    return TrialVerdict(None, {"trial": fault})


def _remove_parts(module: Any, paths: Sequence[str]) -> Any:
    """Return a copy of ``module`` without the parts at ``paths``."""
    weights = {id(each): each for each in (*module.parameters(), *module.buffers())}
    changed = copy.deepcopy(module, weights)  # which shares them
    for path in paths:
        remove_part(changed, path)
    return changed


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
