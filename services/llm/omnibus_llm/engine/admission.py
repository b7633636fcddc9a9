"""Admission of language models without code for their class: how the engine may run them, found by trying.

A small random copy with the checkpoint's own configuration answers prompts of two lengths, longer than its windows, in
the engine and in the library's ``generate``. Equal tokens prove little with random weights, so logits are compared. The
result is stored for each configuration and version of the libraries.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import torch
import transformers
from torch import Tensor

from omnibus.checkpoints.report import TrialComparison
from omnibus.errors import Fatal
from omnibus_llm.engine.sampler import Picker
from omnibus_llm.engine.sequence import DecoderSequence
from omnibus_llm.engine.step import Steps
from omnibus_models.contract import Decoder, PrefillInputs, TokenSamplingParams
from omnibus_models.families.causal_lm import OwnDecoder, OwnHead, find_backbone
from omnibus_models.miniature import VOCABULARY, build_copy, shrink_config
from omnibus_models.verdicts import find_stored, record_comparison, verdict_path

_log = logging.getLogger(__name__)

#: Largest difference of logits in float32, relative to the largest logit if that is above 1.
TOLERANCE = 1e-4
PROMPTS = (11, 7)  # tokens, more than the windows of the copy
SHARE = 3  # tokens between two decode steps, of prompts that are computed in shares
ANSWER = 6  # tokens
_FORMAT = 3  # of stored verdicts


class Mode(NamedTuple):
    """The way in which an engine runs a model: several sequences in a pass, and prompts in shares.

    With ``masks``, layers take the engine's masks, which saves computing them in each step.
    """

    batches: bool
    shares: bool
    masks: bool = False


#: From the fastest mode to the one that is closest to ``generate``.
MODES = (Mode(True, True), Mode(True, False), Mode(False, True), Mode(False, False))


class TrialVerdict(msgspec.Struct, frozen=True):
    """The best mode with equal logits; None if there is none. ``reasons`` say why better modes are not.

    ``alone`` is for prompts with one media item: several together give other logits, or an error. A ``whole`` model
    does not come apart.
    """

    mode: Mode | None
    reasons: dict[str, str] = {}
    alone: bool = False
    whole: bool = False


def admit_decoder(decoder: OwnDecoder) -> None:
    """Set the mode in which ``decoder`` runs. Raises ``Fatal`` if no mode gives the model's own logits."""
    verdict = find_verdict(type(decoder.module), decoder.backbone.config)
    name = type(decoder.module).__name__
    if verdict.mode is None:
        raise Fatal(
            f"{name} of transformers {transformers.__version__} does not give its own logits in this engine "
            f"({'; '.join(verdict.reasons.values())}); declare omnibus_engines:vllm if vLLM has the class"
        )
    decoder.batches, decoder.splits_prompts, decoder.takes_masks = verdict.mode
    if verdict.reasons:
        _log.info("%s runs in mode %s: %s", name, verdict.mode, verdict.reasons)


def find_verdict(cls: Any, config: Any, trial: Callable[[Any, Any], TrialVerdict] | None = None) -> TrialVerdict:
    """Return the verdict on the class ``cls`` with ``config``: a stored one, or that of ``trial`` (``try_class``)."""
    try:
        small = shrink_config(config)
        path = verdict_path(describe_class(cls, small))
    except Exception as error:  # noqa: BLE001 whatever a stranger's configuration makes a library raise
        return unproved(error)
    return find_stored(path, TrialVerdict, lambda: (trial or try_class)(cls, small))


def try_class(cls: Any, config: Any) -> TrialVerdict:
    """Build a copy of ``cls`` with the small ``config`` and find its verdict."""
    try:
        module = build_copy(cls, config)
        prompts = make_prompts()
        expected = [generate_logits(module, prompt) for prompt in prompts]
    except Exception as error:  # noqa: BLE001 whatever a library raises
        return unproved(error)
    return find_mode(TextTrial(module, prompts, expected))


class EngineTrial(Protocol):
    """Prompts and the logits that the library's ``generate`` gives for each, [ANSWER, V]."""

    @property
    def subject(self) -> str:
        """Contents of the prompts, in words."""

    @property
    def expected(self) -> Sequence[Tensor]:
        """The logits."""

    def make_decoder(self) -> OwnDecoder:
        """Return the model as an engine runs it."""

    def make_prefills(self, decoder: OwnDecoder) -> list[PrefillInputs]:
        """Return the inputs of the prompts."""

    def make_control(self, decoder: OwnDecoder) -> list[PrefillInputs]:
        """Return inputs of which the first must have other logits than the first prompt."""


class TextTrial(NamedTuple):
    """See ``EngineTrial``: ``prompts`` are tokens [T]."""

    module: Any
    prompts: Sequence[Tensor]
    expected: Sequence[Tensor]
    subject: str = "text"

    def make_decoder(self) -> OwnDecoder:
        return OwnDecoder(self.module, find_backbone(self.module), OwnHead(self.module), ())

    def make_prefills(self, decoder: OwnDecoder) -> list[PrefillInputs]:
        return [make_prefill(decoder, prompt) for prompt in self.prompts]

    def make_control(self, decoder: OwnDecoder) -> list[PrefillInputs]:
        return self.make_prefills(decoder)[::-1]


def find_mode(trial: EngineTrial, modes: Sequence[Mode] = MODES) -> TrialVerdict:
    """Return the best of ``modes`` in which the engine gives the expected logits of ``trial``."""
    reasons: dict[str, str] = {}
    for mode in modes:
        fault = find_fault(trial, mode)
        if not fault:
            masked = mode._replace(masks=True)
            return TrialVerdict(mode if find_fault(trial, masked) else masked, reasons)
        reasons[describe_mode(mode)] = fault
    return TrialVerdict(None, reasons)


def generate_logits(module: Any, prompt: Tensor) -> Tensor:
    """Return the logits [ANSWER, V] of the library's greedy answer to ``prompt`` [T]."""
    answer = module.generate(
        input_ids=prompt[None],
        attention_mask=torch.ones_like(prompt)[None],
        max_new_tokens=ANSWER,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return torch.cat(answer.logits).float()


def engine_logits(decoder: Decoder, prefills: Sequence[PrefillInputs]) -> list[Tensor]:
    """Return the logits [ANSWER, V] of the engine's greedy answer to each of ``prefills``, decoded together."""
    recorder: Any = _Recorder(decoder)
    longest = max(len(prefill.inputs) for prefill in prefills)
    steps = Steps(recorder, TokenFeed(decoder), len(prefills), longest + ANSWER)
    sequences = [make_sequence(prefill) for prefill in prefills]
    rows: list[list[Tensor]] = []
    for sequence in sequences:
        share = SHARE if decoder.splits_prompts and not sequence.spans else sequence.length
        while not sequence.is_prefilled:
            _raise_errors(steps.prefill([(sequence, min(share, sequence.length - sequence.done))]))
        rows.append([recorder.taken[-1][0]])
    for _ in range(ANSWER - 1):
        _raise_errors(steps.decode(sequences))
        for row, logits in zip(rows, recorder.taken[-1], strict=True):
            row.append(logits)
    return [torch.stack(row) for row in rows]


def find_fault(trial: EngineTrial, mode: Mode) -> str:
    """Return why the engine does not give the expected logits in ``mode``, or ""."""
    expected, subject = trial.expected, f"{trial.subject}: {describe_mode(mode)}"
    try:
        decoder = trial.make_decoder()
        decoder.batches, decoder.splits_prompts, decoder.takes_masks = mode
        given = engine_logits(decoder, trial.make_prefills(decoder))
        changed = engine_logits(decoder, trial.make_control(decoder))[0]
    except Exception as error:  # noqa: BLE001 whatever a library raises
        return record_error(subject, error)
    return find_difference(given, expected, changed, subject)


def record_error(subject: str, error: Exception) -> str:
    """Return the ``error`` of a library as the reason why ``subject`` cannot run."""
    fault = f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
    return record_comparison(TrialComparison(subject, fault=fault))


def find_difference(given: Sequence[Tensor], expected: Sequence[Tensor], changed: Tensor, subject: str) -> str:
    """Return why ``given`` logits are not the ``expected`` ones, or "".

    ``changed`` are those of another prompt, ``subject`` says what was compared.
    """
    scale = max(1.0, *(float(each.abs().max()) for each in expected))
    difference = max(float((one - other).abs().max()) for one, other in zip(given, expected, strict=True))
    fault = ""
    if not difference <= TOLERANCE * scale:
        fault = f"logits differ by {difference:.2g}"
    elif not float((changed - given[0]).abs().max()) > 10 * TOLERANCE:  # they would be equal as well
        fault = "logits do not depend on the prompt"
    return record_comparison(TrialComparison(subject, difference, TOLERANCE * scale, fault))


class _Recorder:
    """A decoder that keeps the logits that it returns."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self.taken: list[Tensor] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)

    def logits(self, hidden: Tensor) -> Tensor:
        self.taken.append(self._decoder.logits(hidden))
        return self.taken[-1]


class TokenFeed:
    """See ``step.Feed``: each step continues with the last token."""

    always_ready = True

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def is_ready(self, sequence: DecoderSequence) -> bool:
        return True

    def build_inputs(self, batch: Sequence[DecoderSequence]) -> Tensor:
        return self._decoder.embed(torch.tensor([sequence.token for sequence in batch]))

    def observe_prefill(self, sequence: DecoderSequence, hidden: Tensor) -> None:
        """Nothing follows the prompt."""

    def first_side(self, sequence: DecoderSequence) -> None:
        return None

    def step_sides(self, batch: Sequence[DecoderSequence], inputs: Tensor, hidden: Tensor) -> list[Any]:
        return [None] * len(batch)

    def token_sides(
        self, batch: Sequence[DecoderSequence], hidden: Tensor, tokens: list[int], sides: list[Any]
    ) -> list[Any]:
        return sides


def make_sequence(prefill: PrefillInputs) -> DecoderSequence:
    """Return a sequence of a prompt with a greedy answer."""
    picker = Picker(TokenSamplingParams(max_tokens=ANSWER, temperature=0.0), 0)
    return DecoderSequence(prefill, picker, ANSWER, frozenset())


def make_prefill(decoder: OwnDecoder, prompt: Tensor) -> PrefillInputs:
    """Return the inputs of the tokens ``prompt`` [T]."""
    positions, media = torch.arange(len(prompt))[None], torch.zeros(len(prompt), dtype=torch.bool)
    return PrefillInputs(decoder.embed(prompt), positions, 0, media)


def make_prompts() -> list[Tensor]:
    """Return the prompts of a trial, tokens [T] of different lengths."""
    return [_make_prompt(length) for length in PROMPTS]


def _make_prompt(length: int) -> Tensor:
    return torch.randint(5, VOCABULARY - 5, (length,), generator=torch.Generator().manual_seed(length))


def _raise_errors(outcomes: Sequence[Any]) -> None:
    for outcome in outcomes:
        if isinstance(outcome.result, Exception):
            raise outcome.result


def describe_mode(mode: Mode) -> str:
    """Return ``mode`` in words."""
    masks = ", masks of the engine" if mode.masks else ""
    return f"{'several' if mode.batches else 'one'} at a time, prompts {'in shares' if mode.shares else 'whole'}{masks}"


def unproved(error: Exception) -> TrialVerdict:
    """Return the verdict on a class of which no copy runs: the mode that is closest to ``generate``."""
    fault = f"no small copy of it runs: {type(error).__name__}: {str(error)[:200]}"
    return TrialVerdict(MODES[-1], {"copy": record_comparison(TrialComparison("a small copy", fault=fault))})


# Stored verdicts


def describe_class(cls: Any, config: Any) -> list[Any]:
    """Return what a verdict on ``cls`` with ``config`` depends on, without the directory of the checkpoint."""
    fields = {**config.to_dict(), "_name_or_path": ""}
    return [_FORMAT, transformers.__version__, torch.__version__, cls.__name__, fields]
