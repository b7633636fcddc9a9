"""The engines of embedders: texts in, one vector for each out, batched across requests.

An embedder is a sentence encoder, or a language model without its head. It runs one pass over the text, and pools the
output of the last layer.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from omnibus.checkpoints.gguf_header import is_gguf
from omnibus.errors import BadRequest, ContextTooLong
from omnibus.executor.runner import Job
from omnibus_encoder.media_encoder import EncodeSettings
from omnibus_encoder.text_runner import TextRunner, read_json
from omnibus_engines.component import ComponentSource, M, run_in_pool
from omnibus_models.contract import Prepared, TextEmbedder, Thinker
from omnibus_models.device_copy import copy_to_host
from omnibus_models.llama_cpp import library

_POOLINGS = ("mean", "last")


class _EmbeddingRunner(TextRunner[M]):
    """A ``Runner`` from texts to vectors.

    Inputs: ``text``, a JSON list of texts or of lists of token ids, or an ``Item`` with its UTF-8 bytes. The options
    ``pooling`` and ``prompt_name`` may be missing.

    Outputs: ``embedding``, float32 [texts, width], and ``tokens``, their total number.
    """

    async def run(self, job: Job) -> None:
        options = self._read_options(job)
        texts = _read_texts(await job.value("text"))
        # One by one, so that requests take turns.
        prepared_texts = [await run_in_pool(self._words, self._prepare_text, text, options) for text in texts]
        job.release_input("text")
        rows = await asyncio.gather(*(self._batcher.encode(each) for each in prepared_texts))
        await job.put("embedding", {}, np.stack(rows))
        if job.has_consumer("tokens"):
            await job.put("tokens", {"value": sum(each.meta["n_tokens"] for each in prepared_texts)})

    @abstractmethod
    def _read_options(self, job: Job) -> str | None:
        """Return the option of the request that this model has. Raises ``BadRequest`` for others."""

    @abstractmethod
    def _prepare_text(self, text: str | list[int], option: str | None) -> Prepared:
        """Tokenise a text."""


class SentenceRunner(_EmbeddingRunner[TextEmbedder]):
    """The runner of the ``embedder`` of a family. ``pooling`` is that of its checkpoint."""

    def __init__(self, family: str, checkpoint: Path, device: str, dtype: str, settings: EncodeSettings) -> None:
        super().__init__(ComponentSource("embedder", family, checkpoint, device, dtype), settings)

    async def load(self) -> None:
        if is_gguf(self._source.checkpoint):
            await library.require_loadable(self._source.checkpoint)
        await super().load()

    def _read_options(self, job: Job) -> str | None:
        if job.inputs.get("pooling") is not None:
            raise BadRequest("the pooling of this model is fixed: leave out pooling", param="pooling")
        name = job.inputs.get("prompt_name")
        return None if name is None else str(name)

    def _prepare_text(self, text: str | list[int], option: str | None) -> Prepared:
        return self.model.prepare_text(text, option)

    def _compute_batch(self, texts: Sequence[Prepared]) -> list[np.ndarray]:
        return [copy_to_host(vector) for vector in self.model.embed(texts)]


class EmbedRunner(_EmbeddingRunner[Thinker]):
    """The runner of a language model, the ``thinker`` of a family.

    ``pooling`` is ``mean`` over all tokens, or ``last`` for models trained for that. Vectors have length 1.
    """

    def __init__(self, family: str, checkpoint: Path, device: str, dtype: str, settings: EncodeSettings) -> None:
        super().__init__(ComponentSource("thinker", family, checkpoint, device, dtype), settings)

    def _read_options(self, job: Job) -> str | None:
        if job.inputs.get("prompt_name") is not None:
            raise BadRequest("this model has no prompts: write the prompt into the text", param="prompt_name")
        pooling = job.inputs.get("pooling") or _POOLINGS[0]
        if pooling not in _POOLINGS:
            raise BadRequest(f"pooling must be one of {', '.join(_POOLINGS)}", param="pooling")
        return str(pooling)

    def _prepare_text(self, text: str | list[int], option: str | None) -> Prepared:
        ids = self.model.encode_text(text, marked=True) if isinstance(text, str) else self._check_tokens(text)
        if not ids:
            raise BadRequest("the text has no tokens", param="text")
        if len(ids) > self.model.context:
            raise ContextTooLong(f"the text has {len(ids)} tokens; this model takes {self.model.context}", param="text")
        return Prepared("text", {"ids": torch.tensor(ids)}, {"n_tokens": len(ids), "pooling": option})

    def _check_tokens(self, ids: list[int]) -> list[int]:
        """Check the ids of a text that its sender tokenized; return them."""
        if any(not 0 <= id < self.model.vocabulary for id in ids):
            raise BadRequest(
                f"tokens of this model are from 0 to {self.model.vocabulary - 1}: send texts, or tokens from "
                "its tokenizer",
                param="text",
            )
        return ids

    def _compute_batch(self, texts: Sequence[Prepared]) -> list[np.ndarray]:
        # Padding follows the shorter texts, where causal attention never reads it.
        model = self.model
        ids = nn.utils.rnn.pad_sequence([text.features["ids"] for text in texts], batch_first=True).to(model.device)
        positions = torch.arange(ids.shape[1], device=model.device).expand(model.axes, *ids.shape)
        hidden = model.forward(model.embed(ids), positions, None, None)[..., : model.width]
        return [_pool_rows(row, text) for row, text in zip(hidden, texts, strict=True)]


def _pool_rows(hidden: Tensor, text: Prepared) -> np.ndarray:
    """Pool [T, H] to [H] of length 1."""
    rows = hidden[: text.meta["n_tokens"]].float()
    vector = rows[-1] if text.meta["pooling"] == "last" else rows.mean(0)
    return copy_to_host(nn.functional.normalize(vector, dim=0))


def _read_texts(value: Any) -> list[str | list[int]]:
    value = read_json(value, "text")
    if not isinstance(value, list) or not value or not all(map(_is_text, value)):
        raise BadRequest("text must be a list of texts, or of lists of token ids", param="text")
    return value


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(type(id) is int for id in value))
