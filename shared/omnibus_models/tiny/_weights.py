"""Random weights that keep greedy decoding meaningful."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from omnibus_models.tiny._chat_tokenizer import WORDS

# Sharper attention: the answer then follows from the context, not from the last token alone.
_ATTENTION_GAIN = 2.0
# Logits spread far enough that sampling at temperature 1 prefers some words.
_HEAD_GAIN = 3.0
_SOFT_GAIN = 0.1
# Single embeddings, which the library draws at random.
_EMBEDDED = ("class_embedding", "image_newline")


@torch.no_grad()
def redraw_weights(module: nn.Module, seed: int) -> None:
    """Redraw all weights with standard deviation 1/sqrt(fan in).

    The library's default of 0.02 gives almost tied logits in a tiny model. Equal answers would then prove nothing.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        if parameter.dim() >= 2:
            scale = parameter[0].numel() ** -0.5 * (_ATTENTION_GAIN if name.endswith("q_proj.weight") else 1.0)
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
        elif name.endswith("bias"):
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.05)
        elif name.endswith(_EMBEDDED):
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * parameter.numel() ** -0.5)


@torch.no_grad()
def speak_words(head: Tensor, tokenizer: PreTrainedTokenizerFast, stop_gain: float) -> None:
    """Allow only whole words, punctuation and end of turn to win.

    ``head`` [vocabulary, H] is the output matrix: a zero row has logit 0, which is never the largest. ``stop_gain``
    weighs end of turn: some answers should end early, none at once.
    """
    gains = [_HEAD_GAIN if _is_readable(tokenizer.decode([index])) else 0.0 for index in range(len(head))]
    gains[tokenizer.eos_token_id] = stop_gain
    head *= torch.tensor(gains)[:, None]


@torch.no_grad()
def sharpen_attention(module: nn.Module) -> None:
    """Sharpen attention in models that normalise queries, where ``redraw_weights`` has no effect."""
    for name, parameter in module.named_parameters():
        if name.endswith("q_norm.weight"):
            parameter.mul_(_ATTENTION_GAIN)


@torch.no_grad()
def soften_logits(head: Tensor, ids: Iterable[int]) -> None:
    """Scale the logits of ``ids`` close to 0: they are rarely sampled."""
    for index in ids:
        head[index] *= _SOFT_GAIN


def _is_readable(text: str) -> bool:
    return text in {".", ",", "?"} or (text[:1] == " " and text[1:] in WORDS)
