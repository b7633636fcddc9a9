"""A film in the making, in a thread of its own: whoever feeds it goes on meanwhile."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnibus.encoding import image
from omnibus.encoding.video import Film
from omnibus.errors import StageFailed

#: Of the picture in percent.
_QUALITY = 85


class Reel:
    """Writes a film to ``path``; see ``Film``. It is left with ``leave``, whatever became of it."""

    def __init__(self, path: Path, fps: float, sound: bool) -> None:
        self._about = (path, fps, sound)
        self._film: Film | None = None
        self._first: NDArray[np.uint8] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="film")
        self.count = 0

    async def frames(self, pixels: NDArray[np.uint8]) -> None:
        await self._do(self._frames, pixels)
        self.count += len(pixels)

    async def sound(self, samples: NDArray[np.float32], rate: int) -> None:
        await self._do(self._sound, samples, rate)

    async def close(self) -> bytes:
        """Make it a whole file; returns its first frame as a picture."""
        return await self._do(self._close)

    async def leave(self) -> None:
        """Give up what is not whole."""
        await self._do(self._leave)
        self._thread.shutdown(wait=False)

    async def _do(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    def _opened(self) -> Film:
        if self._film is None:
            self._film = Film(*self._about)
        return self._film

    def _frames(self, pixels: NDArray[np.uint8]) -> None:
        self._opened().frames(pixels)
        if self._first is None and len(pixels):
            self._first = pixels[0].copy()

    def _sound(self, samples: NDArray[np.float32], rate: int) -> None:
        self._opened().sound(samples, rate)

    def _close(self) -> bytes:
        if self._first is None:
            raise StageFailed("the model made no frames: ask again")
        self._opened().close()
        self._film = None
        return image.encode(self._first, "webp", _QUALITY)

    def _leave(self) -> None:
        if self._film is not None:
            self._film.drop()
        self._about[0].unlink(missing_ok=True)  # what is whole has another name by now
