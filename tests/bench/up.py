"""Memory and start of ``omnibus up`` with the demo models.

    python -m tests.bench.up            # of this tree
    python -m tests.bench.up ../before  # and by that of another checkout, whose runs alternate with these

    memory.up_mib   memory of all processes of an idle system, each shared page counted once (PSS)
    up.ready_s      from the command until everything serves

Medians of ``ROUNDS`` runs. A run before them warms the cache of files.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tests.bench.cases import UP_MIB, UP_READY

ROUNDS = 3
ROOT = Path(__file__).parents[2]
_READY_WITHIN, _STOPS_WITHIN = 180.0, 60.0
_SETTLE_SECONDS = 2.0  # until heartbeats and probes of all processes have run


def proportional_bytes(processes: list[psutil.Process]) -> int:
    """Resident bytes of ``processes``, with each shared page divided among all processes that map it (PSS)."""
    return sum(int(process.memory_full_info().pss) for process in processes)


def count_up_memory(command: psutil.Process) -> float:
    """MiB of the run of ``command`` and of all processes below it."""
    return proportional_bytes([command, *command.children(recursive=True)]) / (1 << 20)


def measure_run(tree: Path) -> tuple[float, float]:
    """Return the seconds until a run of the code in ``tree`` serves, and its MiB afterwards."""
    packages = [tree / "shared", *sorted(each.parent for each in tree.glob("services/*/omnibus_*"))]
    environ = {**os.environ, "PYTHONPATH": ":".join(map(str, packages)), "OMP_NUM_THREADS": "1"}
    command = (sys.executable, "-m", "omnibus.cli", "up", "--port", "0", "--quiet", "--json")
    began = time.perf_counter()
    with subprocess.Popen(command, cwd=tree, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.read(1) == b"{", "the system did not start"
            seconds = time.perf_counter() - began
            time.sleep(_SETTLE_SECONDS)
            mib = count_up_memory(psutil.Process(process.pid))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(_STOPS_WITHIN)
    assert seconds < _READY_WITHIN
    return seconds, mib


def measure_trees(*trees: Path) -> dict[Path, tuple[float, float]]:
    """Return the median seconds and MiB of each tree. Their runs alternate."""
    runs: dict[Path, list[tuple[float, float]]] = {tree: [] for tree in trees}
    for number in range(ROUNDS + 1):
        for tree, measured in runs.items():
            run = measure_run(tree)
            if number:  # the first one reads files from the disk
                measured.append(run)
                print(f"{tree.name}: ready after {run[0]:.2f} s, {run[1]:.0f} MiB", file=sys.stderr)
    return {
        tree: (statistics.median(run[0] for run in measured), statistics.median(run[1] for run in measured))
        for tree, measured in runs.items()
    }


def main(*before: str) -> dict[str, float]:
    """Measure this tree, and its ratio to the tree ``before``, if any."""
    others = [Path(each).resolve() for each in before]
    results = measure_trees(*others, ROOT)
    seconds, mib = results[ROOT]
    figures = {UP_MIB: mib, UP_READY: seconds}
    for other in others:
        figures |= {
            f"{UP_MIB}.over_before": mib / results[other][1],
            f"{UP_READY}.over_before": seconds / results[other][0],
        }
    return figures


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
