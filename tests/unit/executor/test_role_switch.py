"""An executor that switches roles: gateways see one executor leave and another join."""

import asyncio
from typing import Any

import msgspec
import pytest

from omnibus.bus import subjects
from omnibus.bus.messages import BusyReply, ExecutorStatus
from omnibus.bus.role_messages import TAKEN, RoleAssignment
from omnibus.errors import BadRequest, ProblemDetails, from_problem
from omnibus.executor.loop import Executor
from omnibus.executor.runner import Job
from omnibus.executor.service import RoleSwitch
from omnibus.executor.settings import ExecutorSettings
from omnibus.executor.status import ExecutorIdentity
from tests.unit.executor.arithmetic import Does, Place, make_call, make_invocation, put_number, task_name, wait_forever
from tests.unit.sidecar.node import NODE, wait_until

SECOND = RoleAssignment("B", "o2", ("forever",))


class Loaded(Does):
    """A runner loaded once for any role: numbers, or endless work."""

    def switch_role(self, component: str, settings: ExecutorSettings) -> Does:
        if component != "forever":
            raise BadRequest(f"{component} was not loaded")
        return Does(wait_forever)


@pytest.fixture
async def switch(here: Place) -> RoleSwitch:
    """The role switch of executor ``a`` of option A, a ``number`` runner."""
    new_executor = await here.executor("a", {"number": put_number}, option="A")
    runner: Any = Loaded(put_number)
    new_executor._runners = {"number": runner}

    def make_identity(settings: ExecutorSettings) -> ExecutorIdentity:
        tasks = {task_name(component): component for component in settings.components.split(",")}
        return ExecutorIdentity("a", "m", settings.option, NODE, tasks, 8, settings.origin)

    role_switch = RoleSwitch(
        new_executor, ExecutorSettings(model="m", option="A", components="number"), make_identity, 0.2
    )
    await role_switch.listen(here.bus)
    return role_switch


async def request_role(here: Place, role: RoleAssignment) -> bytes:
    return await here.bus.request(subjects.role_subject("a"), msgspec.json.encode(role), 5.0)


def list_statuses(here: Place) -> list[tuple[str, str]]:
    return [(each.option, each.state) for each in here.office.events if isinstance(each, ExecutorStatus)]


async def in_role(here: Place, option: str) -> None:
    await wait_until(lambda: here.status("a").option == option and here.status("a").state == "ready")


def number_request() -> dict[str, Any]:
    return {"calls": [make_call("number", x=3)], "route": ["a"], "outputs": [(0, "y")]}


async def test_it_leaves_as_what_it_was_and_comes_as_what_it_is(here: Place, switch: RoleSwitch):
    executor, before = here.executors["a"], here.executors["a"].runners["number"]

    answer = await request_role(here, SECOND)
    await in_role(here, "B")

    states = list_statuses(here)
    assert answer == TAKEN
    assert [states[index] for index in sorted(map(states.index, {*states}))][-3:] == [
        ("A", "draining"),
        ("A", "gone"),
        ("B", "ready"),
    ]
    status = here.status("a")
    assert (status.components, status.tasks, status.origin) == (("forever",), (task_name("forever"),), "o2")
    assert executor.runners["forever"].loaded
    assert before.closed


async def test_it_takes_what_is_of_its_new_role_and_nothing_of_the_old_one(here: Place, switch: RoleSwitch):
    [chunk] = await here.office.done(here.office.send(make_invocation(**number_request())))
    assert here.office.read(chunk) == [3.0] * 4
    await request_role(here, SECOND)
    await in_role(here, "B")

    waits = here.office.send(make_invocation([make_call("forever")], ["a"], [(0, "y")]))
    here.office.send(late := make_invocation(**number_request()))
    await wait_until(lambda: here.status("a").inflight == 1)

    assert not here.office.of(BusyReply, late)  # the server reports that the subject has no listener
    here.office.end(waits)
    await here.emptied()


async def test_work_that_does_not_end_in_time_is_stopped_and_runs_again_elsewhere(here: Place):
    new_executor = await here.executor("a", {"forever": wait_forever}, option="B")
    request = here.office.send(make_invocation([make_call("forever")], ["a"], [(0, "y")]))
    await wait_until(lambda: here.status("a").inflight == 1)
    identity = ExecutorIdentity("a", "m", "A", NODE, {task_name("number"): "number"}, 8)
    runner: Any = Does(put_number)

    async with asyncio.timeout(10):
        await new_executor.take_role(identity, {"number": runner}, 0.1)

    assert here.status("a").inflight == 0
    assert request.id not in {each.inv for each in here.office.replies if hasattr(each, "problem")}
    await here.office.done(here.office.send(make_invocation(**number_request())))


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
    error = from_problem(msgspec.json.decode(await request_role(here, role), type=ProblemDetails))

    assert isinstance(error, BadRequest)
    assert fault in error.message
    assert here.status("a").state == "ready"
    await here.office.done(here.office.send(make_invocation(**number_request())))


def _needs_components(settings: ExecutorSettings) -> ExecutorIdentity:
    raise BadRequest("no components")


async def test_while_it_changes_its_role_it_takes_no_other(here: Place):
    gate_event = asyncio.Event()

    async def wait_at_gate(job: Job) -> None:
        await gate_event.wait()
        await job.put("y", {})

    new_executor: Executor = await here.executor("a", {"gate": wait_at_gate}, option="A")
    here.office.send(make_invocation([make_call("gate")], ["a"], [(0, "y")]))
    await wait_until(lambda: here.status("a").inflight == 1)
    new_executor._runners["gate"].switch_role = lambda component, settings: Does(wait_forever)  # type: ignore[attr-defined,index]
    identity = ExecutorIdentity("a", "m", "B", NODE, {task_name("forever"): "forever"}, 8)
    switch = RoleSwitch(new_executor, ExecutorSettings(model="m"), lambda settings: identity, 30.0)
    await switch.listen(here.bus)

    first, second = await request_role(here, SECOND), await request_role(here, SECOND)
    gate_event.set()
    await in_role(here, "B")

    assert first == TAKEN
    assert b'"code":"conflict"' in second
