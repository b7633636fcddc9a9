"""Parameters of a test that `make test-all` leaves out.

They are further values that reach the same code.
"""

import itertools
from collections.abc import Iterable
from typing import Any

import pytest


def mark_nightly(*values: Any) -> list[Any]:
    """Return ``values`` of one parameter, whose tests are marked ``nightly``."""
    return [pytest.param(value, marks=pytest.mark.nightly) for value in values]


def covering(**values: Iterable[str]) -> pytest.MarkDecorator:
    """Parametrize a test with every combination of ``values``.

    All are marked ``nightly`` except two groups: those with the n-th value of every parameter, and those with the next
    value of the first parameter. If a parameter has fewer values than another, its first ones follow its last.
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
