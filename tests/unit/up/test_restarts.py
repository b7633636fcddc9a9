"""A process that has served once is restarted until it serves again. Its failures stop nothing else."""

import asyncio
import os
import signal

import pytest

from omnibus.process.spec import ProcessSpec
from omnibus.process.supervise import RestartPolicy
from omnibus.up.supervisor import Supervisor
from tests.unit.up.programs import SLEEPS, WITHIN, Lines, log_to, python_code

QUICK = RestartPolicy(first=0.01, longest=0.02, limit=2)


@pytest.fixture
def lines() -> Lines:
    return Lines()


#: Serves when the file ``GATE`` is not there, ends as long as it is.
UNLESS_GATE = """
import os, sys, time
if os.path.exists(os.environ["GATE"]):
    sys.exit("something is in the way")
print("up", flush=True)
while not os.path.exists(os.environ["GATE"]):
    time.sleep(0.01)
"""


async def test_a_process_that_has_served_is_restarted_until_it_serves_again(lines, tmp_path):
    gate, base = tmp_path / "gate", python_code("base", SLEEPS)
    flaky = python_code("flaky", UNLESS_GATE, lines, env={"GATE": str(gate)})
    async with Supervisor([base, flaky], log=log_to(lines), policy=QUICK) as supervisor:
        before = supervisor.pids
        gate.touch()
        await supervisor.unless_over(lines.until(rf"(?s)(restarting in.*){{{3 * QUICK.limit}}}"))

        gate.unlink()
        await supervisor.unless_over(lines.until(r"(?s)in the way.*flaky +\| up"))

        assert supervisor.pids["base"] == before["base"]
        assert supervisor.pids["flaky"] != before["flaky"]


async def test_nothing_ends_everything_once_all_has_served(lines, tmp_path):
    gate, base = tmp_path / "gate", python_code("base", SLEEPS)
    silent = python_code("silent", UNLESS_GATE, env={"GATE": str(gate)})  # its state cannot be checked
    async with Supervisor([base, silent], log=log_to(lines), policy=QUICK) as supervisor:
        supervisor.confirm_all()
        gate.touch()
        await supervisor.unless_over(lines.until(rf"(?s)(restarting in.*){{{3 * QUICK.limit}}}"))
        await supervisor.add(python_code("late", "pass"))

        await supervisor.unless_over(lines.until("late *\\| given up"))

        assert set(supervisor.specs) == {"base", "silent"}


async def test_a_program_that_is_gone_when_its_process_ends_is_tried_again(lines, tmp_path):
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho up\nsleep 1000\n")
    program.chmod(0o755)
    spec = ProcessSpec("moved", (str(program),), ready=lambda: lines.until(r"^moved *\| up"))
    async with Supervisor([spec], log=log_to(lines), policy=QUICK) as supervisor:
        first = supervisor.pids["moved"]
        program.rename(tmp_path / "aside")
        os.kill(first, signal.SIGKILL)
        await supervisor.unless_over(lines.until(rf"(?s)(cannot start moved.*){{{2 * QUICK.limit}}}"))

        (tmp_path / "aside").rename(program)

        async with asyncio.timeout(WITHIN):
            while "moved" not in supervisor.pids:
                await asyncio.sleep(0.01)
        assert supervisor.pids["moved"] != first
