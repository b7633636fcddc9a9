"""Compute time of an engine, as ``Runner.busy`` reports it."""

from collections.abc import Callable
from time import perf_counter
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Stopwatch:
    """Calls functions and adds up the seconds that they take; for one thread at a time."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        began = perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            self.seconds += perf_counter() - began
