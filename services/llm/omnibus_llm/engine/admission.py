"""Admission of language models without code for their class: how the engine may run them, found by trying.

A small random copy with the checkpoint's own configuration answers prompts of two lengths, longer than its windows, in
the engine and in the library's ``generate``. Equal tokens prove little with random weights, so logits are compared. The
result is stored for each configuration and version of the libraries.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
import transformers
from torch import Tensor

from omnibus.checkpoints.tensor_digests import cache_directory
from omnibus.errors import Fatal
from omnibus_llm.engine.sampler import Picker
from omnibus_llm.engine.sequence import DecoderSequence
from omnibus_llm.engine.step import Steps
from omnibus_models.contract import Decoder, PrefillInputs, TokenSamplingParams
from omnibus_models.examine.miniature import VOCABULARY, redraw_weights, shrink_config
from omnibus_models.families.causal_lm import OwnDecoder, OwnHead, find_backbone
from omnibus_models.loading import find_attention

_log = logging.getLogger(__name__)

#: Largest difference of logits in float32, relative to the largest logit if that is above 1.
TOLERANCE = 1e-4
PROMPTS = (11, 7)  # tokens, more than the windows of the copy
SHARE = 3  # tokens between two decode steps, of prompts that are computed in shares
ANSWER = 6  # tokens
_MAX_PARAMETERS = 100_000_000
_FORMAT = 1  # of stored verdicts


class Mode(NamedTuple):
    """The way in which an engine runs a model: several sequences in a pass, and prompts in shares."""

    batches: bool
    shares: bool


#: From the fastest mode to the one that is closest to ``generate``.
MODES = (Mode(True, True), Mode(True, False), Mode(False, True), Mode(False, False))


class TrialVerdict(msgspec.Struct, frozen=True):
    """The best mode with equal logits; None if there is none. ``reasons`` say why better modes are not."""

    mode: Mode | None
    reasons: dict[str, str] = {}


def admit_decoder(decoder: OwnDecoder) -> None:
    """Set the mode in which ``decoder`` runs. Raises ``Fatal`` if no mode gives the model's own logits."""
    verdict = find_verdict(type(decoder.module), decoder.backbone.config)
    name = type(decoder.module).__name__
    if verdict.mode is None:
        raise Fatal(
            f"{name} of transformers {transformers.__version__} does not give its own logits in this engine "
            f"({'; '.join(verdict.reasons.values())}); declare omnibus_engines:vllm if vLLM has the class"
        )
    decoder.batches, decoder.splits_prompts = verdict.mode
    if verdict.reasons:
        _log.info("%s runs in mode %s: %s", name, verdict.mode, verdict.reasons)


def find_verdict(cls: Any, config: Any, trial: Callable[[Any, Any], TrialVerdict] | None = None) -> TrialVerdict:
    """Return the verdict on the class ``cls`` with ``config``: a stored one, or that of ``trial`` (``try_class``)."""
    try:
        small = shrink_config(config)
        path = _verdict_path(cls, small)
    except Exception as error:  # noqa: BLE001 whatever a stranger's configuration makes a library raise
        return _unproved(error)
    try:
        return msgspec.json.decode(path.read_bytes(), type=TrialVerdict)
    except (OSError, msgspec.MsgspecError):
        verdict = (trial or try_class)(cls, small)
        _store_verdict(path, verdict)
        return verdict


def try_class(cls: Any, config: Any) -> TrialVerdict:
    """Build a copy of ``cls`` with the small ``config`` and find its verdict."""
    try:
        module = build_copy(cls, config)
        prompts = [_make_prompt(length) for length in PROMPTS]
        expected = [generate_logits(module, prompt) for prompt in prompts]
    except Exception as error:  # noqa: BLE001 whatever a library raises
        return _unproved(error)
    reasons: dict[str, str] = {}
    for mode in MODES:
        fault = _find_fault(module, mode, prompts, expected)
        if not fault:
            return TrialVerdict(mode, reasons)
        reasons[_describe_mode(mode)] = fault
    return TrialVerdict(None, reasons)


def build_copy(cls: Any, config: Any) -> Any:
    """Return a random float32 model of ``cls``, whose ``generate`` does not end early.

    Raises ``ValueError`` if it would be large.
    """
    config._attn_implementation = find_attention(cls)
    with torch.device("meta"):
        parameters = sum(weights.numel() for weights in cls(config).parameters())
    if parameters > _MAX_PARAMETERS:
        raise ValueError(f"a copy has {parameters} parameters")
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
        module = cls(config).float().eval().requires_grad_(False)
    redraw_weights(module)
    module.generation_config = transformers.GenerationConfig(pad_token_id=0)
    return module


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


def engine_logits(decoder: OwnDecoder, prompts: Sequence[Tensor]) -> list[Tensor]:
    """Return the logits [ANSWER, V] of the engine's greedy answer to each of ``prompts``, decoded together."""
    return decode_logits(decoder, [make_sequence(decoder, prompt) for prompt in prompts])


def decode_logits(decoder: Decoder, sequences: Sequence[DecoderSequence]) -> list[Tensor]:
    """Return the logits [ANSWER, V] of the engine's greedy continuation of each of ``sequences``, decoded together."""
    recorder: Any = _Recorder(decoder)
    steps = Steps(recorder, TokenFeed(decoder), len(sequences), max(PROMPTS) + ANSWER)
    rows: list[list[Tensor]] = []
    for sequence in sequences:
        share = SHARE if decoder.splits_prompts else sequence.length
        while not sequence.is_prefilled:
            _raise_errors(steps.prefill([(sequence, min(share, sequence.length - sequence.done))]))
        rows.append([recorder.taken[-1][0]])
    for _ in range(ANSWER - 1):
        _raise_errors(steps.decode(sequences))
        for row, logits in zip(rows, recorder.taken[-1], strict=True):
            row.append(logits)
    return [torch.stack(row) for row in rows]


def _find_fault(module: Any, mode: Mode, prompts: Sequence[Tensor], expected: Sequence[Tensor]) -> str:
    """Return why the engine does not give the ``expected`` logits in ``mode``, or ""."""
    try:
        decoder = OwnDecoder(module, find_backbone(module), OwnHead(module), ())
        decoder.batches, decoder.splits_prompts = mode
        given = engine_logits(decoder, prompts)
        swapped = engine_logits(decoder, prompts[::-1])[0]
    except Exception as error:  # noqa: BLE001 whatever a library raises
        return f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
    return find_difference(given, expected, swapped)


def find_difference(given: Sequence[Tensor], expected: Sequence[Tensor], swapped: Tensor) -> str:
    """Return why ``given`` logits are not the ``expected`` ones, or "". ``swapped`` are those of another prompt."""
    scale = max(1.0, *(float(each.abs().max()) for each in expected))
    difference = max(float((one - other).abs().max()) for one, other in zip(given, expected, strict=True))
    if not difference <= TOLERANCE * scale:
        return f"logits differ by {difference:.2g}"
    # Logits that do not depend on the prompt would be equal as well.
    return "" if float((swapped - given[0]).abs().max()) > 10 * TOLERANCE else "logits do not depend on the prompt"


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


def make_sequence(decoder: OwnDecoder, prompt: Tensor) -> DecoderSequence:
    """Return a sequence of ``prompt`` [T] with a greedy answer."""
    positions, media = torch.arange(len(prompt))[None], torch.zeros(len(prompt), dtype=torch.bool)
    prefill = PrefillInputs(decoder.embed(prompt), positions, 0, media)
    picker = Picker(TokenSamplingParams(max_tokens=ANSWER, temperature=0.0), 0)
    return DecoderSequence(prefill, picker, ANSWER, frozenset())


def _make_prompt(length: int) -> Tensor:
    return torch.randint(5, VOCABULARY - 5, (length,), generator=torch.Generator().manual_seed(length))


def _raise_errors(outcomes: Sequence[Any]) -> None:
    for outcome in outcomes:
        if isinstance(outcome.result, Exception):
            raise outcome.result


def _describe_mode(mode: Mode) -> str:
    return f"{'several' if mode.batches else 'one'} at a time, prompts {'in shares' if mode.shares else 'whole'}"


def _unproved(error: Exception) -> TrialVerdict:
    """Return the verdict on a class of which no copy runs: the mode that is closest to ``generate``."""
    return TrialVerdict(MODES[-1], {"copy": f"no small copy of it runs: {type(error).__name__}: {str(error)[:200]}"})


# Stored verdicts


def _verdict_path(cls: Any, small: Any) -> Path:
    versions = [_FORMAT, transformers.__version__, torch.__version__]
    key = json.dumps([*versions, cls.__name__, small.to_dict()], sort_keys=True, default=str)
    return cache_directory() / "admission" / f"{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}.json"


def _store_verdict(path: Path, verdict: TrialVerdict) -> None:
    """Store ``verdict``, if the directory can be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_bytes(msgspec.json.encode(verdict))
        temporary.replace(path)
    except OSError as error:
        _log.warning("the result of a trial is not stored: %s", error)
