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
    CPU_DECODE,
    CPU_INT8,
    ENCODER,
    FAIR,
    FIRST_AUDIO,
    GENERATOR,
    GOODPUT,
    JOINT_PLANS,
    LAB,
    LAB_RATIOS,
    LAPTOP,
    LIMITS,
    LLAMA,
    LLAMA_COSTS,
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
    REAL_FIRST_AUDIO,
    RECORD_REPLAY,
    REGISTER,
    ROUTE_COST,
    SCALE,
    SIDECAR,
    SPEEDUP,
    TTFT,
    UP,
    VLLM,
    VLLM_PYTHON,
    VOICE,
)
from tests.bench.system import PATHS, BenchSample, run_system

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
    "joint_plans": set(JOINT_PLANS),
    "plans": set(PLANS),
    "burst": set(BURST),
    "goodput": set(GOODPUT),
    "fair": set(FAIR),
    "overload": set(OVERLOAD),
    "voice": {FIRST_AUDIO, *VOICE},
    "quotes": set(QUOTES),
    "up": set(UP),
    "mirror": {MIRROR_P99},
    "scale": set(SCALE),
    "route_cost": set(ROUTE_COST),
    "scale_lab": {*LAB_RATIOS, *LAB},
    "connections": set(CONNECTIONS),
    "nodes": set(NODES),
    "node_plans": set(NODE_PLANS),
    "beside_vllm": {*VLLM.values(), TTFT},
    "beside_llama_cpp": {*LLAMA.values(), LAPTOP, *LLAMA_COSTS},
    "real": {REAL_FIRST_AUDIO},
    "cpu_decode": {*CPU_DECODE.values(), *CPU_INT8.values()},
}
_IDLE = 1.0  # seconds
_FAIR_SECONDS = 900  # limit for all kinds of work of one tenant during another's, in sequence


@dataclass
class BenchResults:
    """Results by benchmark and by model.

    By benchmark: CPU samples, copies (ms), memory (MiB, the larger of the systems), other values. By model: CPU ms per
    second of the idle system.
    """

    samples: dict[str, list[BenchSample]] = field(default_factory=dict)
    copies: list[float] = field(default_factory=list)
    memory: dict[str, float] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    idle: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class BenchRow:
    """One result; ``against`` names the divisor of ``ratio``, or is empty without one."""

    name: str
    value: float
    unit: str
    against: str = ""
    ratio: float | None = None


def measure_cases(targets: set[str]) -> BenchResults:
    """Measure the named benchmarks and their floors."""
    results = BenchResults()
    names = cases.select_cases(targets)
    for module, module_names in _MODULES.items():
        if targets & module_names:
            figures = _run_alone(module, VLLM_PYTHON if TTFT in module_names else Path(sys.executable))
            results.values |= {name: figures[name] for name in targets & module_names}
    used_models = {CASES[name].model for name in names if CASES[name].model} or {bodies.MODELS[0]}
    for model in [model for model in bodies.MODELS if names and model in used_models]:
        here = [name for name in names if CASES[name].model in (model, "")]
        asyncio.run(_run_rounds(results, model, here, targets))
    if COPY in targets and not results.copies:
        results.copies = [floor.copy_ms() for _ in range(ROUNDS)]
    return results


def _run_alone(module: str, python: Path) -> dict[str, float]:
    # In a separate process, because it counts the CPU time of its process.
    process = subprocess.run(
        [str(python), "-m", f"tests.bench.{module}"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": PATHS},
        stdout=subprocess.PIPE,
        timeout=_FAIR_SECONDS if module == "fair" else 300,
        check=True,
    )
    return dict(json.loads(process.stdout))


async def _run_rounds(results: BenchResults, model: str, names: list[str], targets: set[str]) -> None:
    """A system with ``model`` alone: executors of another model would wake for each request too."""
    async with run_system(model) as system:
        results.idle[model] = await system.idle(_IDLE)
        for _ in range(ROUNDS):
            if any(CASES[name].against == COPY for name in names):
                results.copies.append(floor.copy_ms())
            for name in names:
                results.samples.setdefault(name, []).append(await system.take_sample(name, CASES[name]))
        for name in targets & set(MEMORY):
            mib = system.memory_mib(name.removeprefix("memory.").removesuffix("_mib"))
            results.memory[name] = max(mib, results.memory.get(name, 0.0))


def make_rows(results: BenchResults) -> list[BenchRow]:
    """The results in the order of ``cases.NAMES``."""
    values = results.values | results.memory
    if results.copies:
        values[COPY] = statistics.median(results.copies)
    values |= {name: statistics.median(sample.total for sample in samples) for name, samples in results.samples.items()}
    return [_make_row(name, values) for name in cases.NAMES if name in values]


def _make_row(name: str, values: Mapping[str, float]) -> BenchRow:
    value, unit = round(values[name], 4), "MiB" if name in MEMORY else "ms"
    if name in MEMORY:
        return BenchRow(name, value, unit, f"{MEMORY_GOAL} MiB", round(value / MEMORY_GOAL, 3))
    if name in RECORD_REPLAY:
        goal = RECORD_REPLAY[name]
        return BenchRow(name, value, "us", f"{goal:g} us", round(value / goal, 3))
    if name in RATIOS:
        return BenchRow(name, value, "x", f"{RATIOS[name]:g}", round(value / RATIOS[name], 3))
    if name in LIMITS:
        unit, goal = LIMITS[name]
        return BenchRow(name, value, unit, f"{goal:g} {unit}", round(value / goal, 3) if goal else None)
    case = CASES.get(name)
    if case is None or not case.against:
        return BenchRow(name, value, unit)
    against = case.against if case.scale == 1 else f"{case.scale:g} x {case.against}"
    return BenchRow(name, value, unit, against, round(value / (values[case.against] * case.scale), 2))
