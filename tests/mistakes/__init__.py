"""Command-line mistakes and their answers, some of which ``docs/errors.md`` shows."""

from tests.mistakes.table import ALONE, RUNNING, Mistake

__all__ = ["ALONE", "RUNNING", "Mistake"]
