"""Parameters of a test that `make test-all` leaves out: further values that reach no other code than those it tries."""

import itertools
from collections.abc import Iterable
from typing import Any

import pytest


def nightly(*values: Any) -> list[Any]:
    """Return ``values`` of one parameter with the marker ``nightly``; a test with any of them has it."""
    return [pytest.param(value, marks=pytest.mark.nightly) for value in values]


def covering(**values: Iterable[str]) -> pytest.MarkDecorator:
    """Parametrize a test with every combination of ``values``.

    All are marked ``nightly`` but those that take the n-th value of every parameter, and the next one of the first.
    Where a parameter has fewer values than another, its first ones follow its last.
    """
    axes = [list(each) for each in values.values()]
    few = {
        tuple(axis[(place + shift * (axis is axes[0])) % len(axis)] for axis in axes)
        for place in range(max(map(len, axes)))
        for shift in (0, 1)
    }
    every = [
        pytest.param(*case, marks=[] if case in few else pytest.mark.nightly, id="-".join(case))
        for case in itertools.product(*axes)
    ]
    return pytest.mark.parametrize(tuple(values), every)
