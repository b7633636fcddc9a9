"""An executor that switches roles: gateways see one executor leave and another join."""

import asyncio
from typing import Any

import msgspec
import pytest

from omnibus.bus import subjects
from omnibus.bus.messages import BusyReply, ExecutorStatus
from omnibus.bus.role_messages import TAKEN, RoleAssignment
from omnibus.errors import BadRequest, ProblemDetails, from_problem
from omnibus.executor.identity import ExecutorIdentity
from omnibus.executor.loop import Executor
from omnibus.executor.role_switch import RoleSwitch
from omnibus.executor.runner import Job
from omnibus.executor.settings import ExecutorSettings
from tests.unit.executor.arithmetic import Does, Place, call, forever, invocation, number, task
from tests.unit.sidecar.node import NODE, until

SECOND = RoleAssignment("B", "o2", ("forever",))


class Loaded(Does):
    """A runner loaded once for any role: numbers, or endless work."""

    def switch_role(self, component: str, settings: ExecutorSettings) -> Does:
        if component != "forever":
            raise BadRequest(f"{component} was not loaded")
        return Does(forever)


@pytest.fixture
async def switch(here: Place) -> RoleSwitch:
    """The role switch of executor ``a`` of option A, a ``number`` runner."""
    made = await here.executor("a", {"number": number}, option="A")
    loaded: Any = Loaded(number)
    made._runners = {"number": loaded}

    def identify(settings: ExecutorSettings) -> ExecutorIdentity:
        tasks = {task(component): component for component in settings.components.split(",")}
        return ExecutorIdentity("a", "m", settings.option, NODE, tasks, 8, settings.origin)

    found = RoleSwitch(made, ExecutorSettings(model="m", option="A", components="number"), identify, 0.2)
    await found.listen(here.bus)
    return found


async def asked(here: Place, role: RoleAssignment) -> bytes:
    return await here.bus.request(subjects.role_subject("a"), msgspec.json.encode(role), 5.0)


def statuses(here: Place) -> list[tuple[str, str]]:
    return [(each.option, each.state) for each in here.office.events if isinstance(each, ExecutorStatus)]


async def in_role(here: Place, option: str) -> None:
    await until(lambda: here.status("a").option == option and here.status("a").state == "ready")


def numbered() -> dict[str, Any]:
    return {"calls": [call("number", x=3)], "route": ["a"], "outputs": [(0, "y")]}


async def test_it_leaves_as_what_it_was_and_comes_as_what_it_is(here: Place, switch: RoleSwitch):
    executor, before = here.executors["a"], here.executors["a"].runners["number"]

    answer = await asked(here, SECOND)
    await in_role(here, "B")

    seen = statuses(here)
    assert answer == TAKEN
    assert [seen[index] for index in sorted(map(seen.index, {*seen}))][-3:] == [
        ("A", "draining"),
        ("A", "gone"),
        ("B", "ready"),
    ]
    status = here.status("a")
    assert (status.components, status.tasks, status.origin) == (("forever",), (task("forever"),), "o2")
    assert executor.runners["forever"].loaded
    assert before.closed


async def test_it_takes_what_is_of_its_new_role_and_nothing_of_the_old_one(here: Place, switch: RoleSwitch):
    [chunk] = await here.office.done(here.office.send(invocation(**numbered())))
    assert here.office.read(chunk) == [3.0] * 4
    await asked(here, SECOND)
    await in_role(here, "B")

    waits = here.office.send(invocation([call("forever")], ["a"], [(0, "y")]))
    here.office.send(late := invocation(**numbered()))
    await until(lambda: here.status("a").inflight == 1)

    assert not here.office.of(BusyReply, late)  # the server reports that the subject has no listener
    here.office.end(waits)
    await here.emptied()


async def test_work_that_does_not_end_in_time_is_stopped_and_runs_again_elsewhere(here: Place):
    made = await here.executor("a", {"forever": forever}, option="B")
    held = here.office.send(invocation([call("forever")], ["a"], [(0, "y")]))
    await until(lambda: here.status("a").inflight == 1)
    identity = ExecutorIdentity("a", "m", "A", NODE, {task("number"): "number"}, 8)
    runner: Any = Does(number)

    async with asyncio.timeout(10):
        await made.take_role(identity, {"number": runner}, 0.1)

    assert here.status("a").inflight == 0
    assert held.id not in {each.inv for each in here.office.replies if hasattr(each, "problem")}
    await here.office.done(here.office.send(invocation(**numbered())))


@pytest.mark.parametrize(
    ("role", "fault"),
    [
        (RoleAssignment("C", "", ("sing",)), "cannot become sing: sing was not loaded"),
        (RoleAssignment("C", "", ()), "components"),
    ],
)
async def test_a_role_that_it_cannot_serve_is_refused_and_it_stays_what_it_is(
    here: Place, switch: RoleSwitch, role: RoleAssignment, fault: str
):
    if not role.components:
        switch._identify = _needs_components
    error = from_problem(msgspec.json.decode(await asked(here, role), type=ProblemDetails))

    assert isinstance(error, BadRequest)
    assert fault in error.message
    assert here.status("a").state == "ready"
    await here.office.done(here.office.send(invocation(**numbered())))


def _needs_components(settings: ExecutorSettings) -> ExecutorIdentity:
    raise BadRequest("no components")


async def test_while_it_changes_its_role_it_takes_no_other(here: Place):
    opened = asyncio.Event()

    async def gate(job: Job) -> None:
        await opened.wait()
        await job.put("y", {})

    made: Executor = await here.executor("a", {"gate": gate}, option="A")
    here.office.send(invocation([call("gate")], ["a"], [(0, "y")]))
    await until(lambda: here.status("a").inflight == 1)
    made._runners["gate"].switch_role = lambda component, settings: Does(forever)  # type: ignore[attr-defined,index]
    identity = ExecutorIdentity("a", "m", "B", NODE, {task("forever"): "forever"}, 8)
    switch = RoleSwitch(made, ExecutorSettings(model="m"), lambda settings: identity, 30.0)
    await switch.listen(here.bus)

    first, second = await asked(here, SECOND), await asked(here, SECOND)
    opened.set()
    await in_role(here, "B")

    assert first == TAKEN
    assert b'"code":"conflict"' in second
