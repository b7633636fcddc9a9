"""Data that a thinker sends to a talker: the prompt's rows, their positions and one row per spoken token."""

from collections.abc import Awaitable, Callable, Sequence

import numpy as np

from omnibus.executor.runner import Job, RowWriter
from omnibus_llm.runners.spoken_tokens import SpokenTokens

#: Computes the rows [H] of a text that follows the given first tokens of an answer.
ComputeRows = Callable[[Sequence[int], str], Awaitable[Sequence[np.ndarray]]]


class SpeechWriter:
    """The talker's inputs of one answer.

    ``most`` is the largest number of tokens. ``layout`` int32 [k, S] locates the prompt's rows. It is None if another
    component sent it, and the prompt's rows. ``rows`` [H] are the first ones, if they are known. ``compute_rows``
    computes those of a text that is not in the answer's tokens.
    """

    def __init__(
        self,
        job: Job,
        spoken_tokens: SpokenTokens,
        most: int,
        compute_rows: ComputeRows,
        layout: np.ndarray | None = None,
        rows: Sequence[np.ndarray] = (),
    ) -> None:
        self._job = job
        self._spoken = spoken_tokens
        self._layout = layout
        self._prompt: np.ndarray | None = None
        self._most = most
        self._compute_rows = compute_rows
        self._writer: RowWriter | None = None
        self._rows: list[np.ndarray] = list(rows)
        self._taken = 0  # rows of the first tokens, which were written or skipped

    @property
    def lacks_row(self) -> bool:
        """True while the row of a spoken token is missing.

        The row arrives with the token after it.
        """
        return self._taken + len(self._rows) < self._spoken.end

    @property
    def is_complete(self) -> bool:
        """True if an ended answer needs no more rows."""
        return not (self.lacks_row or self._spoken.rest)

    def add(self, side: np.ndarray | None) -> None:
        """Add the side data of a token: the prompt's rows [S + 3, H] for the first, a row [H] for each other."""
        if side is None:
            return
        if self._layout is not None and self._prompt is None:
            self._prompt = side
        else:
            self._rows.append(side)

    async def send(self) -> None:
        """Send the prompt, once, and the rows of spoken tokens."""
        if self._layout is not None and self._prompt is not None:
            layout, self._layout, prompt = self._layout, None, self._prompt
            await send_prompt(self._job, layout, prompt)
            self._writer = await self._open_writer(self._most, prompt.shape[1])
        ready = max(0, self._spoken.end - self._taken)
        rows, self._rows = self._rows[:ready], self._rows[ready:]
        spoken_rows = rows[max(0, self._spoken.begin - self._taken) :]
        self._taken += len(rows)
        if spoken_rows:
            self._writer = self._writer or await self._open_writer(self._most, spoken_rows[0].shape[0])
            self._writer.write(np.stack(spoken_rows))

    async def close(self, finish: str | None) -> None:
        """Send the rows of the text without tokens, and end."""
        if self._spoken.rest:
            rows = await self._compute_rows(self._spoken.spoken_ids, self._spoken.rest)
            if rows:  # in a separate block: this may take more tokens than the answer has left
                (await self._open_writer(len(rows), rows[0].shape[0])).write(np.stack(rows))
        self._job.close("rows", {"finish": finish})

    async def _open_writer(self, most: int, width: int) -> RowWriter:
        return await self._job.open_rows("rows", max(1, most), width, "float32")


async def send_prompt(job: Job, layout: np.ndarray, prompt: np.ndarray) -> None:
    """Send ``layout`` and the ``prompt``'s rows [S + 3, H]."""
    await job.put("layout", {}, layout)
    await job.put("prompt", {}, prompt)
