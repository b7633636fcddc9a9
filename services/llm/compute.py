"""The one thread in which a runner's arithmetic runs, so that the event loop stays free."""

import asyncio
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

import torch

from omnibus.executor.stopwatch import Stopwatch
from omnibus_models import streams

P = ParamSpec("P")
R = TypeVar("R")

# Tensors are read from shared memory that is mapped read-only, and nothing here writes to them.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)


class Compute:
    """Calls functions one after another in one thread, without gradients. ``threads`` are torch's.

    ``clock`` tells how many seconds they took. On a GPU that is named as ``device`` they run in a stream of their own.
    """

    def __init__(self, name: str, threads: int, device: str = "") -> None:
        self.clock = Stopwatch()
        self._pool = ThreadPoolExecutor(1, name, torch.set_num_threads, (threads,))
        self._stream = streams.own(device)

    async def __call__(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._call, function, args, kwargs)

    async def close(self) -> None:
        """Wait for the call in progress and end the thread."""
        await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)

    @torch.inference_mode()
    def _call(self, function: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        with self._stream:
            return self.clock(function, *args, **kwargs)
