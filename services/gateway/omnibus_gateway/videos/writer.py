"""Writer of a video file. A separate thread encodes it, so that the event loop can continue."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnibus.encoding import image
from omnibus.encoding.video import VideoWriter
from omnibus.errors import StageFailed

#: Quality of the thumbnail in percent.
_QUALITY_PERCENT = 85


class VideoFileWriter:
    """Writes a video to ``path``, see ``VideoWriter``. Always call ``discard_unfinished`` at the end."""

    def __init__(self, path: Path, fps: float, sound: bool) -> None:
        self._about = (path, fps, sound)
        self._film: VideoWriter | None = None
        self._first: NDArray[np.uint8] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="film")
        self.count = 0

    async def write_frames(self, pixels: NDArray[np.uint8]) -> None:
        await self._run_in_thread(self._write_frames, pixels)
        self.count += len(pixels)

    async def write_audio(self, samples: NDArray[np.float32], rate: int) -> None:
        await self._run_in_thread(self._write_audio, samples, rate)

    async def close(self) -> bytes:
        """Complete the file; return its first frame as an image file."""
        return await self._run_in_thread(self._finish_file)

    async def discard_unfinished(self) -> None:
        """Remove an incomplete file."""
        await self._run_in_thread(self._discard_unfinished)
        self._thread.shutdown(wait=False)

    async def _run_in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    def _open_encoder(self) -> VideoWriter:
        if self._film is None:
            self._film = VideoWriter(*self._about)
        return self._film

    def _write_frames(self, pixels: NDArray[np.uint8]) -> None:
        self._open_encoder().add_frames(pixels)
        if self._first is None and len(pixels):
            self._first = pixels[0].copy()

    def _write_audio(self, samples: NDArray[np.float32], rate: int) -> None:
        self._open_encoder().add_audio(samples, rate)

    def _finish_file(self) -> bytes:
        if self._first is None:
            raise StageFailed("the model made no frames: retry the request")
        self._open_encoder().close()
        self._film = None
        return image.encode_image(self._first, "webp", _QUALITY_PERCENT)

    def _discard_unfinished(self) -> None:
        if self._film is not None:
            self._film.abort()
        self._about[0].unlink(missing_ok=True)  # a complete file already has another name
