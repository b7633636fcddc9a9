"""Measurements from tests of all processes, printed after a run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

#: How the names of properties begin (pytest's ``record_property``) that the report prints.
REPORTED = "measured: "


def find_measured(stats: Mapping[str, Sequence[Any]]) -> list[str]:
    """Lines of measurements, from the reports in ``TerminalReporter.stats``."""
    return list(dict.fromkeys(_format_lines(report for reports in stats.values() for report in reports)))


def _format_lines(reports: Iterable[Any]) -> Iterator[str]:
    for report in reports:
        for name, value in getattr(report, "user_properties", ()):
            if name.startswith(REPORTED):
                yield f"{name.removeprefix(REPORTED)}: {value}"
