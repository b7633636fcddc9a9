"""Admission of recognizers without code for their class: whether windows can share a pass, found by trying.

A small random copy with the checkpoint's own configuration continues prompts of different lengths, in the engine and in
the library's ``generate``. Two of three windows have as many rows, so they share a pass. The result is stored as that
of language models.
"""

import logging
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from torch import Tensor

from omnibus.errors import Fatal
from omnibus_llm.engine import admission
from omnibus_llm.engine.admission import ANSWER, Mode, TrialVerdict
from omnibus_models.families._word_times import EncodedWindow
from omnibus_models.families.speech_to_text import PairedDecoder
from omnibus_models.miniature import build_copy

_log = logging.getLogger(__name__)

#: Tokens before the text of each window, and its rows of the encoder.
PROMPTS = ((5, 9), (5, 9, 7, 8, 3), (5,))
ROWS = (11, 11, 7)
MODES = (Mode(True, False), admission.MODES[-1])


def admit_recognizer(decoder: PairedDecoder) -> None:
    """Set whether windows of ``decoder`` share a pass.

    Raises ``Fatal`` if no mode gives the model's own logits, and if no copy of the class runs.
    """
    cls = type(decoder.module)
    verdict = admission.find_verdict(cls, decoder.module.config, try_recognizer)
    if verdict.mode is None or "copy" in verdict.reasons:
        raise Fatal(
            f"{cls.__name__} of transformers {transformers.__version__} does not give its own logits in this engine "
            f"({'; '.join(verdict.reasons.values())}); it cannot be served"
        )
    decoder.batches = verdict.mode.batches
    if verdict.reasons:
        _log.info("%s runs in mode %s: %s", cls.__name__, verdict.mode, verdict.reasons)


def try_recognizer(cls: Any, config: Any) -> TrialVerdict:
    """Find the verdict on a copy of ``cls`` with the small ``config``."""
    try:
        module = build_copy(cls, config)
        module.generation_config = transformers.GenerationConfig(pad_token_id=0, decoder_start_token_id=PROMPTS[0][0])
        windows = [(ids, _draw_rows(module, *each)) for ids, each in zip(PROMPTS, enumerate(ROWS), strict=True)]
        expected = [_generate_logits(module, *window) for window in windows]
    except Exception as error:  # noqa: BLE001 whatever a library raises
        return admission.unproved(error)
    reasons: dict[str, str] = {}
    for mode in MODES:
        fault = _find_fault(module, mode, windows, expected)
        if not fault:
            return TrialVerdict(mode, reasons)
        reasons["several at a time" if mode.batches else "one at a time"] = fault
    return TrialVerdict(None, reasons)


def _draw_rows(module: Any, seed: int, count: int) -> Tensor:
    width = PairedDecoder(module, ()).rows_width
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def _generate_logits(module: Any, ids: Sequence[int], rows: Tensor) -> Tensor:
    """Return the logits [ANSWER, V] of the library's greedy answer."""
    answer = transformers.GenerationMixin.generate(
        module,
        encoder_outputs=EncodedWindow(last_hidden_state=rows[None]),
        decoder_input_ids=torch.tensor([ids]),
        max_new_tokens=ANSWER,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return torch.cat(answer.logits).float()


def _find_fault(
    module: Any, mode: Mode, windows: Sequence[tuple[Sequence[int], Tensor]], expected: Sequence[Tensor]
) -> str:
    """Return why the engine's logits in ``mode`` are not ``expected``, or ""."""
    subject = f"audio: {'several windows' if mode.batches else 'one window'} at a time"
    try:
        decoder = PairedDecoder(module, ())
        decoder.batches = mode.batches
        swapped_windows = [(ids, rows) for (ids, _), (_, rows) in zip(windows, windows[::-1], strict=True)]
        given = admission.engine_logits(decoder, [decoder.start(*window) for window in windows])
        swapped = admission.engine_logits(decoder, [decoder.start(*window) for window in swapped_windows])[0]
    except Exception as error:  # noqa: BLE001 whatever a library raises
        return admission.record_error(subject, error)
    return admission.find_difference(given, expected, swapped, subject)
