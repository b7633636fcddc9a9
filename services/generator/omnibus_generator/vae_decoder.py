"""The engines of VAE decoders: latents in, images, videos and audio out."""

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from omnibus.errors import BadRequest
from omnibus.executor.runner import Item, Job
from omnibus_engines.component import ComponentSource, Hosted
from omnibus_models.contract import AudioDecoder, ImageDecoder, VideoDecoder

M = TypeVar("M", ImageDecoder, VideoDecoder, AudioDecoder)

#: Bytes of frames in one message; a single larger frame is sent alone.
_MAX_BATCH_BYTES = 4 << 20


@dataclass(frozen=True)
class LatentDecodeSettings:
    """``threads`` of torch in the compute thread."""

    threads: int = 1


class _LatentDecodeRunner(Hosted[M]):
    """Decodes one item at a time, in order of arrival.

    One item fills a device, and libraries keep caches on the module.
    """

    def __init__(
        self, component: str, family: str, checkpoint: Path, device: str, dtype: str, settings: LatentDecodeSettings
    ) -> None:
        super().__init__(ComponentSource(component, family, checkpoint, device, dtype), settings.threads)
        self._open = 0
        self._decoded = 0

    async def run(self, job: Job) -> None:
        latents = await job.value("latents")
        if not isinstance(latents, Item) or latents.array is None:
            raise BadRequest("the latents have no tensor; send the request again", param="latents")
        self._open += 1
        try:
            output = await self._compute(self._decode_latents, latents.array)
        finally:
            self._open -= 1
        job.release_input("latents")
        self._decoded += 1
        await self._send_output(job, output)

    def stats(self) -> dict[str, Any]:
        return {"parameters": self.model.parameters, "used": self._open, "pictures": self._decoded}

    def _decode_latents(self, latents: np.ndarray) -> np.ndarray:
        # A copy: the sender owns the memory, which may be read-only.
        return self.model.decode(torch.tensor(latents)).numpy()

    @abstractmethod
    async def _send_output(self, job: Job, output: np.ndarray) -> None:
        """Send the decoded array."""


class DecodeImageRunner(_LatentDecodeRunner[ImageDecoder]):
    """A ``Runner`` for image decoders.

    Input: ``latents`` [channels, 1, height, width]. Output: ``image``, uint8 [height, width, 3].
    """

    async def _send_output(self, job: Job, output: np.ndarray) -> None:
        await job.put("image", {}, output)


class DecodeVideoRunner(_LatentDecodeRunner[VideoDecoder]):
    """A ``Runner`` for video decoders.

    Input: ``latents`` [channels, frames, height, width]. Output: ``frames``, streamed, uint8 [n, height, width, 3] in
    order, a few at a time.
    """

    async def _send_output(self, job: Job, output: np.ndarray) -> None:
        count = max(1, _MAX_BATCH_BYTES // output[0].nbytes)
        for begin in range(0, len(output), count):
            await job.send("frames", {}, output[begin : begin + count])
        job.close("frames")


class DecodeAudioRunner(_LatentDecodeRunner[AudioDecoder]):
    """A ``Runner`` for audio decoders.

    Input: ``latents`` [channels, time, bins]. Output: ``audio``, streamed, ``{"rate"}`` with float32 [samples,
    channels] in [-1, 1], one second at a time.
    """

    async def _send_output(self, job: Job, output: np.ndarray) -> None:
        rate = self.model.rate
        for begin in range(0, len(output), rate):
            await job.send("audio", {"rate": rate}, output[begin : begin + rate])
        job.close("audio", {"samples": len(output)})
