"""Results for people (tables) and for programs (``bench-results.json``)."""

import dataclasses
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.bench.measure import Measured, Row
from tests.bench.system import Sample

RESULTS = Path(__file__).parents[2] / "bench-results.json"


def write(rows: Sequence[Row], path: Path = RESULTS) -> None:
    """Write a JSON list of ``{"name", "value", "unit", "against", "ratio", "measured"}``.

    ``measured`` is an ISO 8601 time. Benchmarks that were not measured now keep their last results.
    """
    measured = datetime.now(UTC).isoformat(timespec="seconds")
    results = {each["name"]: each for each in _read(path)}
    results |= {row.name: {**dataclasses.asdict(row), "measured": measured} for row in rows}
    path.write_text(json.dumps(list(results.values()), indent=1) + "\n")


def _read(path: Path) -> list[dict[str, Any]]:
    """Results in the file ``path``, or none without the file."""
    return json.loads(path.read_text()) if path.exists() else []


def table(rows: Sequence[Row]) -> str:
    """Name, value and ratio of each result."""
    lines = [f"{'benchmark':<32}{'value':>10} {'unit':<4}{'ratio':>9}  against"]
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        lines.append(f"{row.name:<32}{row.value:>10.3f} {row.unit:<4}{ratio:>9}  {row.against}")
    return "\n".join(lines)


def profile(found: Measured) -> str:
    """Print CPU ms per request by process, most expensive first.

    The results of the load generator follow.
    """
    middle = {_short(name): _middle(samples) for name, samples in found.samples.items()}
    processes = {process for sample in middle.values() for process in sample.cpu_ms}
    order = sorted(processes, key=lambda process: -sum(sample.cpu_ms.get(process, 0.0) for sample in middle.values()))
    lines = [_line("CPU ms per request", middle)]
    lines += [_line(process, [_ms(sample.cpu_ms.get(process)) for sample in middle.values()]) for process in order]
    lines.append(_line("total", [_ms(sample.total) for sample in middle.values()]))
    lines.append(
        _line("requests/s", [f"{sample.done.requests / sample.done.seconds:.0f}" for sample in middle.values()])
    )
    lines.append(_line("median latency, ms", [_ms(sample.done.median_ms) for sample in middle.values()]))
    idle = ", ".join(f"{model} {spent:.1f}" for model, spent in found.idle.items())
    lines.append(f"CPU ms per second without any request, the whole system: {idle}")
    return "\n".join(lines)


def _short(name: str) -> str:
    return name.removeprefix("control.").removeprefix("floor.").removesuffix(".cpu_ms")


def _middle(samples: Sequence[Sample]) -> Sample:
    """Round with the median total."""
    return sorted(samples, key=lambda sample: sample.total)[len(samples) // 2]


def _line(head: str, cells: Iterable[str]) -> str:
    return f"{head:<20}" + "".join(f"{cell:>18}" for cell in cells)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
