"""Command-line mistakes and their answers, the source of ``docs/mistakes.md``."""

from tests.mistakes.table import ALONE, RUNNING, Mistake

__all__ = ["ALONE", "RUNNING", "Mistake"]
