"""Parameters of a test that `make test` leaves out: further values that reach no other code than those it tries."""

from typing import Any

import pytest


def nightly(*values: Any) -> list[Any]:
    """Return ``values`` of one parameter with the marker ``nightly``; a test with any of them has it."""
    return [pytest.param(value, marks=pytest.mark.nightly) for value in values]
