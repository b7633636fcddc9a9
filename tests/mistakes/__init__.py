"""Mistakes that people make at the command line, and the answers they get; ``docs/mistakes.md`` is made from them."""

from tests.mistakes.table import ALONE, RUNNING, Mistake

__all__ = ["ALONE", "RUNNING", "Mistake"]
