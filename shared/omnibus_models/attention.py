"""Attention other than plain causal attention: bidirectional within pictures, and to rows of an encoder ("rows aside").

Shapes as in ``contract``: ``B`` rows of a batch, ``T`` positions, ``S`` positions so far, ``R`` rows aside.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Crossing:
    """A mask for a ``contract.CrossDecoder``: some of its layers look aside, at rows of an encoder.

    Of a prompt the first share brings ``rows``; after it their keys and values are in the cache.
    """

    mask: Tensor | None  # of the layers that look back, as for any decoder
    seen: Tensor  # bool [B, 1, T, R]: the rows that each position looks at, at least one
    fed: Tensor  # bool [B, T]: positions that the feed-forward parts of layers that look aside change
    rows: Tensor | None = None  # [B, R, H]


#: None is plain causal; a tensor is bool [B, 1, T, S], True where a position may look.
Mask = Tensor | Crossing | None


class Attention(Protocol):
    """Attention pattern of one prompt: the positions and rows that each of its positions looks at."""

    @property
    def spans(self) -> Sequence[tuple[int, int]]:
        """[begin, end) of positions that need each other, in order: they are computed in one share."""

    @property
    def answer_rows(self) -> Tensor | None:
        """Bool [R]: the rows aside that tokens of the answer look at."""

    def mask(self, begin: int, end: int) -> Mask:
        """For the share from ``begin`` to ``end``; all before it is in the cache."""


@dataclass(frozen=True)
class BidirectionalAttention:
    """Positions of one span look at each other both ways, all others back only. ``spans`` do not overlap."""

    spans: Sequence[tuple[int, int]]
    device: torch.device

    answer_rows = None

    def mask(self, begin: int, end: int) -> Tensor | None:
        """See ``Attention``. Raises ``ValueError`` when the share cuts a span."""
        inside = [(first, last) for first, last in self.spans if first < end and last > begin]
        if not inside:
            return None
        if inside[0][0] < begin or inside[-1][1] > end:
            raise ValueError(f"the share from {begin} to {end} cuts a span of {inside}")
        # How far each position looks: to itself, and to the end of its span.
        far = torch.arange(begin, end)
        for first, last in inside:
            far[first - begin : last - begin] = last - 1
        places = torch.arange(end, device=self.device)
        return (places <= far.to(self.device)[:, None])[None, None]
