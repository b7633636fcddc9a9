"""Memory, descriptors and restarts of every process, seen from outside."""

import contextlib
from pathlib import Path

import psutil

from tests.chaos.outcome import ProcessSample
from tests.chaos.stack import Stack

#: Names by module.
_MODULES = {
    "omnibus_gateway": "gateway",
    "omnibus_sidecar": "sidecar",
    "omnibus_planner": "planner",
    "omnibus_encoder": "executor",
    "omnibus_llm": "executor",
    "omnibus_generator": "executor",
    "omnibus.up.fork_server": "fork-server",
    "omnibus.app.worker": "app worker",
}


def take_samples(stack: Stack) -> list[ProcessSample]:
    """One sample of each process, without those that end meanwhile."""
    samples = []
    for process in stack.system.processes():
        with contextlib.suppress(psutil.Error, OSError, StopIteration):
            if label := _label_process(process):
                samples.append(
                    ProcessSample(stack.elapsed_seconds, label, process.pid, own_bytes(process.pid), process.num_fds())
                )
    return samples


def own_bytes(pid: int) -> int:
    """Private resident memory, without mappings of the arena and of libraries."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("RssAnon:")).split()[1])


def _label_process(process: psutil.Process) -> str:
    """Label of a process, or "" for a placeholder."""
    command = process.cmdline()
    if any(part.endswith("up/fork_client.py") for part in command):
        return ""
    for module, name in _MODULES.items():
        if module in command:
            return name
    program = Path(command[0]).name if command else ""
    return program if program in ("nats-server", "valkey-server", "redis-server") else ""


def count_restarts(before: list[ProcessSample], after: list[ProcessSample]) -> int:
    """Processes of ``before`` that no longer run."""
    return len({sample.pid for sample in before} - {sample.pid for sample in after})


def find_peaks(samples: list[ProcessSample]) -> dict[str, tuple[int, int]]:
    """The most memory (bytes) and descriptors of any process of each name."""
    peak: dict[str, tuple[int, int]] = {}
    for sample in samples:
        memory, descriptors = peak.get(sample.process, (0, 0))
        peak[sample.process] = (max(memory, sample.memory_bytes), max(descriptors, sample.descriptors))
    return peak
