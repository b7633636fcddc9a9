"""Latest measured durations of the paths, as a table."""

from pathlib import Path

import msgspec

from tests.paths.table import PATHS
from tests.paths.table import Path as Way

MEASURED = Path(__file__).parent / "measured.json"


class PathMeasurements(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds by path: the start of its system (0 without one), then each command."""

    machine: str
    install_seconds: float | None
    seconds: dict[str, list[float]]


def read_measured() -> PathMeasurements:
    """Read the file."""
    return msgspec.json.decode(MEASURED.read_bytes(), type=PathMeasurements)


def format_table(measurements: PathMeasurements) -> str:
    """Rows of Markdown: path, commands, seconds."""
    rows = ["| to | commands | seconds |", "|---|---|---|"]
    if measurements.install_seconds is not None:
        rows.append(f"| an installation | `make demo` installs first | {measurements.install_seconds:.1f} |")
    rows += [_format_row(path, measurements.seconds[path.name]) for path in PATHS]
    return "\n".join(rows)


def _format_row(path: Way, seconds: list[float]) -> str:
    commands = [each.text for each in (path.system, *path.commands) if each is not None]
    times = seconds if path.system is not None else seconds[1:]
    steps = [f"`{_one_line(text)}` {took:.1f} s" for text, took in zip(commands, times, strict=True)]
    return f"| {path.goal} | {'<br>'.join(steps)} | {sum(times):.1f} |"


def _one_line(text: str) -> str:
    return " ".join(text.replace("\\\n", " ").split()).replace("|", "\\|")
