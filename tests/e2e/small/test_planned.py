"""Declarations change during requests without a failure.

The steps are start, ready, switch, drain and stop.
"""

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from omnibus.bus import messages, subjects
from omnibus.plan import ModelPlan, Plan
from omnibus.store import Store
from omnibus.up.motion import find_forked_pid
from tests.e2e.small.load import busy, sent
from tests.e2e.small.test_reconcile import ended, executor
from tests.e2e.system import VL, System, command_line, replace_text
from tests.e2e.watch import Watch

pytestmark = pytest.mark.e2e

WITHIN = 90.0  # seconds for a change to be made
ATTEMPTS = 3  # to stop an executor before it is ready


class Operator:
    """Changes the declarations of a running system."""

    def __init__(self, system: System, store: Store) -> None:
        self.system = system
        self.store = store
        self._file = Path(system.state.directory) / "models.json"
        self.usual: dict[str, Any] = json.loads(self._file.read_text())["models"][VL]

    def declare(self, *paths: list[str], **changes: Any) -> None:
        """Declare only these paths and their options; by default the usual ones."""
        declared = {**self.usual, **changes}
        if paths:
            named = {option for path in paths for option in path}
            declared["options"] = {name: option for name, option in declared["options"].items() if name in named}
            declared["paths"] = [{"options": path, "share": 1} for path in paths]
        replace_text(self._file, json.dumps({"models": {VL: declared}}))

    def kill_planner(self) -> None:
        command = next(one for one in self.system.commands() if "omnibus_planner" in command_line(one))
        psutil.Process(find_forked_pid(command.pid)).kill()

    async def planned(self, *options: str, context: int = 0, thinkers: int = 2) -> Plan:
        """Return the plan once the model matches and no change is pending."""

        def reached(model: ModelPlan) -> bool:
            replicas = model.options["L"].replicas if "L" in model.options else thinkers
            return (set(model.options), model.context, replicas) == (set(options), context, thinkers)

        ends = time.monotonic() + WITHIN
        while True:
            plan, state = await self.store.plan(), await self.store.plan_state()
            if plan is not None and reached(plan.models[VL]) and not state.staged:
                return plan
            assert time.monotonic() < ends, f"{state}, and no such plan:\n{self.system.log[-6000:]}"
            await asyncio.sleep(0.05)

    async def said(self, line: str) -> None:
        """Wait until a process has logged this."""
        ends = time.monotonic() + WITHIN
        while line not in self.system.log:
            assert time.monotonic() < ends, f"nobody said {line!r}:\n{self.system.log[-4000:]}"
            await asyncio.sleep(0.05)


@pytest.fixture
async def operator(pair: System) -> AsyncIterator[Operator]:
    await pair.whole()
    await pair.becomes_ready()
    async with pair.store() as store:
        operator = Operator(pair, store)
        yield operator
        operator.declare()
        await operator.planned(*operator.usual["options"])
    await pair.whole()


async def test_an_option_is_replaced_by_another_one_and_back(pair: System, operator: Operator):
    both, one = executor("L", 0), executor("EL", 0)

    async with busy(pair, [0, 1]) as answers, Watch.on(pair) as watch:
        pids = await pair.whole()
        operator.declare(["EL"])
        await operator.planned("EL")
        await ended(pids[both], pids[executor("E", 0)])
        await watch.until(lambda: sent(watch)[-1].to == one)
        operator.declare(["E", "L"])
        apart = await operator.planned("E", "L")
        await ended(pids[one])
        await watch.until(lambda: sent(watch)[-1].to != one)

    assert len(answers) == 1
    assert first_ready(watch, both) < first_event(watch, apart.epoch)
    assert all_follow(watch, apart.epoch) < first_state(watch, one, "draining")
    await pair.ledger_is_empty()


async def test_an_operator_goes_back_and_on_by_hand(pair: System, operator: Operator):
    (before,) = [each.epoch for each in await operator.store.plan_history(1)]

    async with busy(pair, [0, 1]) as answers:
        operator.declare(["EL"])
        await operator.planned("EL")
        back = said(pair, "rollback", str(before))
        rolled = await operator.planned(*operator.usual["options"])
        shown = json.loads(said(pair, "show", "--json"))
        on = said(pair, "resume")
        await operator.planned("EL")

    assert f"epoch {before} is pinned" in back
    assert rolled.reason == f"rollback to {before}"
    assert (shown["plan"]["epoch"], shown["pin"]) == (rolled.epoch, before)
    assert {each["option"]: each["count"] for each in shown["up"]} == {"E": 1, "L": 2, "EL": 1}
    assert f"epoch {before} is no longer pinned" in on
    assert len(answers) == 1


def said(system: System, *arguments: str) -> str:
    """Output of ``omnibus plan ...``."""
    process = system.command("plan", *arguments)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    return output


def first_ready(watch: Watch, id: str) -> int:
    """Index of an executor's first ready status after its namesake was gone."""
    return first_state(watch, id, "ready", first_gone(watch, id))


def first_gone(watch: Watch, id: str) -> int:
    return first_state(watch, id, "gone")


def first_state(watch: Watch, id: str, state: str, after: int = 0) -> int:
    for index, each in enumerate(watch.seen[after:], after):
        if each.subject == subjects.event_subject(subjects.EXECUTOR):
            status = messages.decode_status(each.data)
            if (status.id, status.state) == (id, state):
                return index
    raise AssertionError(f"{id} was never {state}")


def all_follow(watch: Watch, epoch: int) -> int:
    """Index at which the last gateway first reported the plan of ``epoch``."""
    found: dict[str, int] = {}
    for index, each in enumerate(watch.seen):
        if each.subject == subjects.event_subject(subjects.GATEWAY):
            status = messages.decode_gateway(each.data)
            if status.epoch == epoch:
                found.setdefault(status.id, index)
    assert len(found) == 2
    return max(found.values())


def first_event(watch: Watch, epoch: int) -> int:
    plans = (
        (index, each) for index, each in enumerate(watch.seen) if each.subject == subjects.event_subject(subjects.PLAN)
    )
    return next(index for index, each in plans if messages.decode_plan_event(each.data).epoch == epoch)


async def test_executors_that_do_otherwise_take_over_under_another_name(pair: System, operator: Operator):
    pids = await pair.whole()

    async with busy(pair, [0, 1]) as answers:
        operator.declare(context=2000)
        plan = await operator.planned(*operator.usual["options"], context=2000)
        await ended(*pids.values())
        news = {f"{id}-{plan.models[VL].option_origin(id.split('-')[-2])[:4]}" for id in pids}
        await pair.whole(only=sorted(news))

    assert len(answers) == 1


@contextlib.asynccontextmanager
async def stopped(system: System, id: str) -> AsyncIterator[psutil.Process]:
    """Freeze an executor's process as soon as it has started."""
    async with asyncio.timeout(WITHIN):
        while (process := born(system, id)) is None or not (pid := executing_pid(process)):
            await asyncio.sleep(0.001)
    forked = psutil.Process(pid)
    for each in (forked, process):
        each.send_signal(signal.SIGSTOP)
    try:
        yield process
    finally:
        for each in (forked, process):
            each.send_signal(signal.SIGCONT)


def executing_pid(process: psutil.Process) -> int:
    """Process that ``process`` represents, or itself; 0 until it is forked."""
    forked = find_forked_pid(process.pid)
    stands_for_another = any(part.endswith("up/fork_client.py") for part in command_line(process))
    return 0 if stands_for_another and forked == process.pid else forked


def born(system: System, id: str) -> psutil.Process | None:
    for process in system.commands():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("OMNIBUS_EXECUTOR_ID") == id:
                return process
    return None


@contextlib.asynccontextmanager
async def killed_midway(operator: Operator, options: dict[str, Any], id: str) -> AsyncIterator[Plan]:
    """Plan that waits for the frozen executor ``id``; the planner is killed.

    On a busy machine the executor may be ready, and its plan active, before it is frozen. Then the change is reverted
    first.
    """
    for _ in range(ATTEMPTS):
        operator.declare(options=options)
        async with stopped(operator.system, id) as process:
            operator.kill_planner()
            plan = await operator.store.staged_plan()
            if plan is not None:
                yield plan
                assert process.is_running()
                return
        await operator.planned(*operator.usual["options"], thinkers=3)
        operator.declare()
        await operator.planned(*operator.usual["options"])
        await ended(process.pid)
    raise AssertionError(f"{id} was ready {ATTEMPTS} times before it was stopped")


async def test_a_planner_that_is_killed_in_the_middle_of_a_change_goes_on_with_it(pair: System, operator: Operator):
    third = executor("L", 2)
    options = {**operator.usual["options"], "L": {**operator.usual["options"]["L"], "replicas": 3}}

    async with busy(pair, [0, 1], path="E>L") as answers:
        async with killed_midway(operator, options, third) as before:
            await operator.said(f"plan epoch {before.epoch} (declarations changed) is staged already")
            resumed = await operator.store.staged_plan()
        plan = await operator.planned(*operator.usual["options"], thinkers=3)
        await pair.whole(only=[third])

    assert resumed == before
    assert plan.models == before.models
    assert plan.epoch == before.epoch
    assert len(answers) == 1
