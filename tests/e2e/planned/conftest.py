"""Systems of simulated executors with a planned model.

Each test has its own system, because it changes the plan.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from omnibus import profile as profiles
from tests.e2e.planned.cell import FAMILY, MODEL, SIMULATED, make_profile
from tests.e2e.system import System, start_system

GPUS = 8  # places for executors
#: Load is followed within seconds, so that a test takes no longer than it must.
SETTINGS = {
    "OMNIBUS_PLANNER_WINDOW": "3",
    "OMNIBUS_PLANNER_HOLD": "4",
    "OMNIBUS_PLANNER_COOLDOWN": "8",
    "OMNIBUS_PLANNER_LEAST": "10",
    "OMNIBUS_PLANNER_SIMULATE": "1",
    "OMNIBUS_EXECUTOR_ENGINE": "omnibus_engines:sim",
    "OMNIBUS_EXECUTOR_CREDITS": "256",
    "OMNIBUS_GATEWAY_RECORD": "digest",
}

Planned = Callable[..., contextlib.AbstractContextManager[System]]


@pytest.fixture
def run_planned(tmp_path: Path) -> Planned:
    """Run the model with goals: ``with planned(goal="gpus", rate=4.0) as system``."""

    @contextlib.contextmanager
    def run_model(**asked: Any) -> Iterator[System]:
        simulation_file, profile_file = tmp_path / "simulated.json", tmp_path / "profile.json"
        simulation_file.write_bytes(msgspec.json.encode(SIMULATED))
        profile_file.write_bytes(profiles.encode_profile(make_profile()))
        model = {
            "family": FAMILY,
            "checkpoint": str(simulation_file),
            "planned": {"profile": str(profile_file), **asked},
        }
        with start_system(tmp_path, {MODEL: model}, more={"gpus": {"cpu": {"count": GPUS}}}, **SETTINGS) as system:
            yield system

    return run_model
