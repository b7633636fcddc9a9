"""The engines of texts: embedders, text encoders and rerankers, batched across requests.

They tokenise in one thread and batch across requests.

An embedder is a sentence encoder, or a language model without its head. It runs one pass over the text, and pools the
output of the last layer.
"""

import asyncio
import json
from abc import abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from omnibus.checkpoints.gguf_header import is_gguf
from omnibus.errors import BadRequest, ContextTooLong
from omnibus.executor.runner import Item, Job
from omnibus_encoder.media_encoder import Batcher, EncodeSettings
from omnibus_engines.component import ComponentSource, Hosted, M, by_size, run_in_pool
from omnibus_models.contract import Encoded, Prepared, TextEmbedder, TextEncoder, TextReranker, Thinker
from omnibus_models.device import copy_to_host
from omnibus_models.llama_cpp import library


class TextRunner(Hosted[M]):
    """One component that takes texts."""

    def __init__(self, source: ComponentSource, settings: EncodeSettings) -> None:
        super().__init__(source, settings.threads)
        self._batcher = Batcher(self._run_batch, items=settings.items, tokens=settings.tokens)
        # A tokenizer is not safe for two threads at once, and must not block the loop.
        self._words = ThreadPoolExecutor(1, "words")

    def stats(self) -> dict[str, Any]:
        return {
            "parameters": self.model.parameters,
            "waiting": self._batcher.waiting,
            "batches": by_size(self._batcher.sizes),
        }

    async def _run_batch(self, texts: Sequence[Prepared]) -> Sequence[Any]:
        return await self._compute(self._compute_batch, texts)

    @abstractmethod
    def _compute_batch(self, texts: Sequence[Prepared]) -> Sequence[Any]:
        """Return the result of each of ``texts``, in the compute thread."""

    async def _set_up(self) -> None:
        self._start_loop(self._batcher.serve())

    async def _tear_down(self) -> None:
        await asyncio.to_thread(self._words.shutdown, cancel_futures=True)


def read_json(value: Any, param: str) -> Any:
    """Return ``value``, or the JSON of an ``Item`` with its UTF-8 bytes. Raises ``BadRequest``."""
    if not isinstance(value, Item) or value.array is None:
        return value
    try:
        return json.loads(value.array.tobytes())
    except ValueError:
        raise BadRequest(f"{param} is not UTF-8 JSON; send a JSON list of texts", param=param) from None


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


class _Prompts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    prompt: str
    negative_prompt: str | None = None
    items: list[Any] = []


class TextEncodeRunner(Hosted[TextEncoder]):
    """A ``Runner`` for text encoders.

    Inputs: ``prompt``, ``negative_prompt``, ``items`` (embeddings of images that both prompts refer to).

    Outputs: ``embeds``, float32 [1 or 2, T, W], with the negative prompt second if there is one, and ``mask``, bool [1
    or 2, T]. The shorter prompt is padded. A model that ``joins`` has one row for both, of any dtype. ``tokens`` is the
    number of tokens of the prompt.
    """

    def __init__(
        self, component: str, family: str, checkpoint: Path, device: str, dtype: str, settings: EncodeSettings
    ) -> None:
        super().__init__(ComponentSource(component, family, checkpoint, device, dtype), settings.threads)
        self._batcher = Batcher(self._run_batch, items=settings.items, tokens=settings.tokens)

    async def run(self, job: Job) -> None:
        prompts = _read_prompts(job)
        items = _read_images(await job.value("items"))
        prepared_texts = self._prepare_prompts(prompts, items)
        rows = await asyncio.gather(*(self._batcher.encode(each) for each in prepared_texts))
        embeds, mask = _pad_rows(rows)
        await job.put("embeds", {}, embeds)
        await job.put("mask", {}, mask)
        if job.has_consumer("tokens"):
            count = prepared_texts[0].meta["n_tokens"] if self.model.joins else len(rows[0])
            await job.put("tokens", {"value": count})

    def stats(self) -> dict[str, Any]:
        return {
            "parameters": self.model.parameters,
            "waiting": self._batcher.waiting,
            "batches": by_size(self._batcher.sizes),
        }

    def _prepare_prompts(self, prompts: _Prompts, items: Sequence[Encoded]) -> list[Prepared]:
        model, prompt, negative = self.model, prompts.prompt, prompts.negative_prompt
        if negative is None:
            return [model.prepare(prompt, items)]
        if model.joins:
            return [model.prepare_negative(prompt, negative, items)]
        second = model.prepare_negative(prompt, negative) if model.twins else model.prepare(negative, items)
        return [model.prepare(prompt, items), second]

    async def _run_batch(self, prompts: Sequence[Prepared]) -> list[np.ndarray]:
        return await self._compute(self._encode_batch, prompts)

    async def _set_up(self) -> None:
        self._start_loop(self._batcher.serve())

    def _encode_batch(self, prompts: Sequence[Prepared]) -> list[np.ndarray]:
        # The last bits depend on the batch, and the many steps of a video would amplify them.
        batches = [[each] for each in prompts] if self.model.films else [prompts]
        return [copy_to_host(one.embeds) for batch in batches for one in self.model.encode(batch)]


def _read_prompts(job: Job) -> _Prompts:
    try:
        prompts = msgspec.convert(dict(job.inputs), _Prompts)
    except msgspec.ValidationError as error:
        raise BadRequest(f"the prompt is invalid: {error}", param="prompt") from None
    return prompts


def _read_images(items: Any) -> list[Encoded]:
    images = items or []
    if not isinstance(images, list) or not all(isinstance(one, Item) and one.array is not None for one in images):
        raise BadRequest("items must be a list of embeddings", param="items")
    return [Encoded(torch.from_numpy(one.array), one.data) for one in images]


def _pad_rows(rows: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.array([len(row) for row in rows])
    embeds = np.zeros((len(rows), lengths.max(), rows[0].shape[1]), rows[0].dtype)
    for place, row in zip(embeds, rows, strict=True):
        place[: len(row)] = row
    return embeds, np.arange(embeds.shape[1]) < lengths[:, None]


class RerankRunner(TextRunner[TextReranker]):
    """A ``Runner`` from texts to scores.

    Inputs: ``query``, and ``documents``, a JSON list of texts or an ``Item`` with its UTF-8 bytes. Outputs: ``scores``,
    float32 [documents], and ``tokens``, the total number of all pairs.
    """

    def __init__(
        self, component: str, family: str, checkpoint: Path, device: str, dtype: str, settings: EncodeSettings
    ) -> None:
        super().__init__(ComponentSource(component, family, checkpoint, device, dtype), settings)

    async def run(self, job: Job) -> None:
        query, documents = _read_query(job), _read_documents(await job.value("documents"))
        # One by one, so that requests take turns.
        pairs = [await run_in_pool(self._words, self.model.prepare_pair, query, each) for each in documents]
        job.release_input("documents")
        scores = await asyncio.gather(*(self._batcher.encode(each) for each in pairs))
        await job.put("scores", {}, np.array(scores, np.float32))
        if job.has_consumer("tokens"):
            await job.put("tokens", {"value": sum(each.meta["n_tokens"] for each in pairs)})

    def _compute_batch(self, texts: Sequence[Prepared]) -> list[float]:
        return self.model.score(texts)


def _read_query(job: Job) -> str:
    query = job.inputs.get("query")
    if not isinstance(query, str) or not query:
        raise BadRequest("query must be a text", param="query")
    return query


def _read_documents(value: Any) -> list[str]:
    documents = read_json(value, "documents")
    if not isinstance(documents, list) or not documents or not all(isinstance(each, str) for each in documents):
        raise BadRequest("documents must be a list of texts", param="documents")
    return documents
