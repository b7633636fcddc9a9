"""Data that a thinker sends to a talker: the prompt's rows, their positions and one row per spoken token.

The tokens of an answer that its talker speaks: those whose text is in the transcript, and no others.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import numpy as np

from omnibus.executor.runner import Job, RowWriter


class _Piece(NamedTuple):
    """Text of a number of ``tokens``: a character may take several of them."""

    tokens: int
    text: str


class SpokenTokens:
    """Matches the tokens of one answer with its transcript, as both grow.

    Tokens ``begin`` to ``end`` are spoken; those before ``begin`` are reasoning. ``rest`` is the part of the transcript
    that no further whole token contains. It exists if a stop string has cut a token in two, or other text follows a
    tool call. Rule: the speech speaks the transcript. transformers 5.19 drops the row of the last token. ``generate``
    of a model that speaks therefore omits the last word of an answer that ``thinker_max_new_tokens`` ends.
    """

    def __init__(self) -> None:
        self.ids: list[int] = []  # of all tokens
        self.begin = 0
        self.end = 0
        self.rest = ""
        self._pieces: deque[_Piece] = deque()  # after ``end``
        self._silent = 0  # last tokens without text yet: part of a character, or a control token

    def add_token(self, token: int, text: str) -> None:
        """Take a token, and the characters that it completes."""
        self.ids.append(token)
        self._silent += 1
        if text:
            self._pieces.append(_Piece(self._silent, text))
            self._silent = 0

    def add_reasoning(self) -> None:
        """Mark all tokens so far as reasoning, or white space after it."""
        if not self.rest and self.end == self.begin:
            self._pieces.clear()
            self._silent = 0
            self.begin = self.end = len(self.ids)

    def add_text(self, text: str) -> None:
        """Take more of the transcript."""
        self.rest += text
        while self._pieces and (size := self._match_length(self._pieces[0].text)) is not None:
            self.rest = self.rest[size:]
            self.end += self._pieces.popleft().tokens

    def _match_length(self, text: str) -> int | None:
        """Return how many characters of ``rest`` are ``text``; None if they differ.

        White space before the first word may be missing from the transcript.
        """
        if self.rest.startswith(text):
            return len(text)
        first = text.lstrip() if self.end == self.begin else ""
        return len(first) if first and self.rest.startswith(first) else None

    def close(self, ended_by_token: bool) -> None:
        """End the answer.

        With ``ended_by_token`` the last token only ended it, and a talker gets no row for it.
        """
        if not self._pieces and not self.rest:
            self.end = len(self.ids)
        if ended_by_token:
            self.end = min(self.end, len(self.ids) - 1)
        if not self.rest.strip():
            self.rest = ""

    @property
    def spoken_ids(self) -> Sequence[int]:
        """The tokens that ``rest`` follows."""
        return self.ids[: self.end]


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
