"""Run every case once per round, and return medians of the rounds.

A noisy neighbour therefore affects all cases alike.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench import bodies, cases, floor
from tests.bench.cases import (
    BURST,
    CASES,
    CONNECTIONS,
    COPY,
    ENCODER,
    FAIR,
    FIRST_AUDIO,
    GENERATOR,
    GOODPUT,
    LIMITS,
    MASKED,
    MEMORY,
    MEMORY_GOAL,
    MIRROR_P99,
    NODE_PLANS,
    NODES,
    OVERLOAD,
    PLANNER,
    PLANS,
    PROFILES,
    QUOTES,
    RATIOS,
    RECORD_REPLAY,
    REGISTER,
    SCALE,
    SIDECAR,
    SPEEDUP,
    TTFT,
    VLLM,
    VLLM_PYTHON,
    VOICE,
)
from tests.bench.system import PATHS, Sample, running

ROOT = Path(__file__).parents[2]

ROUNDS = 3
#: Benchmarks with separate modules.
_MODULES = {
    "sidecar_control": {SIDECAR},
    "record_replay": set(RECORD_REPLAY),
    "apps": {REGISTER},
    "scheduler": {SPEEDUP},
    "structured": {MASKED},
    "encoder": set(ENCODER),
    "profiles": set(PROFILES),
    "generator": set(GENERATOR),
    "planner": set(PLANNER),
    "plans": set(PLANS),
    "burst": set(BURST),
    "goodput": set(GOODPUT),
    "fair": set(FAIR),
    "overload": set(OVERLOAD),
    "voice": {FIRST_AUDIO, *VOICE},
    "quotes": set(QUOTES),
    "mirror": {MIRROR_P99},
    "scale": set(SCALE),
    "connections": set(CONNECTIONS),
    "nodes": set(NODES),
    "node_plans": set(NODE_PLANS),
    "beside_vllm": {*VLLM.values(), TTFT},
}
_IDLE = 1.0  # seconds
_FAIR_SECONDS = 900  # limit for all kinds of work of one tenant during another's, in sequence


@dataclass
class Measured:
    """Results by benchmark and by model.

    By benchmark: CPU samples, copies (ms), memory (MiB, the larger of the systems), other values. By model: CPU ms per
    second of the idle system.
    """

    samples: dict[str, list[Sample]] = field(default_factory=dict)
    copies: list[float] = field(default_factory=list)
    memory: dict[str, float] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    idle: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """One result; ``against`` names the divisor of ``ratio``, or is empty without one."""

    name: str
    value: float
    unit: str
    against: str = ""
    ratio: float | None = None


def measure(wanted: set[str]) -> Measured:
    """Measure the named benchmarks and their floors."""
    found = Measured()
    names = cases.needed(wanted)
    for module, mine in _MODULES.items():
        if wanted & mine:
            measured = _alone(module, VLLM_PYTHON if TTFT in mine else Path(sys.executable))
            found.values |= {name: measured[name] for name in wanted & mine}
    used = {CASES[name].model for name in names if CASES[name].model} or {bodies.MODELS[0]}
    for model in [model for model in bodies.MODELS if names and model in used]:
        here = [name for name in names if CASES[name].model in (model, "")]
        asyncio.run(_rounds(found, model, here, wanted))
    if COPY in wanted and not found.copies:
        found.copies = [floor.copy_ms() for _ in range(ROUNDS)]
    return found


def _alone(module: str, python: Path) -> dict[str, float]:
    # In a separate process, because it counts the CPU time of its process.
    done = subprocess.run(
        [str(python), "-m", f"tests.bench.{module}"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": PATHS},
        stdout=subprocess.PIPE,
        timeout=_FAIR_SECONDS if module == "fair" else 300,
        check=True,
    )
    return dict(json.loads(done.stdout))


async def _rounds(found: Measured, model: str, names: list[str], wanted: set[str]) -> None:
    """A system with ``model`` alone: executors of another model would wake for each request too."""
    async with running(model) as system:
        found.idle[model] = await system.idle(_IDLE)
        for _ in range(ROUNDS):
            if any(CASES[name].against == COPY for name in names):
                found.copies.append(floor.copy_ms())
            for name in names:
                found.samples.setdefault(name, []).append(await system.sample(name, CASES[name]))
        for name in wanted & set(MEMORY):
            used = system.memory_mib(name.removeprefix("memory.").removesuffix("_mib"))
            found.memory[name] = max(used, found.memory.get(name, 0.0))


def rows(found: Measured) -> list[Row]:
    """The results in the order of ``cases.NAMES``."""
    values = found.values | found.memory
    if found.copies:
        values[COPY] = statistics.median(found.copies)
    values |= {name: statistics.median(sample.total for sample in samples) for name, samples in found.samples.items()}
    return [_row(name, values) for name in cases.NAMES if name in values]


def _row(name: str, values: Mapping[str, float]) -> Row:
    value, unit = round(values[name], 4), "MiB" if name in MEMORY else "ms"
    if name in MEMORY:
        return Row(name, value, unit, f"{MEMORY_GOAL} MiB", round(value / MEMORY_GOAL, 3))
    if name in RECORD_REPLAY:
        goal = RECORD_REPLAY[name]
        return Row(name, value, "us", f"{goal:g} us", round(value / goal, 3))
    if name in RATIOS:
        return Row(name, value, "x", f"{RATIOS[name]:g}", round(value / RATIOS[name], 3))
    if name in LIMITS:
        unit, goal = LIMITS[name]
        return Row(name, value, unit, f"{goal:g} {unit}", round(value / goal, 3) if goal else None)
    case = CASES.get(name)
    if case is None or not case.against:
        return Row(name, value, unit)
    against = case.against if case.scale == 1 else f"{case.scale:g} x {case.against}"
    return Row(name, value, unit, against, round(value / (values[case.against] * case.scale), 2))
