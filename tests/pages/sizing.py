"""The table of sizing in ``docs/operations.md``, written from the measured figures."""

from pathlib import Path

from omnibus.cli.format.tables import size_text
from omnibus.reference.sizing import MIB, Measurements, read_measurements

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
BEGIN, END = "<!-- sizing: made by python -m tests.pages -->", "<!-- /sizing -->"


def page() -> str:
    """Return ``docs/operations.md`` with the current figures."""
    head, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    measured = read_measurements()
    return "\n".join([f"{head}{BEGIN}\n", *_kind_rows(measured), "", *_notes(measured), "", f"{END}{tail}"])


def _kind_rows(measured: Measurements) -> list[str]:
    rows = ["| kind | what | CPU | arena | bus | disk |", "|---|---|---|---|---|---|"]
    for name, cost in measured.kinds.items():
        sizes = [size_text(nbytes) for nbytes in (cost.arena_bytes, cost.bus_bytes, cost.disk_bytes)]
        rows.append(f"| `{name}` | {cost.what} | {sum(cost.cpu_ms.values()):.1f} ms | {' | '.join(sizes)} |")
    return rows


def _notes(measured: Measurements) -> list[str]:
    memory = ", ".join(f"{name} {size_text(mib * MIB)}" for name, mib in measured.memory_mib.items())
    return [
        f"Measured on {measured.machine}. Memory without arena and weights: {memory}.",
        f"Idle services use {measured.idle_cpu_ms:.0f} ms of CPU per second.",
    ]
