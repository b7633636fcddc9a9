"""Suggestions for mistyped names: the one that was probably meant."""

import difflib
from collections.abc import Iterable

#: Likeness, between 0 and 1, from which a known name is suggested.
SIMILAR = 0.6


def closest_name(name: str, names: Iterable[str], similar: float = SIMILAR) -> str:
    """Return the ``names`` name most like ``name``, else "". Case and separators do not count."""
    plain = {_without_separators(each): each for each in names}
    close = difflib.get_close_matches(_without_separators(name), list(plain), n=1, cutoff=similar)
    return plain[close[0]] if close else ""


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return ``; did you mean X?`` for a message: "" without a similar name."""
    close = closest_name(name, names)
    return f"; did you mean {close}?" if close else ""


def _without_separators(name: str) -> str:
    return name.lower().translate(str.maketrans("", "", "-_. "))
