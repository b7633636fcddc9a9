"""The engine of a VAE's decoder: latents in, pictures out."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from omnibus.errors import BadRequest
from omnibus.executor.contract import Item, Job
from omnibus.executor.stopwatch import Stopwatch
from omnibus_models.contract import ImageDecoder
from omnibus_models.families import family as find


@dataclass(frozen=True)
class PictureSettings:
    """``threads`` of torch in the compute thread."""

    threads: int = 1


class DecodeImageRunner:
    """A ``Runner`` for decoders of VAEs.

    Input: ``latents`` [channels, 1, height, width]. Output: ``image``, uint8 [height, width, 3]. One picture at
    a time, in order of arrival: a single one fills a device, and libraries keep caches on the module.
    """

    def __init__(
        self, component: str, family: str, checkpoint: Path, device: str, dtype: str, settings: PictureSettings
    ) -> None:
        self._source = (component, checkpoint, device, dtype)
        self._family = family
        self._clock = Stopwatch()
        self._compute = ThreadPoolExecutor(1, component, torch.set_num_threads, (settings.threads,))
        self._decoder: ImageDecoder
        self._open = 0
        self._decoded = 0

    @property
    def busy(self) -> float:
        return self._clock.seconds

    async def load(self) -> None:
        loop = asyncio.get_running_loop()
        self._decoder = await loop.run_in_executor(self._compute, find(self._family).load, *self._source)

    async def run(self, job: Job) -> None:
        latents = await job.value("latents")
        if not isinstance(latents, Item) or latents.array is None:
            raise BadRequest("the latents came without their numbers; send the request again", param="latents")
        self._open += 1
        try:
            loop = asyncio.get_running_loop()
            picture = await loop.run_in_executor(self._compute, self._clock, self._decode, latents.array)
        finally:
            self._open -= 1
        self._decoded += 1
        await job.put("image", {}, picture)

    async def close(self) -> None:
        await asyncio.to_thread(self._compute.shutdown, cancel_futures=True)

    def stats(self) -> dict[str, Any]:
        return {"parameters": self._decoder.parameters, "used": self._open, "pictures": self._decoded}

    @torch.inference_mode()
    def _decode(self, latents: np.ndarray) -> np.ndarray:
        # A copy: the memory belongs to whoever sent it, and may be read only.
        return self._decoder.decode(torch.tensor(latents)).numpy()
