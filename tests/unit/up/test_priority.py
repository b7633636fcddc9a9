"""Executors have lower priority than a gateway's processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from omnibus.plan import Plan
from omnibus.process.spec import python_path
from omnibus.up.executors import process_specs
from tests.unit.up.house import make_plan

AUTOGROUP = Path("/proc/self/autogroup")
#: Prints the resulting priorities of a process and its session.
PROGRAM = f"""
import os
from omnibus.process.tuning import lower_priority
lower_priority(NICE)
lower_priority(NICE)
group = open("{AUTOGROUP}").read() if os.access("{AUTOGROUP}", os.W_OK) else f"none nice {{NICE}}"
print(os.nice(0), group.split()[-1])
"""


def read_priorities(nice: int) -> tuple[int, int]:
    """Return the priorities of a process and its session. The process lowered its priority by ``nice``, twice."""
    program = PROGRAM.replace("NICE", str(nice))
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": python_path()},
        start_new_session=True,
        capture_output=True,
        check=True,
        text=True,
        timeout=60,
    )
    own, group = ran.stdout.split()
    return int(own), int(group)


def test_a_process_and_its_session_give_way():
    assert read_priorities(7) == (7, 7)


def test_zero_changes_nothing():
    assert read_priorities(0) == (os.nice(0), 0)


@pytest.fixture
def executor_plan() -> Plan:
    return make_plan(1, L=1)


def test_executors_of_a_stack_give_way_unless_the_environment_says_otherwise(
    executor_plan: Plan, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("OMNIBUS_EXECUTOR_NICE", raising=False)
    [spec] = process_specs(executor_plan, env={}).values()
    monkeypatch.setenv("OMNIBUS_EXECUTOR_NICE", "3")
    [nice_spec] = process_specs(executor_plan, env={}).values()
    [environment_spec] = process_specs(executor_plan, env={"OMNIBUS_EXECUTOR_NICE": "0"}).values()

    assert [each.env["OMNIBUS_EXECUTOR_NICE"] for each in (spec, nice_spec, environment_spec)] == ["10", "3", "0"]
