"""Types that every family uses: components, media items before and after their encoders, sampling."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Prepared:
    """One decoded and preprocessed media item, ready for batching by modality."""

    modality: str  # image | video | audio
    features: Mapping[str, Tensor]
    meta: Mapping[str, Any]  # small JSON: n_tokens, grid_thw, second_per_grid, audio_len ...


@dataclass(frozen=True)
class Encoded:
    """One media item after its encoder: ``embeds`` is [n_tokens, H].

    If an encoder also feeds the first ``k`` layers, rows are H * (1 + k) wide, and the embedding is first.
    """

    embeds: Tensor
    meta: Mapping[str, Any]


class ModelComponent(Protocol):
    """Any loaded component."""

    @property
    def parameters(self) -> int:
        """Number of loaded parameters."""


class MediaEncoder(ModelComponent, Protocol):
    """An image/video or audio encoder."""

    modalities: frozenset[str]
    closer: frozenset[str]  # modalities of which an item gets a higher resolution when it is ``alone``; usually none

    def prepare(self, data: memoryview, modality: str, alone: bool = True) -> Prepared:
        """Decode and preprocess one media file (JPEG, WAV, MP4 bytes). CPU only, thread-safe.

        ``alone`` means that its request has no other item of its modality. Only encoders with ``closer`` get it.

        Raises ``BadMedia`` (unreadable, truncated, empty) and ``TooLarge`` (pixels, frames, seconds). The message is
        fixed text: decoder output is never echoed.
        """

    def encode(self, batch: Sequence[Prepared]) -> list[Encoded]:
        """Run one batch of items of any size and request. Results equal those of single items."""

    def split_item(self, item: Prepared) -> Sequence[Prepared]:
        """Cut ``item`` into parts whose concatenated rows are its rows; usually one part.

        An encoder that attends within windows returns windows, so that those of a growing medium stay valid.
        """

    def join_parts(self, parts: Sequence[Prepared]) -> Prepared:
        """Combine ``parts`` of an item, in order, into one with their rows."""


@dataclass(frozen=True)
class TokenSamplingParams:
    """Sampling parameters for tokens. ``temperature`` 0 is greedy.

    ``logit_bias`` is added to logits. ``logprobs`` is the number of reported alternatives of a token, or None without a
    report. ``grammar`` is a Lark grammar of ``llguidance`` for the answer, or "" without one. None of the ``ends`` is
    sampled before ``min_tokens``. If ``allowed`` is not empty, only its tokens are sampled. Tokens that complete a
    ``banned`` sequence are never sampled; engines convert ``bad_words`` to such sequences.
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
    """Mixin that counts the loaded parameters of a component."""

    closer: ClassVar[frozenset[str]] = frozenset()  # see ``MediaEncoder``
    edits: ClassVar[bool] = False  # see ``Denoiser``
    films: ClassVar[bool] = False  # see ``TextEncoder``
    follows: ClassVar[bool] = False  # see ``Denoiser``
    joins: ClassVar[bool] = False  # see ``TextEncoder``
    sounds: ClassVar[bool] = False  # see ``Denoiser``
    twins: ClassVar[bool] = False  # see ``TextEncoder``

    module: torch.nn.Module = field(repr=False)

    def split_item(self, item: Prepared) -> Sequence[Prepared]:
        """See ``MediaEncoder``: one part, which works for every encoder."""
        return [item]

    def join_parts(self, parts: Sequence[Prepared]) -> Prepared:
        """See ``MediaEncoder``."""
        [item] = parts
        return item

    def image_size(self, image: Tensor) -> tuple[int, int]:
        """See ``Denoiser``: by the number of pixels per latent, ``unit``."""
        unit: int = getattr(self, "unit", 1)
        return image.shape[3] * unit, image.shape[2] * unit

    @property
    def default_size(self) -> tuple[int, int]:
        """See ``Stepper``."""
        return 1024, 1024

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.module.parameters())
