"""The same question has the same answer on busy machines, with any seed of hashes and any number of threads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from omnibus import profile
from omnibus_planner.declared.planned_spec import GpuType
from omnibus_planner.optimize.planner import Planner
from tests.unit.planner.optimize.testbed import make_goals
from tests.unit.planner.simulate.omni import make_omni_model

ROOT = Path(__file__).parents[4]
PROFILE = ROOT / "examples" / "simulated" / "profile.json"
#: Prints the whole plan of the shipped example on 6 GPUs, with a goal.
PLAN = """
import msgspec
from omnibus_planner.optimize.promise import PromiseChecker
from tests.unit.planner.optimize.test_same_answer import make_example_planner
result = PromiseChecker(make_example_planner(6)).plan(within=0.5)
print(msgspec.json.encode((result.models, result.explain, result.capacity, result.rate)).decode())
"""


def make_example_planner(gpus: int) -> Planner:
    """Return a planner of the shipped example, with the goal of answers within five seconds."""
    known = profile.decode_profile(PROFILE.read_bytes(), PROFILE.name)
    asked = make_omni_model(goals=make_goals(done=5.0))
    return Planner({"omni": asked}, {"omni": known}, {"H100": GpuType(gpus, 80.0)}, {})


def print_plan(seed: int, threads: int) -> str:
    settings = {"PYTHONHASHSEED": str(seed), "OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
    command = [sys.executable, "-c", PLAN]
    process = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **settings}, capture_output=True, text=True, timeout=300, check=True
    )
    return process.stdout


def test_a_plan_is_the_same_beside_busy_loops_and_with_other_hashes_and_threads():
    first = print_plan(1, 1)
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        second = print_plan(2, 4)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()

    assert '"simulated"' in first
    assert '"alternatives"' in first
    assert second == first


@pytest.mark.parametrize("gpus", [36, 40, 48, 64])
def test_goals_on_large_clusters_are_planned_by_every_policy(gpus: int):
    """Baselines in cells have more replicas of an option than the admissible work of one pool lists."""
    baselines = make_example_planner(gpus).plan_baselines()

    cells = baselines["greedy_cells"].models["omni"].options
    assert {"monolith", "greedy_cells"} <= baselines.keys()
    assert sum(option.replicas * option.gpus for option in cells.values()) <= gpus
    assert all(result.capacity["omni"] > 0 for result in baselines.values())
