"""Types that every family uses: components, media items before and after their encoders, sampling."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Prepared:
    """One media item, decoded and preprocessed, ready to be batched with others of its modality."""

    modality: str  # image | video | audio
    features: Mapping[str, Tensor]
    meta: Mapping[str, Any]  # small JSON: n_tokens, grid_thw, second_per_grid, audio_len ...


@dataclass(frozen=True)
class Encoded:
    """One media item after its encoder: ``embeds`` is [n_tokens, H].

    Where an encoder speaks to the first ``k`` layers as well, rows are H * (1 + k) wide: first the embedding.
    """

    embeds: Tensor
    meta: Mapping[str, Any]


class ModelComponent(Protocol):
    """Anything that was loaded."""

    @property
    def parameters(self) -> int:
        """Number of parameters that were really loaded."""


class MediaEncoder(ModelComponent, Protocol):
    """An image/video or audio encoder."""

    modalities: frozenset[str]
    closer: frozenset[str]  # modalities of which an item is looked at more closely when it is ``alone``; usually none

    def prepare(self, data: memoryview, modality: str, alone: bool = True) -> Prepared:
        """Decode and preprocess one media file (JPEG, WAV, MP4 bytes). CPU only, thread-safe.

        ``alone`` says that its request has no other item of its modality; only told to encoders of ``closer``.

        Raises ``BadMedia`` (unreadable, truncated, empty) and ``TooLarge`` (pixels, frames, seconds).
        The message is fixed text: decoder output is never echoed.
        """

    def encode(self, batch: Sequence[Prepared]) -> list[Encoded]:
        """Run one batch of items of any size and request. Equal to running them one by one."""

    def split_item(self, item: Prepared) -> Sequence[Prepared]:
        """Cut ``item`` into parts whose rows, one behind the other, are its rows. Usually there is one part.

        Of an encoder that attends within windows they are windows, so that those of a medium that goes on remain.
        """

    def join_parts(self, parts: Sequence[Prepared]) -> Prepared:
        """Make one item of some ``parts`` of another one, in their order; its rows are theirs."""


@dataclass(frozen=True)
class TokenSamplingParams:
    """Sampling parameters for tokens. ``temperature`` 0 is greedy.

    ``logit_bias`` is added to logits. ``logprobs`` is how many alternatives of a token are reported, None: nothing.
    ``grammar`` is a Lark grammar of ``llguidance`` for what may be said, "" for anything. None of the ``ends`` comes
    before ``min_tokens``; no other token than those ``allowed``, if there are any; none that completes a ``banned``
    sequence, as which an engine reads ``bad_words``.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    grammar: str = ""
    min_tokens: int = 0
    ends: frozenset[int] = frozenset()
    allowed: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    banned: tuple[tuple[int, ...], ...] = ()


@dataclass
class LoadedComponent:
    """Mixin: every loaded component can say how many parameters it really holds."""

    closer: ClassVar[frozenset[str]] = frozenset()  # see ``MediaEncoder``
    edits: ClassVar[bool] = False  # see ``Denoiser``
    films: ClassVar[bool] = False  # see ``TextEncoder``
    follows: ClassVar[bool] = False  # see ``Denoiser``
    sounds: ClassVar[bool] = False  # see ``Denoiser``
    twins: ClassVar[bool] = False  # see ``TextEncoder``

    module: torch.nn.Module = field(repr=False)

    def split_item(self, item: Prepared) -> Sequence[Prepared]:
        """See ``MediaEncoder``: one part, which each encoder can make."""
        return [item]

    def join_parts(self, parts: Sequence[Prepared]) -> Prepared:
        """See ``MediaEncoder``."""
        [item] = parts
        return item

    @property
    def default_size(self) -> tuple[int, int]:
        """See ``Stepper``."""
        return 1024, 1024

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.module.parameters())
