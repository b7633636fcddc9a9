"""Attention that is not plain causal: bidirectional within images, or to an encoder's rows.

Shapes as in ``contract``: ``B`` rows of a batch, ``T`` positions, ``S`` positions so far, ``R`` rows of the encoder
("rows aside").

Choice of attention kernels in torch and transformers.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Crossing:
    """A mask for a ``contract.CrossDecoder``, whose layers attend to an encoder's rows.

    The first share of a prompt contains ``rows``; later their keys and values are in the cache.
    """

    mask: Tensor | None  # of the self-attention layers, as for any decoder
    seen: Tensor  # bool [B, 1, T, R]: the rows that each position attends to, at least one
    fed: Tensor  # bool [B, T]: positions that the feed-forward parts of cross-attention layers change
    rows: Tensor | None = None  # [B, R, H]


@dataclass(frozen=True)
class PromptArguments:
    """Arguments of a model's own layers for a prompt of ``length`` positions, besides their inputs and positions.

    These are masks and tensors for single layers, by the names of the layers' arguments. One pass takes them all.
    """

    length: int
    options: Mapping[str, Any]

    answer_rows = None

    @property
    def spans(self) -> Sequence[tuple[int, int]]:
        """See ``Attention``."""
        return ((0, self.length),)

    def mask(self, begin: int, end: int) -> "PromptArguments | None":
        """See ``Attention``. Positions after the prompt attend causally."""
        return self if begin == 0 else None


#: None is plain causal; a tensor is bool [B, 1, T, S], True where a position may attend.
Mask = Tensor | Crossing | PromptArguments | None


class Attention(Protocol):
    """Attention pattern of one prompt: the positions and rows that each position attends to."""

    @property
    def spans(self) -> Sequence[tuple[int, int]]:
        """[begin, end) of positions that need each other, in order; one share computes each span."""

    @property
    def answer_rows(self) -> Tensor | None:
        """Bool [R]: the encoder's rows that tokens of the answer attend to."""

    def mask(self, begin: int, end: int) -> Mask:
        """Return the mask of the share from ``begin`` to ``end``; earlier positions are in the cache."""


@dataclass(frozen=True)
class BidirectionalAttention:
    """Bidirectional attention within spans, causal attention elsewhere. ``spans`` do not overlap."""

    spans: Sequence[tuple[int, int]]
    device: torch.device

    answer_rows = None

    def mask(self, begin: int, end: int) -> Tensor | None:
        """See ``Attention``. Raises ``ValueError`` if the share cuts a span."""
        inside = [(first, last) for first, last in self.spans if first < end and last > begin]
        if not inside:
            return None
        if inside[0][0] < begin or inside[-1][1] > end:
            raise ValueError(f"the share from {begin} to {end} cuts a span of {inside}")
        # Last position that each position attends to: itself, or the end of its span.
        far = torch.arange(begin, end)
        for first, last in inside:
            far[first - begin : last - begin] = last - 1
        places = torch.arange(end, device=self.device)
        return (places <= far.to(self.device)[:, None])[None, None]


def avoid_planned_kernels(device: str) -> None:
    """Disable cuDNN's attention kernels in this process, if ``device`` is a GPU.

    cuDNN plans each new shape, which takes up to 1.3 s on an H100. Prompts, media and the positions of an answer have
    another length each time, and torch's other kernels are as fast.
    """
    if device.startswith("cuda"):
        torch.backends.cuda.enable_cudnn_sdp(False)


@functools.cache
def share_key_heads() -> None:
    """Let transformers read keys and values in place on a CPU.

    With a mask, transformers copies all keys and values that several query heads share, for each head, in every layer
    of every step. For 16 sequences of 2,000 positions, this takes two thirds of the attention. torch's kernel for CPUs
    gives bitwise equal results without the copies. On a GPU the option selects a slow kernel, so nothing changes there.
    Applies to the whole process; further calls change nothing.
    """
    from transformers.integrations import sdpa_attention

    use_gqa: Any = sdpa_attention.use_gqa_in_sdpa

    def use_gqa_in_sdpa(attention_mask: Tensor | None, key: Tensor, *value: Tensor) -> bool:
        shares: bool = key.device.type == "cpu" or use_gqa(attention_mask, key, *value)
        return shares

    sdpa_attention.use_gqa_in_sdpa = use_gqa_in_sdpa
