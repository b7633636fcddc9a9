"""The engine of a first-frame encoder: an image and the size of a video in, latents out."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import torch

from omnibus.encoding.image import encode_image
from omnibus.errors import BadMedia, BadRequest
from omnibus.executor.runner import Item, Job
from omnibus_engines.component import ComponentSource, Hosted, run_in_pool
from omnibus_models.contract import FrameEncoder, ImageChange, ImageSpec

#: Most pixels of a frame, as of a denoiser.
_MAX_PIXELS = 4 << 20
#: Threads that decode and compress images.
_DECODERS = 2


class _FrameInputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The literal inputs other than images: pixels, frames, the seed of an encoder that draws noise, and strength."""

    width: int
    height: int
    frames: int = 1
    seed: int | None = None
    media: Any = None
    mask: Any = None
    strength: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None


class FrameEncodeRunner(Hosted[FrameEncoder]):
    """A ``Runner`` for encoders of first frames, one after another: the video itself takes far longer.

    Inputs: ``media``, and ``width``, ``height`` and ``frames`` of the video or image. ``media`` is an ``Item`` whose
    array is an image file (uint8). Without a ``modality`` it is an image that another task made, uint8 [height, width,
    3]. Encoders for images may also take a ``mask`` of this form, and ``strength``.

    Output: ``latents``, float32 [channels, 1, rows, columns], or uint8 [1, 1, 1, n] of the family's own form.
    """

    def __init__(
        self, component: str, family: str, checkpoint: Path, device: str, dtype: str, *, threads: int = 1
    ) -> None:
        super().__init__(ComponentSource(component, family, checkpoint, device, dtype), threads)
        self._decoders = ThreadPoolExecutor(_DECODERS, f"{component}-decode", torch.set_num_threads, (1,))
        self._encoded = 0

    async def run(self, job: Job) -> None:
        size = self._read_size(job)
        file = await self._read_file(await job.value("media"))
        seed = job.seed if size.seed is None else size.seed
        picture = ImageSpec(size.width, size.height, steps=1, seed=seed, frames=size.frames)
        mask = None if size.mask is None else await self._read_file(await job.value("mask"))
        change = ImageChange(mask, size.strength)
        pixels = await run_in_pool(self._decoders, self.model.prepare, file, picture, change)
        job.release_input("media")
        latents = await self._compute(self.model.encode, pixels)
        self._encoded += 1
        await job.put("latents", {}, latents.numpy())

    def stats(self) -> dict[str, Any]:
        return {"parameters": self.model.parameters, "images": self._encoded, **self.memory_stats()}

    async def _tear_down(self) -> None:
        self._decoders.shutdown(wait=False, cancel_futures=True)

    def _read_size(self, job: Job) -> _FrameInputs:
        try:
            size = msgspec.convert(dict(job.inputs), _FrameInputs)
        except msgspec.ValidationError as error:
            raise BadRequest(f"this frame cannot be encoded: {error}") from None
        for name, pixels in (("width", size.width), ("height", size.height)):
            if pixels % self.model.unit or not (pixels or self.model.edits):
                raise BadRequest(f"{name} must be a multiple of {self.model.unit}, not {pixels}", param=name)
        if size.width * size.height > _MAX_PIXELS:
            raise BadRequest(
                f"a frame may have at most {_MAX_PIXELS} pixels, not {size.width * size.height}", param="width"
            )
        return size

    async def _read_file(self, media: Any) -> memoryview:
        if not isinstance(media, Item) or media.array is None:
            raise BadMedia("the image has no bytes; upload it again", param="media")
        if "modality" not in media.data:
            array: np.ndarray = media.array
            return memoryview(await run_in_pool(self._decoders, encode_image, array, "png"))
        if media.data["modality"] != "image":
            raise BadRequest(
                f"the first frame of a video must be an image, not {media.data['modality']}", param="media"
            )
        return media.array.data
