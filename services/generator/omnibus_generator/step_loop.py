"""The loop of a denoiser: images of many requests, one step at a time.

Choice of the images that share the next step. Pure state: no clock, no I/O, no tensors.

Images of one shape share steps. A new image joins at the next step; a completed or cancelled image is removed after the
current one. Shapes take turns, so that every image gets the same share of the device at any size. A step costs its
positions, divided among all images of its shape. The shape whose images have had the least so far is next (start-time
fair queueing). A shape that is new, or has images again, starts level with the others.

Each tenant gets the same share, divided among its images. A step takes the first image of each tenant, then the second
of each. The more images a tenant has, the less each counts.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from torch import Tensor

from omnibus.errors import StageUnavailable
from omnibus.executor.job_clock import charge_jobs, current_clock
from omnibus_engines.component import Compute
from omnibus_models.contract import Denoising, Resumable, Stepper

K = TypeVar("K", bound=Hashable)


class StepSize(NamedTuple):
    """Size of one step of one image: ``rows`` of a batch, of ``tokens`` positions each."""

    rows: int
    tokens: int

    @property
    def cost(self) -> int:
        return self.rows * self.tokens


class _Shape(Generic[K]):
    def __init__(self, had: float) -> None:
        self.sizes: dict[K, StepSize] = {}  # in order of arrival
        self.had = had  # positions for each of its images, since the start


class StepScheduler(Generic[K]):
    """Images from their first step to their last.

    ``pictures`` and ``tokens`` are the most in one step, except that a single larger image is accepted. If there are
    more, the images that arrived first are stepped first; the others wait.
    """

    def __init__(self, pictures: int, tokens: int) -> None:
        self.pictures = pictures
        self.tokens = tokens
        self._shapes: dict[Hashable, _Shape[K]] = {}
        self._of: dict[K, Hashable] = {}
        self._tenants: dict[K, str] = {}
        self._now = 0.0  # what the shape of the last step had had before that step

    def join(self, key: K, shape: Hashable, size: StepSize, tenant: str = "") -> None:
        """Add ``key``, an image of ``tenant``, at its shape's next step."""
        self._of[key] = shape
        self._tenants[key] = tenant
        if shape not in self._shapes:
            self._shapes[shape] = _Shape(self._now)
        self._shapes[shape].sizes[key] = size

    def remove_key(self, key: K) -> None:
        """Remove ``key`` in any state. Removing it twice is harmless."""
        shape = self._of.pop(key, None)
        self._tenants.pop(key, None)
        if shape is None:
            return
        del self._shapes[shape].sizes[key]
        if not self._shapes[shape].sizes:
            del self._shapes[shape]

    def next_batch(self) -> list[K]:
        """Return the keys of the images for the next step; empty if there are none.

        All have one shape, and those of each tenant are in order of arrival.
        """
        if not self._shapes:
            return []
        shape = min(self._shapes.values(), key=lambda each: each.had)
        batch = list(self._select_batch(shape))
        self._now = shape.had
        shape.had += sum(shape.sizes[key].cost for key in batch) / self._count_pictures(shape)
        return batch

    def _count_pictures(self, shape: _Shape[K]) -> float:
        """Count the images of ``shape``.

        Each is weighted by the mean number of images per tenant, divided by that of its tenant.
        """
        counts = Counter(self._tenants.values())
        if len(counts) == 1:
            return len(shape.sizes)
        mean = len(self._tenants) / len(counts)
        return sum(mean / counts[self._tenants[key]] for key in shape.sizes)

    def _order_by_tenant(self, shape: _Shape[K]) -> list[K]:
        """Return the first image of every tenant, then every second one, etc."""
        numbers: Counter[str] = Counter()
        places = {}
        for key in shape.sizes:
            numbers[self._tenants[key]] += 1
            places[key] = numbers[self._tenants[key]]
        return sorted(places, key=places.__getitem__) if len(numbers) > 1 else list(places)

    def _select_batch(self, shape: _Shape[K]) -> Iterator[K]:
        left = self.tokens
        for place, key in enumerate(self._order_by_tenant(shape)):
            left -= shape.sizes[key].cost
            if place >= self.pictures or (left < 0 and place):
                return
            yield key

    def __len__(self) -> int:
        return len(self._of)

    def __iter__(self) -> Iterator[K]:
        """Iterate over all keys, in order of arrival."""
        yield from list(self._of)


class DenoiseStep(NamedTuple):
    """A completed step.

    ``preview`` is uint8 [height, width, 3] if this step has one. ``state`` is float32 [n] if this step is a checkpoint.
    """

    number: int
    preview: np.ndarray | None
    state: np.ndarray | None = None


class ImageJob:
    """An image in the loop.

    ``show`` makes a preview every ``every`` steps. A resumable denoising has a checkpoint every ``checkpoints`` steps.
    An image that is ``alone`` shares no step, so its numbers do not depend on other jobs.
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
        self.clock = current_clock()
        self._news: asyncio.Queue[DenoiseStep | Exception] = asyncio.Queue()  # never more than its steps

    def push_result(self, news: DenoiseStep | Exception) -> None:
        self._news.put_nowait(news)

    async def iter_steps(self) -> AsyncIterator[DenoiseStep]:
        """Yield each step when it completes; raises the error of a step that failed."""
        number = self.denoising.done
        while number < self.denoising.steps:
            news = await self._news.get()
            if isinstance(news, Exception):
                raise news
            number = news.number
            yield news

    @property
    def needs_preview(self) -> bool:
        """True if the last completed step needs a preview. The final step does not: the image itself follows."""
        step_count = self.denoising.done
        return self.every > 0 and step_count % self.every == 0 and step_count < self.denoising.steps

    def checkpoint_state(self) -> np.ndarray | None:
        """Return the state if a checkpoint is due now, otherwise None.

        A checkpoint is due after every ``checkpoints`` steps except the last, if the denoising is resumable.
        """
        one = self.denoising
        if not self._checkpoints or one.done % self._checkpoints or one.done >= one.steps:
            return None
        return one.state().numpy() if isinstance(one, Resumable) else None


class StepLoop:
    """Steps images on ``compute``.

    If a batch fails, its images step one by one, so that only the images at fault fail.
    """

    def __init__(self, compute: Compute, pictures: int, tokens: int) -> None:
        self._compute = compute
        self._turns: StepScheduler[ImageJob] = StepScheduler(pictures, tokens)
        self._denoiser: Stepper
        self._wake = asyncio.Event()
        self._has_changed = False  # an image has joined or left since the last choice; the compute thread reads it
        self._failed: Exception | None = None
        self.sizes: Counter[int] = Counter()

    @property
    def used(self) -> int:
        """Images in progress."""
        return len(self._turns)

    @asynccontextmanager
    async def run_job(self, making: ImageJob) -> AsyncIterator[AsyncIterator[DenoiseStep]]:
        """Step an image until the block ends; yields its steps."""
        if self._failed is not None:
            raise self._failed
        one = making.denoising
        self._turns.join(
            making, making if making.alone else one.shape, StepSize(one.rows, one.tokens), making.clock.tenant.name
        )
        self._has_changed = True
        self._wake.set()
        try:
            yield making.iter_steps()
        finally:
            self._has_changed = True
            self._turns.remove_key(making)

    async def serve(self, denoiser: Stepper) -> None:
        """Run steps until cancelled; sleep while there are no images."""
        self._denoiser = denoiser
        try:
            while True:
                self._wake.clear()
                batch = self._turns.next_batch()
                if batch:
                    await self._step_batch(batch)
                else:
                    await self._wake.wait()
        finally:
            self._failed = StageUnavailable("the denoiser was closed; send the request again")
            for making in self._turns:
                making.push_result(self._failed)

    async def _step_batch(self, batch: Sequence[ImageJob]) -> None:
        """Run a step of ``batch``, or several if no other image is there, and push the results; raises nothing."""
        for making in batch:
            making.clock.set_now()
        self._has_changed = len(batch) < len(self._turns)
        loop = asyncio.get_running_loop()

        def publish(news: Sequence[DenoiseStep | Exception]) -> None:
            loop.call_soon_threadsafe(self._push_results, batch, news)

        try:
            with charge_jobs([(making.clock, float(making.denoising.tokens)) for making in batch]):
                news = await self._compute(self._compute_steps, batch, publish)
        except Exception as error:  # noqa: BLE001 - find the job at fault, and let the others continue
            await self._step_one_by_one(batch, error)
            return
        self._push_results(batch, news)

    def _push_results(self, batch: Sequence[ImageJob], news: Sequence[DenoiseStep | Exception]) -> None:
        """Push the results of one step."""
        self.sizes[len(batch)] += 1
        for making, step in zip(batch, news, strict=True):
            making.push_result(step)
            if _is_last(making, step):
                self._turns.remove_key(making)

    async def _step_one_by_one(self, batch: Sequence[ImageJob], error: Exception) -> None:
        if len(batch) > 1:
            for making in batch:
                await self._step_batch([making])
        else:
            self._turns.remove_key(batch[0])
            batch[0].push_result(error)

    def _compute_steps(
        self, batch: Sequence[ImageJob], publish: Callable[[Sequence[DenoiseStep | Exception]], object]
    ) -> list[DenoiseStep | Exception]:
        """Step until an image is complete or something else waits; return the last step, ``publish`` the others."""
        while True:
            self._denoiser.step([making.denoising for making in batch])
            news = [self._step_result(making) for making in batch]
            is_last = any(_is_last(making, step) for making, step in zip(batch, news, strict=True))
            if is_last or self._has_changed or self._compute.has_waiting:
                return news
            publish(news)

    def _step_result(self, making: ImageJob) -> DenoiseStep | Exception:
        """Return the completed step; a preview that fails is the error of this image only."""
        number = making.denoising.done
        try:
            has_preview = making.show is not None and making.needs_preview
            preview = making.show(making.denoising).numpy() if has_preview and making.show is not None else None
            return DenoiseStep(number, preview, making.checkpoint_state())
        except Exception as error:  # noqa: BLE001 - returned to the job that it concerns
            return error


def _is_last(making: ImageJob, step: DenoiseStep | Exception) -> bool:
    return isinstance(step, Exception) or step.number == making.denoising.steps
