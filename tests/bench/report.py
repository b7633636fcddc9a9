"""Results for people (tables) and for programs (``bench-results.json``)."""

import dataclasses
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.bench.measure import BenchResults, BenchRow
from tests.bench.system import BenchSample

RESULTS = Path(__file__).parents[2] / "bench-results.json"


def write_results(rows: Sequence[BenchRow], path: Path = RESULTS) -> None:
    """Write a JSON list of ``{"name", "value", "unit", "against", "ratio", "measured"}``.

    ``measured`` is an ISO 8601 time. Benchmarks that were not measured now keep their last results.
    """
    timestamp = datetime.now(UTC).isoformat(timespec="seconds")
    results = {each["name"]: each for each in _read_results(path)}
    results |= {row.name: {**dataclasses.asdict(row), "measured": timestamp} for row in rows}
    path.write_text(json.dumps(list(results.values()), indent=1) + "\n")


def _read_results(path: Path) -> list[dict[str, Any]]:
    """Results in the file ``path``, or none without the file."""
    return json.loads(path.read_text()) if path.exists() else []


def format_table(rows: Sequence[BenchRow]) -> str:
    """Name, value and ratio of each result."""
    lines = [f"{'benchmark':<32}{'value':>10} {'unit':<4}{'ratio':>9}  against"]
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        lines.append(f"{row.name:<32}{row.value:>10.3f} {row.unit:<4}{ratio:>9}  {row.against}")
    return "\n".join(lines)


def format_profile(results: BenchResults) -> str:
    """Print CPU ms per request by process, most expensive first.

    The results of the load generator follow.
    """
    middle = {_short_name(name): _median_sample(samples) for name, samples in results.samples.items()}
    processes = {process for sample in middle.values() for process in sample.cpu_ms}
    order = sorted(processes, key=lambda process: -sum(sample.cpu_ms.get(process, 0.0) for sample in middle.values()))
    lines = [_format_line("CPU ms per request", middle)]
    lines += [
        _format_line(process, [_format_ms(sample.cpu_ms.get(process)) for sample in middle.values()])
        for process in order
    ]
    lines.append(_format_line("total", [_format_ms(sample.total) for sample in middle.values()]))
    lines.append(
        _format_line("requests/s", [f"{sample.done.requests / sample.done.seconds:.0f}" for sample in middle.values()])
    )
    lines.append(_format_line("median latency, ms", [_format_ms(sample.done.median_ms) for sample in middle.values()]))
    idle = ", ".join(f"{model} {milliseconds:.1f}" for model, milliseconds in results.idle.items())
    lines.append(f"CPU ms per second without any request, the whole system: {idle}")
    return "\n".join(lines)


def _short_name(name: str) -> str:
    return name.removeprefix("control.").removeprefix("floor.").removesuffix(".cpu_ms")


def _median_sample(samples: Sequence[BenchSample]) -> BenchSample:
    """Round with the median total."""
    return sorted(samples, key=lambda sample: sample.total)[len(samples) // 2]


def _format_line(head: str, cells: Iterable[str]) -> str:
    return f"{head:<20}" + "".join(f"{cell:>18}" for cell in cells)


def _format_ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
