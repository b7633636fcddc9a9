"""The engine of a text encoder: prompts in, guides of a denoiser out, batched across requests."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from omnibus.errors import BadRequest
from omnibus.executor.runner import Item, Job
from omnibus_encoder.batcher import Batcher
from omnibus_encoder.media_encoder import EncodeSettings
from omnibus_engines.component import ComponentSource, Hosted, by_size
from omnibus_models.contract import Encoded, Prepared, TextEncoder
from omnibus_models.device_copy import copy_to_host


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
