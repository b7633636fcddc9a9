"""Ids of an answer's tokens, for a gateway that generates it again."""

from collections.abc import Sequence

from omnibus_gateway.dispatch.streams import MAX_RESUMED_VALUES

#: The largest token id that is stored.
MAX_TOKEN_ID = 2**32 - 1


class TokenIds:
    """Counter of the tokens of one attempt; the ``known_ids`` ones are stored already.

    An answer whose tokens have no valid ids is generated again from its beginning.
    """

    def __init__(self, known_ids: Sequence[int] = ()) -> None:
        self._unmade = len(known_ids)  # known tokens that were not generated again yet
        self._count = 0
        self._numbered = True

    def add(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Add the next tokens; returns those to store."""
        if not self._numbered or self._count >= MAX_RESUMED_VALUES:
            return ()
        if not all(type(id) is int and 0 <= id <= MAX_TOKEN_ID for id in ids):
            self._numbered = False
            return ()
        self._count += len(ids)
        skip_count = min(self._unmade, len(ids))
        self._unmade -= skip_count
        return tuple(ids[skip_count:])
