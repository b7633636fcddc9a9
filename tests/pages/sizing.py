"""The table of sizing in ``docs/operations.md``, written from the measured figures."""

from pathlib import Path

from omnibus.cli.format.tables import size_text
from omnibus.reference.sizing import MIB, Measurements, read_measurements

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
BEGIN, END = "<!-- sizing: made by python -m tests.pages -->", "<!-- /sizing -->"


def make_page() -> str:
    """Return ``docs/operations.md`` with the current figures."""
    head, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    measurements = read_measurements()
    return "\n".join(
        [f"{head}{BEGIN}\n", *_kind_rows(measurements), "", *_format_notes(measurements), "", f"{END}{tail}"]
    )


def _kind_rows(measurements: Measurements) -> list[str]:
    rows = ["| kind | what | CPU | arena | bus | disk |", "|---|---|---|---|---|---|"]
    for name, cost in measurements.kinds.items():
        sizes = [size_text(nbytes) for nbytes in (cost.arena_bytes, cost.bus_bytes, cost.disk_bytes)]
        rows.append(f"| `{name}` | {cost.what} | {sum(cost.cpu_ms.values()):.1f} ms | {' | '.join(sizes)} |")
    return rows


def _format_notes(measurements: Measurements) -> list[str]:
    memory = ", ".join(f"{name} {size_text(mib * MIB)}" for name, mib in measurements.memory_mib.items())
    return [
        f"Measured on {measurements.machine}. Memory without arena and weights: {memory}.",
        f"Idle services use {measurements.idle_cpu_ms:.0f} ms of CPU per second.",
    ]
