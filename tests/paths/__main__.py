"""``python -m tests.paths``: walk all paths and print a table.

It also writes the table into docs/first-steps.md. With ``--install`` it first creates the environment, in a new
directory, and includes the seconds in the table.
"""

import argparse
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tests.pages import write_pages
from tests.paths.measured import MEASURED, PathMeasurements, format_table
from tests.paths.run import ROOT, walk_paths
from tests.paths.table import PATHS


def main() -> None:
    """Read the options, walk the paths, and write the measurements."""
    parser = argparse.ArgumentParser(prog="python -m tests.paths", description=__doc__)
    parser.add_argument("--install", action="store_true", help="also make a new environment, and time it")
    parser.add_argument("--print", action="store_true", help="write no page")
    options = parser.parse_args()
    install = round(_install_seconds(), 1) if options.install else None
    measurements = PathMeasurements(_describe_machine(), install, dict(_measure_paths()))
    print(format_table(measurements))
    if not options.print:
        MEASURED.write_bytes(msgspec.json.format(msgspec.json.encode(measurements), indent=1) + b"\n")
        write_pages()


def _measure_paths() -> Iterator[tuple[str, list[float]]]:
    for result in walk_paths(PATHS):
        yield result.path.name, [round(each, 1) for each in (result.start_seconds, *result.seconds)]


def _install_seconds() -> float:
    """Seconds of the steps of ``make demo`` before the demo."""
    with tempfile.TemporaryDirectory(prefix="omnibus-install-") as directory:
        venv = Path(directory) / ".venv"
        start = time.monotonic()
        subprocess.run(["make", f"VENV={venv}", str(venv / ".run")], cwd=ROOT, check=True, timeout=1800)
        return time.monotonic() - start


def _describe_machine() -> str:
    load = os.getloadavg()[0]
    return f"{os.cpu_count()} cores of a CPU ({platform.machine()}), a load average of {load:.0f} at the start"


if __name__ == "__main__":
    main()
