"""Models for retrieval: embedders and rerankers of texts."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from omnibus_models.contract.base import ModelComponent, Prepared


class TextEmbedder(ModelComponent, Protocol):
    """A text to one vector."""

    def prepare_text(self, text: str | Sequence[int], prompt_name: str | None = None) -> Prepared:
        """Tokenise ``text``, or check its token ids. Not thread-safe.

        ``prompt_name`` is one of the checkpoint's prompts, which is put before the text; None is the checkpoint's
        default. Raises ``BadRequest`` for an unknown prompt, ids outside of the vocabulary and a text without tokens,
        and ``ContextTooLong``.
        """

    def embed(self, batch: Sequence[Prepared]) -> list[Tensor]:
        """Return a float32 vector [width] of each text. Results equal those of single texts."""


class TextReranker(ModelComponent, Protocol):
    """A query and a document to their relevance."""

    def prepare_pair(self, query: str, document: str) -> Prepared:
        """Tokenise a pair. Not thread-safe. Raises ``ContextTooLong``."""

    def score(self, batch: Sequence[Prepared]) -> list[float]:
        """Return the relevance of each pair. Results equal those of single pairs."""
