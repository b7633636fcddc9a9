"""The engine of a diffusion transformer: guides in, latents out, batched across requests at every step.

The engine of a prior: prompts in, rough images out, as tokens that a denoiser follows.
"""

import asyncio
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from omnibus.errors import BadRequest, TooLarge
from omnibus.executor.runner import Item, Job
from omnibus.tensors.handle import RESUMED_AT
from omnibus_engines.component import ComponentSource, Compute, Hosted, by_size
from omnibus_generator.step_loop import ImageJob, StepLoop
from omnibus_models.contract import Denoiser, Denoising, ImageSpec, PriorModel, Resumable

#: Most checkpoints of one image or video: a denoiser that fails loses at most a tenth of its steps.
MAX_CHECKPOINTS = 10


@dataclass(frozen=True)
class DenoiseSettings:
    """Limits of one denoiser.

    ``pictures`` and ``tokens`` are the most of each in one step; the tokens of all rows of the batch count. ``pixels``
    is the most of one image or frame, including input images. ``film`` is the most pixels of all frames together.
    ``threads`` are torch's in the compute thread.
    """

    pictures: int = 16
    tokens: int = 32768
    pixels: int = 4 << 20
    film: int = 1 << 28
    threads: int = 1


_Whole = Annotated[int, msgspec.Meta(ge=1)]
_Side = Annotated[int, msgspec.Meta(ge=0)]


class _DenoiseInputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The literal inputs. A request that passes handles directly may include ``embeds`` and the like."""

    width: _Side
    height: _Side
    steps: _Whole
    frames: _Whole = 1
    fps: float | None = None
    guidance: Annotated[float, msgspec.Meta(ge=0, le=100)] | None = None
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None
    every: Annotated[int, msgspec.Meta(ge=0)] = 1
    embeds: Any = None
    mask: Any = None
    image: Any = None
    prior: Any = None


class DenoiseRunner(Hosted[Denoiser]):
    """A ``Runner`` for diffusion transformers.

    Inputs:

    - ``embeds`` [1 or 2, T, W] and ``mask`` [1 or 2, T] of the prompt and the negative prompt.
    - ``width``, ``height``, ``steps``, ``guidance``, ``seed``, ``every``. A ``width`` or ``height`` of 0 is that of
      ``image``, or else the model's default.
    - ``image``, latents of an image to start from, and ``prior``, tokens of an image to follow.
    - for a video also ``frames`` and ``fps``.

    Outputs:

    - ``latents``, float32 [channels, frames, height, width].
    - ``sound``, float32 [channels, time, bins], if the model makes audio.
    - ``progress``, streamed, ``{"step", "steps"}`` after each step.
    - ``preview``, streamed, the same with a uint8 [height, width, 3] every ``every`` steps except after the last.
    - ``checkpoint``, if the graph retains it, the state that the steps have changed so far. A later attempt resumes
      from it.
    """

    lengths_vary = False  # each of dozens of steps has the same

    def __init__(
        self, component: str, family: str, checkpoint: Path, device: str, dtype: str, settings: DenoiseSettings
    ) -> None:
        super().__init__(ComponentSource(component, family, checkpoint, device, dtype), settings.threads)
        self._settings = settings
        self._aside = Compute(f"{component}-colours", settings.threads)
        self._studio = StepLoop(self._compute, settings.pictures, settings.tokens)
        self._colours: asyncio.Future[Tensor] | None = None

    async def run(self, job: Job) -> None:
        wish = self._read_inputs(job)
        guides = _read_guides(await job.value("embeds"), await job.value("mask"))
        image, prior = self._read_image(await job.value("image")), self._read_prior(await job.value("prior"))
        more = {name: array for name, array in (("image", image), ("prior", prior)) if array is not None}
        for name in ("embeds", "mask", *more):
            job.release_input(name)
        denoising = await self._compute(self.model.open, self._image_spec(wish, job.seed, image), guides, **more)
        await self._resume_checkpoint(job, denoising)
        palette = await self._find_palette() if wish.every and job.has_consumer("preview") else None
        show = None if palette is None else partial(self.model.preview, palette=palette)
        every = -(-denoising.steps // MAX_CHECKPOINTS) if job.has_consumer("checkpoint") else 0
        # A video fills a device alone: sharing its steps would save no time, and would change its last bits.
        await self._send_steps(job, ImageJob(denoising, wish.every, show, every, alone=wish.frames > 1))
        await job.put("latents", {}, await self._compute(self._export_latents, denoising))
        if job.has_consumer("sound"):
            await job.put("sound", {}, await self._compute(self._export_audio, denoising))

    async def _set_up(self) -> None:
        self._start_loop(self._studio.serve(self.model))

    async def _tear_down(self) -> None:
        await self._aside.close()

    def stats(self) -> dict[str, Any]:
        return {
            "parameters": self.model.parameters,
            "used": self._studio.used,
            "batches": by_size(self._studio.sizes),
        }

    async def _send_steps(self, job: Job, making: ImageJob) -> None:
        steps, sent_count = making.denoising.steps, job.resume_state("preview").get("rows", 0)
        for number in range(1, making.denoising.done + 1):
            await job.send("progress", {"step": number, "steps": steps})
        async with self._studio.run_job(making) as completed_steps:
            async for step in completed_steps:
                progress = {"step": step.number, "steps": steps}
                await job.send("progress", progress)
                if step.state is not None:
                    await job.send("checkpoint", progress, step.state)
                if step.preview is not None:
                    earlier = (step.number // making.every - 1) * len(step.preview)
                    await job.send("preview", progress | ({RESUMED_AT: earlier} if sent_count else {}), step.preview)
                    sent_count = 0
        if sent_count:  # the client already has all previews
            await job.send("preview", {RESUMED_AT: sent_count}, np.empty((0, 1, 3), np.uint8))
        for output in ("progress", "preview"):
            job.close(output)

    async def _resume_checkpoint(self, job: Job, denoising: Denoising) -> None:
        """Resume from the last checkpoint of an earlier attempt, if any."""
        left = job.resume_state("checkpoint").get("item")
        if left is not None and isinstance(denoising, Resumable):
            state = torch.tensor(left.array)  # a copy, as of an image
            await self._compute(denoising.resume, state, int(left.data["step"]))

    async def _find_palette(self) -> Tensor:
        """Return the palette, computed on first use while other jobs step."""
        if self._colours is None or (self._colours.done() and self._colours.exception() is not None):
            self._colours = asyncio.create_task(self._aside(self.model.palette), name="colours")
        return await asyncio.shield(self._colours)

    def _export_latents(self, denoising: Denoising) -> np.ndarray:
        return self.model.latents(denoising).numpy()

    def _export_audio(self, denoising: Denoising) -> np.ndarray:
        return self.model.audio_latents(denoising).numpy()

    def _read_inputs(self, job: Job) -> _DenoiseInputs:
        try:
            wish = msgspec.convert(dict(job.inputs), _DenoiseInputs)
        except msgspec.ValidationError as error:
            raise BadRequest(f"the inputs of this image are invalid: {error}") from None
        self._check_size(wish.width, wish.height, wish.frames)
        if job.has_consumer("sound") and not self.model.sounds:
            raise BadRequest("this model does not generate audio; remove `sound`", param="sound")
        return wish

    def _image_spec(self, wish: _DenoiseInputs, seed: int, image: Tensor | None) -> ImageSpec:
        width, height = self.model.default_size
        if image is not None:
            width, height = self.model.image_size(image)
            self._check_size(width, height, 1, "image")
        width, height = wish.width or width, wish.height or height
        self._check_size(width, height, wish.frames)
        return ImageSpec(
            width=width,
            height=height,
            steps=wish.steps,
            seed=seed if wish.seed is None else wish.seed,
            guidance=wish.guidance,
            frames=wish.frames,
            fps=24.0 if wish.fps is None else wish.fps,
        )

    def _check_size(self, width: int, height: int, frames: int, param: str = "width") -> None:
        pixels = width * height
        if pixels > self._settings.pixels:
            raise TooLarge(f"{pixels} pixels are over the limit of {self._settings.pixels}", param=param)
        if pixels * frames > self._settings.film:
            raise TooLarge(
                f"a video has {pixels * frames} pixels in all its frames, over the limit of {self._settings.film}",
                param="frames",
            )

    def _read_image(self, image: Any) -> Tensor | None:
        """Copy the image: the sender owns the memory."""
        if image is None:
            return None
        if not self.model.edits:
            raise BadRequest("this model generates images from text alone; remove `image`", param="image")
        if not isinstance(image, Item) or image.array is None or image.array.ndim != 4:
            raise BadRequest("image must be latents [channels, frames, height, width]", param="image")
        return torch.tensor(image.array)

    def _read_prior(self, prior: Any) -> Tensor | None:
        """Copy the prior: the sender owns the memory."""
        if prior is None:
            return None
        if not self.model.follows:
            raise BadRequest("this model follows no prior; leave it out", param="prior")
        if not isinstance(prior, Item) or prior.array is None:
            raise BadRequest("the prior has no tokens; send the request again", param="prior")
        return torch.tensor(prior.array)


def _read_guides(embeds: Any, mask: Any) -> list[Tensor]:
    """Return [T, W] of each prompt, without padding. Rows are copies: the sender owns the memory."""
    arrays = [item.array if isinstance(item, Item) else None for item in (embeds, mask)]
    rows, counts = arrays
    if rows is None or counts is None or rows.ndim != 3 or rows.shape[:2] != counts.shape or not 1 <= len(rows) <= 2:
        raise BadRequest("embeds must be [1 or 2, tokens, width], with a mask [1 or 2, tokens]", param="embeds")
    return [torch.from_numpy(row[selection.astype(bool)]) for row, selection in zip(rows, counts, strict=True)]


class _PriorInputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    prompt: str
    width: _Side
    height: _Side
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None


class PriorRunner(Hosted[PriorModel]):
    """A ``Runner`` for priors, batched across requests at every token.

    Inputs: ``prompt``, ``width``, ``height``, ``seed``. A side of 0 is the model's default. Outputs: ``tokens``,
    float32 [1, 1, rows, columns], and ``progress``, streamed, ``{"step", "steps"}`` after each token.
    """

    def __init__(
        self, component: str, family: str, checkpoint: Path, device: str, dtype: str, settings: DenoiseSettings
    ) -> None:
        super().__init__(ComponentSource(component, family, checkpoint, device, dtype), settings.threads)
        self._settings = settings
        self._studio = StepLoop(self._compute, settings.pictures, settings.tokens)

    async def run(self, job: Job) -> None:
        wish = self._read_inputs(job)
        picture = self._image_spec(wish, job.seed)
        drawing = await self._compute(self.model.open, picture, wish.prompt)
        async with self._studio.run_job(ImageJob(drawing)) as completed_steps:
            async for step in completed_steps:
                await job.send("progress", {"step": step.number, "steps": drawing.steps})
        job.close("progress")
        await job.put("tokens", {}, await self._compute(self._export_tokens, drawing))

    async def _set_up(self) -> None:
        self._start_loop(self._studio.serve(self.model))

    def stats(self) -> dict[str, Any]:
        return {
            "parameters": self.model.parameters,
            "used": self._studio.used,
            "batches": by_size(self._studio.sizes),
        }

    def _export_tokens(self, drawing: Denoising) -> np.ndarray:
        return self.model.latents(drawing).numpy()

    def _read_inputs(self, job: Job) -> _PriorInputs:
        try:
            return msgspec.convert(dict(job.inputs), _PriorInputs)
        except msgspec.ValidationError as error:
            raise BadRequest(f"the inputs of this image are invalid: {error}") from None

    def _image_spec(self, wish: _PriorInputs, seed: int) -> ImageSpec:
        width, height = self.model.default_size
        width, height = wish.width or width, wish.height or height
        if width * height > self._settings.pixels:
            raise TooLarge(f"{width * height} pixels are over the limit of {self._settings.pixels}", param="width")
        return ImageSpec(width, height, 1, seed if wish.seed is None else wish.seed)
