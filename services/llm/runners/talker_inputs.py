"""Data that a thinker sends to a talker: the prompt's rows, their positions and one row per spoken token."""

from collections.abc import Sequence

import numpy as np

from omnibus.executor.runner import Job, RowWriter


class SpeechWriter:
    """The talker's inputs of one answer.

    ``most`` is the largest number of rows. ``layout`` int32 [k, S] says where the prompt's rows are; None
    when somebody else has sent it, and the prompt's rows. ``rows`` [H] are the first ones, where they are known.
    """

    def __init__(self, job: Job, most: int, layout: np.ndarray | None = None, rows: Sequence[np.ndarray] = ()) -> None:
        self._job = job
        self._layout = layout
        self._most = most
        self._writer: RowWriter | None = None
        self._sides: list[np.ndarray] = list(rows)
        self._written = 0

    def add(self, side: np.ndarray | None) -> None:
        """Take what came with a token: the prompt's rows [S + 3, H] with the first, a row [H] with each other."""
        if side is not None:
            self._sides.append(side)

    async def send(self, spoken: int) -> None:
        """Send the prompt, once, and the rows of the first ``spoken`` tokens."""
        if self._layout is not None:
            layout, self._layout, prompt = self._layout, None, self._sides.pop(0)
            await send_prompt(self._job, layout, prompt)
            await self._open_writer(prompt.shape[1])
        ready = spoken - self._written
        rows, self._sides = self._sides[:ready], self._sides[ready:]
        if rows:
            writer = self._writer or await self._open_writer(rows[0].shape[0])
            writer.write(np.stack(rows))
            self._written += len(rows)

    def close(self, finish: str | None) -> None:
        self._job.close("rows", {"finish": finish})

    async def _open_writer(self, width: int) -> RowWriter:
        self._writer = await self._job.open_rows("rows", max(1, self._most), width, "float32")
        return self._writer


async def send_prompt(job: Job, layout: np.ndarray, prompt: np.ndarray) -> None:
    """Send ``layout`` and the ``prompt``'s rows [S + 3, H]."""
    await job.put("layout", {}, layout)
    await job.put("prompt", {}, prompt)
