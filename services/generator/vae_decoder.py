"""The engines of VAEs' decoders: latents in, pictures, videos and sounds out."""

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from omnibus.errors import BadRequest
from omnibus.executor.runner import Item, Job
from omnibus_models.contract import AudioDecoder, ImageDecoder, VideoDecoder
from services.component import ComponentSource, Hosted

M = TypeVar("M", ImageDecoder, VideoDecoder, AudioDecoder)

#: Bytes of frames that are sent together, but for a single larger one.
_MAX_BATCH_BYTES = 4 << 20


@dataclass(frozen=True)
class LatentDecodeSettings:
    """``threads`` of torch in the compute thread."""

    threads: int = 1


class _LatentDecodeRunner(Hosted[M]):
    """One at a time, in order of arrival: a single one fills a device, and libraries keep caches on the module."""

    def __init__(
        self, component: str, family: str, checkpoint: Path, device: str, dtype: str, settings: LatentDecodeSettings
    ) -> None:
        super().__init__(ComponentSource(component, family, checkpoint, device, dtype), settings.threads)
        self._open = 0
        self._decoded = 0

    async def run(self, job: Job) -> None:
        latents = await job.value("latents")
        if not isinstance(latents, Item) or latents.array is None:
            raise BadRequest("the latents came without their numbers; send the request again", param="latents")
        self._open += 1
        try:
            made = await self._compute(self._decode_latents, latents.array)
        finally:
            self._open -= 1
        job.release_input("latents")
        self._decoded += 1
        await self._send_output(job, made)

    def stats(self) -> dict[str, Any]:
        return {"parameters": self.model.parameters, "used": self._open, "pictures": self._decoded}

    def _decode_latents(self, latents: np.ndarray) -> np.ndarray:
        # A copy: the memory belongs to whoever sent it, and may be read only.
        return self.model.decode(torch.tensor(latents)).numpy()

    @abstractmethod
    async def _send_output(self, job: Job, made: np.ndarray) -> None:
        """Send what was decoded."""


class DecodeImageRunner(_LatentDecodeRunner[ImageDecoder]):
    """A ``Runner`` for decoders of pictures.

    Input: ``latents`` [channels, 1, height, width]. Output: ``image``, uint8 [height, width, 3].
    """

    async def _send_output(self, job: Job, made: np.ndarray) -> None:
        await job.put("image", {}, made)


class DecodeVideoRunner(_LatentDecodeRunner[VideoDecoder]):
    """A ``Runner`` for decoders of videos.

    Input: ``latents`` [channels, frames, height, width]. Output: streamed ``frames``, uint8 [n, height, width, 3]
    in order, a few at a time.
    """

    async def _send_output(self, job: Job, made: np.ndarray) -> None:
        count = max(1, _MAX_BATCH_BYTES // made[0].nbytes)
        for begin in range(0, len(made), count):
            await job.send("frames", {}, made[begin : begin + count])
        job.close("frames")


class DecodeAudioRunner(_LatentDecodeRunner[AudioDecoder]):
    """A ``Runner`` for decoders of sounds.

    Input: ``latents`` [channels, time, bins]. Output: streamed ``audio``, ``{"rate"}`` with float32 [samples,
    channels] in [-1, 1], a second at a time.
    """

    async def _send_output(self, job: Job, made: np.ndarray) -> None:
        rate = self.model.rate
        for begin in range(0, len(made), rate):
            await job.send("audio", {"rate": rate}, made[begin : begin + rate])
        job.close("audio", {"samples": len(made)})
