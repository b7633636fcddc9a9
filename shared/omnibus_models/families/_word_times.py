"""Times of words, from the attention of a decoder to rows.

The library's own functions align tokens with rows by dynamic time warping (``alignment_heads`` of the checkpoint).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.generation.utils import GenerateEncoderDecoderOutput
from transformers.modeling_outputs import BaseModelOutput

from omnibus_models.contract import TimedWord
from omnibus_models.families._recognition_rules import PlainRules

_FRAMES_PER_SECOND = 100


@dataclass
class EncodedWindow(BaseModelOutput):
    """Output of an encoder, for a decoder. Some classes read its mask; no row of a window is masked."""

    attention_mask: Tensor | None = None


class AnsweredWindow(NamedTuple):
    """A window and its text.

    It has ``seconds``, ``rows`` [R, H], the tokens ``ids`` of its text and those of its ``prompt``. ``language`` is an
    English name.
    """

    prompt: Sequence[int]
    ids: Sequence[int]
    rows: Tensor
    seconds: float
    language: str


def align_words(module: Any, tokenizer: Any, rules: PlainRules, window: AnsweredWindow) -> list[TimedWord]:
    """Return the words of a window and their seconds in it. Punctuation belongs to the word next to it."""
    from transformers.models.whisper.tokenization_whisper import _combine_tokens_into_words

    times = _token_times(module, window)
    bounds = list(zip([0.0, *times], times, strict=False))
    words = []
    for run in _text_runs(rules, window.ids):
        tokens = [window.ids[place] for place in run]
        texts, _, indexes = _combine_tokens_into_words(tokenizer, tokens, window.language or "english")
        for text, within in zip(texts, indexes, strict=True):
            begin, end = bounds[run[within[0]]][0], bounds[run[within[-1]]][1]
            words.append(TimedWord(min(begin, window.seconds), min(end, window.seconds), text.strip()))
    return [word for word in words if word.text]


def _text_runs(rules: PlainRules, ids: Sequence[int]) -> list[list[int]]:
    """Return the places of the text between two timestamps."""
    runs: list[list[int]] = [[]]
    for place, token in enumerate(ids):
        if rules.is_text(token):
            runs[-1].append(place)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


@torch.no_grad()
def _token_times(module: Any, window: AnsweredWindow) -> list[float]:
    """Return the second at which each token of the answer ends."""
    tokens = torch.tensor([[*window.prompt, *window.ids]], device=module.device)
    with _visible_attention(module.config):
        output = module(
            encoder_outputs=EncodedWindow(last_hidden_state=window.rows[None].to(module.dtype)),
            decoder_input_ids=tokens,
            use_cache=False,
            output_attentions=True,
        )
    attentions = tuple(layer.float() for layer in output.cross_attentions)
    times: Tensor = module._extract_token_timestamps(
        GenerateEncoderDecoderOutput(sequences=tokens, cross_attentions=(attentions,)),
        module.generation_config.alignment_heads,
        num_frames=ceil(round(window.seconds * _FRAMES_PER_SECOND, 6)),
        num_input_ids=len(window.prompt),
    )[0]
    seconds: list[float] = times[len(window.prompt) : -1].tolist()
    return seconds


@contextmanager
def _visible_attention(config: Any) -> Iterator[None]:
    """Let layers return their weights: torch's kernel does not."""
    usual = config._attn_implementation
    config._attn_implementation = "eager"
    try:
        yield
    finally:
        config._attn_implementation = usual
