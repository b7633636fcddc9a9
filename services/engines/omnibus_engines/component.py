"""The base of runners: one component of a model in one compute thread, so that the event loop stays free."""

import asyncio
import ctypes
import warnings
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, ParamSpec, TypeVar, cast

import torch

from omnibus.errors import StageUnavailable
from omnibus.executor.job_clock import ChargedJobs, ComputeBill, Stopwatch, charged_jobs
from omnibus_models.attention import avoid_planned_kernels
from omnibus_models.contract import ModelComponent
from omnibus_models.device import own_stream
from omnibus_models.families import load_family as find

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=ModelComponent)

_IDLE_SECONDS = 0.1  # until a thread without a call ends its helpers
_SOFT_PAUSE = 1  # omp_pause_soft of OpenMP 5.0

# Tensors are read from shared memory that is mapped read-only, and are never written here.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)


async def run_in_pool(pool: ThreadPoolExecutor, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call ``function`` in a thread of ``pool``. Raises ``StageUnavailable`` if the pool closes before the call."""
    try:
        future = pool.submit(function, *args, **kwargs)
    except RuntimeError as error:
        raise engine_closed_error() from error
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if future.cancelled() and not (task is not None and task.cancelling()):  # not the caller: the pool is closed
            raise engine_closed_error() from None
        raise


def engine_closed_error() -> StageUnavailable:
    """Return the error of work that was unfinished when its engine closed."""
    return StageUnavailable("the engine was closed; send the request again")


class Compute:
    """Calls functions one after another in one thread, without gradients. ``threads`` are torch's.

    ``clock`` measures the seconds they took. On a GPU named as ``device`` they run in a separate stream. If ``billed``,
    the seconds are charged to jobs, see ``omnibus.executor.job_clock``. Threads that help in parallel operations end
    when there is nothing to compute, see ``end_helpers``.
    """

    def __init__(self, name: str, threads: int, device: str = "", *, billed: bool = False) -> None:
        self.clock = Stopwatch()
        self._bill = ComputeBill() if billed else None
        self._calls, self._has_helpers = 0, threads != 1
        self._idle: asyncio.TimerHandle | None = None
        self._pool = ThreadPoolExecutor(1, name, torch.set_num_threads, (threads,))
        self._stream = own_stream(device)

    async def __call__(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        self._calls += 1
        try:
            return await run_in_pool(self._pool, self._call_timed, charged_jobs(), function, args, kwargs)
        finally:
            self._calls -= 1
            if self._has_helpers:
                self._await_idleness()

    @property
    def has_waiting(self) -> bool:
        """True if another call waits for the one in progress. The thread may read it."""
        return self._calls > 1

    def reset_clock(self) -> None:
        """Reset the clock, discarding the time computed so far."""
        self.clock.seconds = 0.0
        if self._bill is not None:
            self._bill.reset()

    async def close(self) -> None:
        """Wait for the call in progress and end the thread."""
        self._has_helpers = False
        if self._idle is not None:
            self._idle.cancel()
        await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)

    def _await_idleness(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(_IDLE_SECONDS, self._end_idle_helpers)

    def _end_idle_helpers(self) -> None:
        if not self._calls:
            self._pool.submit(end_helpers)

    @torch.inference_mode()
    def _call_timed(
        self, jobs: ChargedJobs, function: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> R:
        before = self.clock.seconds
        try:
            with self._stream:
                return self.clock(function, *args, **kwargs)
        finally:
            if self._bill is not None:
                self._bill.add_seconds(self.clock.seconds - before, *jobs)


def end_helpers() -> None:
    """End the threads that help the calling one in parallel operations. The next such operation starts others.

    GNU's OpenMP starts them for each calling thread. Once there are more of them in a process than cores, each sleeps
    between two operations, also those of another thread that computes alone: decode steps then take 1.5 times as long.
    """
    pause = _find_pause()
    if pause is not None:
        pause(_SOFT_PAUSE)


@lru_cache(1)
def _find_pause() -> Callable[[int], int] | None:
    """Return ``omp_pause_resource_all`` of torch's OpenMP, None if it has none."""
    with suppress(OSError, AttributeError):
        function: Callable[[int], int] = ctypes.CDLL(torch._C.__file__).omp_pause_resource_all
        return function
    return None


class ComponentSource(NamedTuple):
    """Identity of a component: its checkpoint, and the device and dtype to load it with."""

    component: str
    family: str
    checkpoint: Path
    device: str
    dtype: str


#: Components that the fork server has loaded, each with the stamps of its files at that time.
PRELOADED: dict[ComponentSource, tuple[frozenset[tuple[str, int, int]], Any]] = {}


def file_stamps(checkpoint: Path) -> frozenset[tuple[str, int, int]]:
    """Return a stamp of each file in the directory ``checkpoint``.

    It is the path, the time of the last change in ns, and the size in bytes.
    """
    stats = ((str(file), file.stat()) for file in checkpoint.rglob("*") if file.is_file())
    return frozenset((path, stat.st_mtime_ns, stat.st_size) for path, stat in stats)


class Hosted(Generic[M]):
    """One component: its model, its thread, and the loop that serves it, if it has one.

    ``model`` is set by ``load``. With ``beside`` the component shares a GPU with another one that computes at the same
    time.
    """

    #: True if inputs vary in length.
    lengths_vary: ClassVar[bool] = True

    def __init__(self, source: ComponentSource, threads: int, *, beside: bool = False) -> None:
        self.model: M
        self._source = source
        self._compute = Compute(source.component, threads, source.device if beside else "", billed=True)
        self._serving: asyncio.Task[None] | None = None

    @property
    def busy(self) -> float:
        """Seconds spent computing."""
        return self._compute.clock.seconds

    async def load(self) -> None:
        if self.lengths_vary:
            avoid_planned_kernels(self._source.device)
        self.model = await self._compute(self._load_model)
        await self._set_up()
        self._compute.reset_clock()

    async def close(self) -> None:
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)
        await self._tear_down()
        await self._compute.close()

    def memory_stats(self) -> dict[str, int]:
        """Return the most GPU bytes that torch reserved in this process; empty on a CPU."""
        return {"gpu_bytes": torch.cuda.max_memory_reserved()} if self._source.device.startswith("cuda") else {}

    def _load_model(self) -> M:
        component, family, checkpoint, device, dtype = self._source
        # Once: two runners of this process must not share a model.
        stamps, shared_model = PRELOADED.pop(self._source, (None, None))
        if stamps is not None and stamps == file_stamps(checkpoint):
            return cast(M, shared_model)
        model: M = find(family).load(component, checkpoint, device, dtype)
        return model

    async def _set_up(self) -> None:
        """Prepare the component after the model is loaded; this time does not count as work."""

    async def _tear_down(self) -> None:
        """Clean up after the loop ends and before the thread does."""

    def _start_loop(self, loop: Coroutine[Any, Any, None]) -> None:
        self._serving = asyncio.create_task(loop, name=self._source.component)


def by_size(batches: Counter[int]) -> dict[str, int]:
    """Return the number of batches of each size, for ``stats``."""
    return {str(size): count for size, count in sorted(batches.items())}
