"""Control tokens in the text of users: they are tokenised as the characters that they consist of.

A tokeniser cuts out special tokens wherever they stand, and nobody could tell a user's ``<|im_end|>`` from the chat
template's. So each one in a text is replaced by a mark of letters and digits before the template sees it, and where the
mark stands afterwards the ids of its characters are put, none of which is a control token.
"""

import re
from collections.abc import Callable, Sequence
from secrets import token_hex
from typing import Any

from omnibus import errors

_Ids = list[int]


class ControlTokenLiterals:
    """Marks for the control tokens ``names`` of ``tokenizer``, whose ids are ``forbidden`` in what stands for them."""

    def __init__(self, tokenizer: Any, names: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._names = tuple(sorted(filter(None, names), key=len, reverse=True))
        self._forbidden = frozenset(tokenizer.convert_tokens_to_ids(list(self._names)))
        self._mark = f"q{token_hex(8)}x"
        self._found = re.compile("|".join(map(re.escape, self._names))) if self._names else None
        self._marks = re.compile(rf"{self._mark}(\d+)q")

    def mark_tokens(self, text: str) -> str:
        """``text`` with a mark in the place of each control token; the same object if it holds none."""
        if self._found is None or not any(name in text for name in self._names):
            return text
        return self._found.sub(lambda match: f"{self._mark}{self._names.index(match[0])}q", text)

    def tokenize(self, text: str, tokenize: Callable[[str], _Ids]) -> _Ids:
        """The ids of ``text``, which may hold marks; ``tokenize`` gives those of the text up to the first mark.

        Raises ``BadRequest`` for a token that this tokeniser can write in no other way.
        """
        if self._mark not in text:
            return tokenize(text)
        first, *rest = self._marks.split(text)
        ids = list(tokenize(first))
        for number, after in zip(rest[::2], rest[1::2], strict=True):
            ids += self._spell_token(self._names[int(number)])
            ids += self._ids(after)
        return ids

    def _spell_token(self, name: str) -> _Ids:
        ids = [*self._ids(name[:1]), *self._ids(name[1:])]
        if not self._forbidden.isdisjoint(ids):
            raise errors.BadRequest(f"the text holds the control token {name!r}; leave it out", param="messages")
        return ids

    def _ids(self, text: str) -> _Ids:
        found: _Ids = self._tokenizer(text, add_special_tokens=False)["input_ids"] if text else []
        return found
