"""Ids of the tokens of an answer, for a gateway that makes it once more."""

from collections.abc import Sequence

from services.gateway.dispatch.streams import MAX_RESUMED_VALUES

#: The largest id of a token that is kept.
MAX_TOKEN_ID = 2**32 - 1


class TokenIds:
    """Counts the tokens of one attempt to make an answer, of which ``known`` are kept already.

    An answer whose tokens have no ids that can be kept is made again from its beginning.
    """

    def __init__(self, known: Sequence[int] = ()) -> None:
        self._unmade = len(known)  # of the known ones, not made again yet
        self._count = 0
        self._numbered = True

    def add(self, ids: Sequence[int]) -> tuple[int, ...]:
        """The next tokens; returns those that are to be kept."""
        if not self._numbered or self._count >= MAX_RESUMED_VALUES:
            return ()
        if not all(type(id) is int and 0 <= id <= MAX_TOKEN_ID for id in ids):
            self._numbered = False
            return ()
        self._count += len(ids)
        passed = min(self._unmade, len(ids))
        self._unmade -= passed
        return tuple(ids[passed:])
