"""The engine of a VAE's decoder: latents in, pictures out."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from omnibus.errors import BadRequest
from omnibus.executor.contract import Item, Job
from omnibus_models.contract import ImageDecoder
from services.compute import Hosted, Source


@dataclass(frozen=True)
class PictureSettings:
    """``threads`` of torch in the compute thread."""

    threads: int = 1


class DecodeImageRunner(Hosted[ImageDecoder]):
    """A ``Runner`` for decoders of VAEs.

    Input: ``latents`` [channels, 1, height, width]. Output: ``image``, uint8 [height, width, 3]. One picture at
    a time, in order of arrival: a single one fills a device, and libraries keep caches on the module.
    """

    def __init__(
        self, component: str, family: str, checkpoint: Path, device: str, dtype: str, settings: PictureSettings
    ) -> None:
        super().__init__(Source(component, family, checkpoint, device, dtype), settings.threads)
        self._open = 0
        self._decoded = 0

    async def run(self, job: Job) -> None:
        latents = await job.value("latents")
        if not isinstance(latents, Item) or latents.array is None:
            raise BadRequest("the latents came without their numbers; send the request again", param="latents")
        self._open += 1
        try:
            picture = await self._compute(self._decode, latents.array)
        finally:
            self._open -= 1
        self._decoded += 1
        await job.put("image", {}, picture)

    def stats(self) -> dict[str, Any]:
        return {"parameters": self.model.parameters, "used": self._open, "pictures": self._decoded}

    def _decode(self, latents: np.ndarray) -> np.ndarray:
        # A copy: the memory belongs to whoever sent it, and may be read only.
        return self.model.decode(torch.tensor(latents)).numpy()
