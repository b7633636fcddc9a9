"""The engine of a prior: prompts in, rough pictures out, as tokens that a denoiser follows."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from omnibus.errors import BadRequest, TooLarge
from omnibus.executor.runner import Job
from omnibus_models.contract import Denoising, Picture, Prior
from services.component import Hosted, Source, by_size
from services.generator.denoiser import DenoiseSettings
from services.generator.step_loop import Making, Studio

_Side = Annotated[int, msgspec.Meta(ge=0)]


class _Wish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    prompt: str
    width: _Side
    height: _Side
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None


class PriorRunner(Hosted[Prior]):
    """A ``Runner`` for priors, batched over requests token by token.

    Inputs: ``prompt``, ``width``, ``height``, ``seed``; a side of 0 is what the model usually makes. Outputs:
    ``tokens``, float32 [1, 1, rows, columns]; streamed ``progress`` ``{"step", "steps"}`` after each token.
    """

    def __init__(
        self, component: str, family: str, checkpoint: Path, device: str, dtype: str, settings: DenoiseSettings
    ) -> None:
        super().__init__(Source(component, family, checkpoint, device, dtype), settings.threads)
        self._settings = settings
        self._studio = Studio(self._compute, settings.pictures, settings.tokens)

    async def run(self, job: Job) -> None:
        wish = self._wish(job)
        picture = self._picture(wish, job.seed)
        drawing = await self._compute(self.model.open, picture, wish.prompt)
        async with self._studio.making(Making(drawing)) as done:
            async for step in done:
                await job.send("progress", {"step": step.number, "steps": drawing.steps})
        job.close("progress")
        await job.put("tokens", {}, await self._compute(self._tokens, drawing))

    async def _begin(self) -> None:
        self._serve(self._studio.serve(self.model))

    def stats(self) -> dict[str, Any]:
        return {
            "parameters": self.model.parameters,
            "used": self._studio.used,
            "batches": by_size(self._studio.sizes),
        }

    def _tokens(self, drawing: Denoising) -> np.ndarray:
        return self.model.latents(drawing).numpy()

    def _wish(self, job: Job) -> _Wish:
        try:
            return msgspec.convert(dict(job.inputs), _Wish)
        except msgspec.ValidationError as error:
            raise BadRequest(f"this picture cannot be made: {error}") from None

    def _picture(self, wish: _Wish, seed: int) -> Picture:
        width, height = self.model.usual
        width, height = wish.width or width, wish.height or height
        if width * height > self._settings.pixels:
            raise TooLarge(f"{width * height} pixels are over the limit of {self._settings.pixels}", param="width")
        return Picture(width, height, 1, seed if wish.seed is None else wish.seed)
