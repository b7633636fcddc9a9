"""Rounds: every case once, then all again, so that a noisy neighbour meets all of them; medians at the end."""

import asyncio
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from omnibus.up.stack import ROOT
from tests.bench import cases, floor
from tests.bench.cases import CASES, COPY, MEMORY, MEMORY_GOAL, SIDECAR
from tests.bench.system import PATHS, Sample, System, running

ROUNDS = 3
_IDLE = 1.0  # seconds


@dataclass
class Measured:
    """What was found: CPU samples by case, single values by name, CPU ms per second of the idle system."""

    samples: dict[str, list[Sample]] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    idle: float = 0.0


@dataclass(frozen=True)
class Row:
    """One result. ``against`` names what ``ratio`` divides by; empty when there is nothing to hold it against."""

    name: str
    value: float
    unit: str
    against: str = ""
    ratio: float | None = None


def measure(wanted: set[str]) -> Measured:
    """Measure the named benchmarks, and the floors they are held against."""
    found = Measured()
    names = cases.needed(wanted)
    copies = COPY in wanted or any(CASES[name].against == COPY for name in names)
    if SIDECAR in wanted:
        found.values[SIDECAR] = _sidecar()
    if names:
        asyncio.run(_rounds(found, names, copies, wanted))
    elif copies:
        found.values[COPY] = statistics.median(floor.copy_ms() for _ in range(ROUNDS))
    return found


def _sidecar() -> float:
    # In a process of its own: it counts the CPU time of the process that it runs in.
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.sidecar_control"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": PATHS},
        stdout=subprocess.PIPE,
        timeout=120,
        check=True,
    )
    return float(json.loads(done.stdout)[SIDECAR])


async def _rounds(found: Measured, names: list[str], copies: bool, wanted: set[str]) -> None:
    copied = []
    async with running() as system:
        found.idle = await system.idle(_IDLE)
        for _ in range(ROUNDS):
            copied += [floor.copy_ms()] if copies else []
            for name in names:
                found.samples.setdefault(name, []).append(await system.sample(name, CASES[name]))
        _remember(found, system, wanted)
    if copied:
        found.values[COPY] = statistics.median(copied)


def _remember(found: Measured, system: System, wanted: set[str]) -> None:
    for name in wanted & set(MEMORY):
        found.values[name] = system.memory_mib(name.removeprefix("memory.").removesuffix("_mib"))


def rows(found: Measured) -> list[Row]:
    """The results in the order of ``cases.NAMES``."""
    values = dict(found.values)
    values |= {name: statistics.median(sample.total for sample in samples) for name, samples in found.samples.items()}
    return [_row(name, values) for name in cases.NAMES if name in values]


def _row(name: str, values: Mapping[str, float]) -> Row:
    value, unit = round(values[name], 4), "MiB" if name in MEMORY else "ms"
    if name in MEMORY:
        return Row(name, value, unit, f"{MEMORY_GOAL} MiB", round(value / MEMORY_GOAL, 3))
    case = CASES.get(name)
    if case is None or not case.against:
        return Row(name, value, unit)
    against = case.against if case.scale == 1 else f"{case.scale:g} x {case.against}"
    return Row(name, value, unit, against, round(value / (values[case.against] * case.scale), 2))
