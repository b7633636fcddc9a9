"""The engine of a text encoder: prompts in, what guides a denoiser out, batched across requests."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from omnibus.errors import BadRequest
from omnibus.executor.contract import Job
from omnibus.executor.stopwatch import Stopwatch
from omnibus_models.contract import Prepared, TextEncoder
from omnibus_models.families import family as find
from services.encoder.batcher import Batcher
from services.encoder.runner import EncodeSettings


class _Prompts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    prompt: str
    negative_prompt: str | None = None
    items: list[Any] = []


class TextEncodeRunner:
    """A ``Runner`` for text encoders.

    Inputs: ``prompt``, ``negative_prompt``. Outputs: ``embeds``, float32 [1 or 2, T, W], the negative prompt's in
    the second place where there is one, and ``mask``, bool [1 or 2, T]: the shorter one is filled up.
    """

    def __init__(
        self, component: str, family: str, checkpoint: Path, device: str, dtype: str, settings: EncodeSettings
    ) -> None:
        self._source = (component, checkpoint, device, dtype)
        self._family = family
        self._clock = Stopwatch()
        self._compute = ThreadPoolExecutor(1, component, torch.set_num_threads, (settings.threads,))
        self._batcher = Batcher(self._batch, items=settings.items, tokens=settings.tokens)
        self._encoder: TextEncoder
        self._serving: asyncio.Task[None] | None = None

    @property
    def busy(self) -> float:
        return self._clock.seconds

    async def load(self) -> None:
        loop = asyncio.get_running_loop()
        self._encoder = await loop.run_in_executor(self._compute, find(self._family).load, *self._source)
        self._serving = asyncio.create_task(self._batcher.serve(), name="text encoder")

    async def run(self, job: Job) -> None:
        given = _prompts(job)
        texts = [given.prompt] if given.negative_prompt is None else [given.prompt, given.negative_prompt]
        prepared = [self._encoder.prepare(text) for text in texts]
        rows = await asyncio.gather(*(self._batcher.encode(each) for each in prepared))
        embeds, mask = _padded(rows)
        await job.put("embeds", {}, embeds)
        await job.put("mask", {}, mask)

    async def close(self) -> None:
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)
        await asyncio.to_thread(self._compute.shutdown, cancel_futures=True)

    def stats(self) -> dict[str, Any]:
        return {
            "parameters": self._encoder.parameters,
            "waiting": self._batcher.waiting,
            "batches": {str(size): count for size, count in sorted(self._batcher.sizes.items())},
        }

    async def _batch(self, prompts: Sequence[Prepared]) -> list[np.ndarray]:
        return await asyncio.get_running_loop().run_in_executor(self._compute, self._clock, self._encode, prompts)

    @torch.inference_mode()
    def _encode(self, prompts: Sequence[Prepared]) -> list[np.ndarray]:
        return [one.embeds.float().cpu().numpy() for one in self._encoder.encode(prompts)]


def _prompts(job: Job) -> _Prompts:
    try:
        given = msgspec.convert(dict(job.inputs), _Prompts)
    except msgspec.ValidationError as error:
        raise BadRequest(f"this prompt cannot be used: {error}", param="prompt") from None
    if given.items:
        raise BadRequest("this model reads text alone, no pictures", param="items")
    return given


def _padded(rows: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.array([len(row) for row in rows])
    embeds = np.zeros((len(rows), lengths.max(), rows[0].shape[1]), np.float32)
    for place, row in zip(embeds, rows, strict=True):
        place[: len(row)] = row
    return embeds, np.arange(embeds.shape[1]) < lengths[:, None]
