"""The engine of an embedder: texts in, one vector for each out, batched across requests.

It is a language model without its head: one pass over the text, with the output of the last layer pooled.
"""

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from omnibus.errors import BadRequest, ContextTooLong
from omnibus.executor.runner import Item, Job
from omnibus_encoder.batcher import Batcher
from omnibus_encoder.media_encoder import EncodeSettings
from omnibus_engines.component import ComponentSource, Hosted, by_size, run_in_pool
from omnibus_models.contract import Prepared, Thinker
from omnibus_models.device_copy import copy_to_host

_POOLINGS = ("mean", "last")


class EmbedRunner(Hosted[Thinker]):
    """A ``Runner`` from texts to vectors, on the ``thinker`` of a family.

    Inputs: ``text``, a JSON list of texts or of lists of token ids, or an ``Item`` with its UTF-8 bytes. ``pooling`` is
    ``mean`` over all tokens, or ``last`` for models trained for that. Outputs: ``embedding``, float32 [texts, width],
    each of length 1, and ``tokens``, their total number.
    """

    def __init__(self, family: str, checkpoint: Path, device: str, dtype: str, settings: EncodeSettings) -> None:
        super().__init__(ComponentSource("thinker", family, checkpoint, device, dtype), settings.threads)
        self._batcher = Batcher(self._run_batch, items=settings.items, tokens=settings.tokens)
        # A tokenizer is not safe for two threads at once, and must not block the loop.
        self._words = ThreadPoolExecutor(1, "words")

    async def run(self, job: Job) -> None:
        pooling = _read_pooling(job)
        texts = _read_texts(await job.value("text"))
        # One by one, so that requests take turns.
        prepared_texts = [await run_in_pool(self._words, self._prepare_text, text, pooling) for text in texts]
        job.release_input("text")
        rows = await asyncio.gather(*(self._batcher.encode(each) for each in prepared_texts))
        await job.put("embedding", {}, np.stack(rows))
        if job.has_consumer("tokens"):
            await job.put("tokens", {"value": sum(each.meta["n_tokens"] for each in prepared_texts)})

    def stats(self) -> dict[str, Any]:
        return {
            "parameters": self.model.parameters,
            "waiting": self._batcher.waiting,
            "batches": by_size(self._batcher.sizes),
        }

    def _prepare_text(self, text: str | list[int], pooling: str) -> Prepared:
        ids = self.model.encode_text(text, marked=True) if isinstance(text, str) else self._check_tokens(text)
        if not ids:
            raise BadRequest("the text has no tokens", param="text")
        if len(ids) > self.model.context:
            raise ContextTooLong(f"the text has {len(ids)} tokens; this model takes {self.model.context}", param="text")
        return Prepared("text", {"ids": torch.tensor(ids)}, {"n_tokens": len(ids), "pooling": pooling})

    def _check_tokens(self, ids: list[int]) -> list[int]:
        """Check the ids of a text that its sender tokenized; return them."""
        if any(not 0 <= id < self.model.vocabulary for id in ids):
            raise BadRequest(
                f"tokens of this model are from 0 to {self.model.vocabulary - 1}: send texts, or tokens from "
                "its tokenizer",
                param="text",
            )
        return ids

    async def _run_batch(self, texts: Sequence[Prepared]) -> list[np.ndarray]:
        return await self._compute(self._encode_batch, texts)

    async def _set_up(self) -> None:
        self._start_loop(self._batcher.serve())

    async def _tear_down(self) -> None:
        await asyncio.to_thread(self._words.shutdown, cancel_futures=True)

    def _encode_batch(self, texts: Sequence[Prepared]) -> list[np.ndarray]:
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


def _read_pooling(job: Job) -> str:
    pooling = job.inputs.get("pooling", _POOLINGS[0])
    if pooling not in _POOLINGS:
        raise BadRequest(f"pooling must be one of {', '.join(_POOLINGS)}", param="pooling")
    return str(pooling)


def _read_texts(value: Any) -> list[str | list[int]]:
    if isinstance(value, Item) and value.array is not None:
        try:
            value = json.loads(value.array.tobytes())
        except ValueError:
            raise BadRequest("text is not UTF-8 JSON; send a JSON list of texts", param="text") from None
    if not isinstance(value, list) or not value or not all(map(_is_text, value)):
        raise BadRequest("text must be a list of texts, or of lists of token ids", param="text")
    return value


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(type(id) is int for id in value))
