"""The loop of a denoiser: pictures of many requests, one step at a time."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import numpy as np
from torch import Tensor

from omnibus.errors import StageUnavailable
from omnibus.executor.start_time import mine
from omnibus_models.contract import Denoising, Resumable, Stepper
from services.component import Compute
from services.generator.step_scheduler import Size, Turns


class Step(NamedTuple):
    """A step that is done; ``preview`` uint8 [height, width, 3] where one was asked for, and ``state`` float32 [n]
    where somebody is to go on from it.
    """

    number: int
    preview: np.ndarray | None
    state: np.ndarray | None = None


class Making:
    """A picture on its way through the loop. ``every`` steps there is a preview, which ``show`` paints, and every
    ``checkpoints`` steps the state of one that is resumable.

    One that is ``alone`` shares no step, so that its numbers do not depend on who else is there.
    """

    def __init__(
        self,
        denoising: Denoising,
        every: int = 0,
        show: Callable[[Denoising], Tensor] | None = None,
        checkpoints: int = 0,
        *,
        alone: bool = False,
    ) -> None:
        self.denoising = denoising
        self.alone = alone
        self._checkpoints = checkpoints
        self.every = every
        self.show = show
        self.began = mine()
        self._news: asyncio.Queue[Step | Exception] = asyncio.Queue()  # never more than its steps

    def tell(self, news: Step | Exception) -> None:
        self._news.put_nowait(news)

    async def steps(self) -> AsyncIterator[Step]:
        """Each step when it is done; raises what went wrong."""
        number = self.denoising.done
        while number < self.denoising.steps:
            news = await self._news.get()
            if isinstance(news, Exception):
                raise news
            number = news.number
            yield news

    @property
    def previewed(self) -> bool:
        """True if the step that was just done is to be shown. The last one is: the picture itself follows."""
        done = self.denoising.done
        return self.every > 0 and done % self.every == 0 and done < self.denoising.steps

    def state(self) -> np.ndarray | None:
        """Return the state of a resumable denoising, after every ``checkpoints`` steps but the last; otherwise None."""
        one = self.denoising
        if not self._checkpoints or one.done % self._checkpoints or one.done >= one.steps:
            return None
        return one.state().numpy() if isinstance(one, Resumable) else None


class Studio:
    """Steps pictures on ``compute``.

    If a batch fails, its pictures step one by one, so that only the guilty ones fail.
    """

    def __init__(self, compute: Compute, pictures: int, tokens: int) -> None:
        self._compute = compute
        self._turns: Turns[Making] = Turns(pictures, tokens)
        self._denoiser: Stepper
        self._wake = asyncio.Event()
        self._failed: Exception | None = None
        self.sizes: Counter[int] = Counter()

    @property
    def used(self) -> int:
        """Pictures on their way."""
        return len(self._turns)

    @asynccontextmanager
    async def making(self, making: Making) -> AsyncIterator[AsyncIterator[Step]]:
        """The steps of a picture, which takes part until the block ends."""
        if self._failed is not None:
            raise self._failed
        one = making.denoising
        self._turns.join(making, making if making.alone else one.shape, Size(one.rows, one.tokens))
        self._wake.set()
        try:
            yield making.steps()
        finally:
            self._turns.leave(making)

    async def serve(self, denoiser: Stepper) -> None:
        """Step for ever; sleeps while nobody is there."""
        self._denoiser = denoiser
        try:
            while True:
                self._wake.clear()
                batch = self._turns.turn()
                if batch:
                    await self._settle(batch)
                else:
                    await self._wake.wait()
        finally:
            self._failed = StageUnavailable("the denoiser was closed; send the request again")
            for making in self._turns:
                making.tell(self._failed)

    async def _settle(self, batch: Sequence[Making]) -> None:
        """Let ``batch`` take a step and tell them; raises nothing."""
        for making in batch:
            making.began.now()
        try:
            news = await self._compute(self._step, batch)
        except Exception as error:  # noqa: BLE001 - one of these is guilty: find it, and let the others go on
            await self._separate(batch, error)
            return
        self.sizes[len(batch)] += 1
        for making, step in zip(batch, news, strict=True):
            making.tell(step)
            if isinstance(step, Exception) or step.number == making.denoising.steps:
                self._turns.leave(making)

    async def _separate(self, batch: Sequence[Making], error: Exception) -> None:
        if len(batch) > 1:
            for making in batch:
                await self._settle([making])
        else:
            self._turns.leave(batch[0])
            batch[0].tell(error)

    def _step(self, batch: Sequence[Making]) -> list[Step | Exception]:
        self._denoiser.step([making.denoising for making in batch])
        return [self._done(making) for making in batch]

    def _done(self, making: Making) -> Step | Exception:
        """The step that was taken; a preview that cannot be made is this picture's failure alone."""
        number = making.denoising.done
        try:
            shown = making.show is not None and making.previewed
            preview = making.show(making.denoising).numpy() if shown and making.show is not None else None
            return Step(number, preview, making.state())
        except Exception as error:  # noqa: BLE001 - told to whom it concerns
            return error
