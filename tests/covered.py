"""Coverage by room, from the report of ``coverage json``: ``make coverage``.

    python -m tests.covered build/coverage/coverage.json [--write "make test"]

``--write`` stores the figures in ``tests/covered.json``, from which tests/README.md gets a table (``make pages``).
"""

import argparse
import datetime
import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".json")
#: Directories that a room lies in; the name below them is the room.
ABOVE = ("services", "shared")
_COUNTS = ("num_statements", "covered_lines", "num_branches", "covered_branches")


def by_room(report: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Sum a report's counts by room, with the total as ``all``."""
    rooms: dict[str, Counter[str]] = defaultdict(Counter)
    for path, file in report["files"].items():
        for room in (_find_room(path), "all"):
            if path.startswith(ABOVE):
                rooms[room].update({count: file["summary"][count] for count in _COUNTS})
    return {room: dict(rooms[room]) for room in sorted(rooms, key=lambda room: (room == "all", room))}


def _find_room(path: str) -> str:
    """Return the first two parts of a path; files outside of rooms share one."""
    first, second, *more = (*path.split("/"), "")
    return f"{first}/{second}" if any(more) else first


def format_share(counts: Mapping[str, int], part: str, of: str) -> str:
    """Return a percentage as text, or a dash if nothing counts."""
    return f"{100 * counts[part] / counts[of]:.1f} %" if counts[of] else "–"


def format_row(counts: Mapping[str, int]) -> str:
    """Return the cells of lines and branches."""
    statements, lines, branches, covered_branches = _COUNTS
    line_share, branch_share = format_share(counts, lines, statements), format_share(counts, covered_branches, branches)
    return f"{line_share} of {counts[statements]} | {branch_share} of {counts[branches]}"


def read_figures() -> dict[str, Any]:
    """Return the stored figures by name of the tests: ``date`` and ``rooms``."""
    return dict(json.loads(FILE.read_text())) if FILE.exists() else {}


def main() -> None:
    """Print the table, and store it if a name is given."""
    parser = argparse.ArgumentParser(prog="python -m tests.covered", description=__doc__.partition("\n")[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("--write", default="", metavar="NAME", help="keep the figures by the name of what ran")
    options = parser.parse_args()
    rooms = by_room(json.loads(options.report.read_text()))
    print("| room | lines | branches |\n|---|---|---|")
    print("\n".join(f"| {room} | {format_row(counts)} |" for room, counts in rooms.items()))
    if options.write:
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        figures = {**read_figures(), options.write: {"date": today, "rooms": rooms}}
        FILE.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
