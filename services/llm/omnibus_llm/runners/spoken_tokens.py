"""The tokens of an answer that its talker speaks: those whose text is in the transcript, and no others."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple


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
