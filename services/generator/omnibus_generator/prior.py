"""The engine of a prior: prompts in, rough images out, as tokens that a denoiser follows."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from omnibus.errors import BadRequest, TooLarge
from omnibus.executor.runner import Job
from omnibus_engines.component import ComponentSource, Hosted, by_size
from omnibus_generator.denoiser import DenoiseSettings
from omnibus_generator.step_loop import ImageJob, StepLoop
from omnibus_models.contract import Denoising, ImageSpec, PriorModel

_Side = Annotated[int, msgspec.Meta(ge=0)]


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
