"""What a thinker sends to a talker: the prompt's rows, their positions and one row per spoken token."""

import numpy as np

from omnibus.executor.contract import Job, RowWriter


class Speech:
    """The talker's inputs of one answer.

    ``layout`` int32 [axes, T] are the positions of the prompt; ``most`` is the largest number of rows.
    """

    def __init__(self, job: Job, layout: np.ndarray, most: int) -> None:
        self._job = job
        self._layout = layout
        self._most = most
        self._writer: RowWriter | None = None
        self._sides: list[np.ndarray] = []
        self._written = 0

    def add(self, side: np.ndarray | None) -> None:
        """Take what came with a token: the prompt's rows [T + 3, H] with the first, a row [H] with each other."""
        if side is not None:
            self._sides.append(side)

    async def send(self, spoken: int) -> None:
        """Send the prompt, once, and the rows of the first ``spoken`` tokens."""
        if self._writer is None:
            self._writer = await self._start(self._sides.pop(0))
        ready = spoken - self._written
        rows, self._sides = self._sides[:ready], self._sides[ready:]
        if rows:
            self._writer.write(np.stack(rows))
            self._written += len(rows)

    def close(self, finish: str | None) -> None:
        self._job.close("rows", {"finish": finish})

    async def _start(self, prompt: np.ndarray) -> RowWriter:
        await self._job.put("layout", {}, self._layout)
        await self._job.put("prompt", {}, prompt)
        return await self._job.rows("rows", max(1, self._most), prompt.shape[1], "float32")
