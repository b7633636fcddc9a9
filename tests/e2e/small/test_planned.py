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
from omnibus.up.watchdog import find_forked_pid
from tests.e2e.small.load import keep_busy, list_sent_tasks
from tests.e2e.small.test_reconcile import executor_id, wait_until_ended
from tests.e2e.system import VL, System, command_line, replace_text
from tests.e2e.watch import Watch

pytestmark = pytest.mark.e2e

WITHIN = 90.0  # seconds for a change to be made
ATTEMPTS = 3  # to stop an executor before it is ready


class DeclarationOperator:
    """Changes the declarations of a running system."""

    def __init__(self, system: System, store: Store) -> None:
        self.system = system
        self.store = store
        self._file = Path(system.state.directory) / "models.json"
        self.usual: dict[str, Any] = json.loads(self._file.read_text())["models"][VL]

    def declare(self, *paths: list[str], **changes: Any) -> None:
        """Declare only these paths and their options; by default the usual ones."""
        declarations = {**self.usual, **changes}
        if paths:
            option_names = {option for path in paths for option in path}
            declarations["options"] = {
                name: option for name, option in declarations["options"].items() if name in option_names
            }
            declarations["paths"] = [{"options": path, "share": 1} for path in paths]
        replace_text(self._file, json.dumps({"models": {VL: declarations}}))

    def kill_planner(self) -> None:
        command = next(one for one in self.system.commands() if "omnibus_planner" in command_line(one))
        psutil.Process(find_forked_pid(command.pid)).kill()

    async def wait_for_plan(self, *options: str, context: int = 0, thinkers: int = 2) -> Plan:
        """Return the plan once the model matches and no change is pending."""

        def is_reached(model: ModelPlan) -> bool:
            replicas = model.options["L"].replicas if "L" in model.options else thinkers
            return (set(model.options), model.context, replicas) == (set(options), context, thinkers)

        ends = time.monotonic() + WITHIN
        while True:
            plan, state = await self.store.plan(), await self.store.plan_state()
            if plan is not None and is_reached(plan.models[VL]) and not state.staged:
                return plan
            assert time.monotonic() < ends, f"{state}, and no such plan:\n{self.system.log[-6000:]}"
            await asyncio.sleep(0.05)

    async def wait_for_log(self, line: str) -> None:
        """Wait until a process has logged this."""
        ends = time.monotonic() + WITHIN
        while line not in self.system.log:
            assert time.monotonic() < ends, f"nobody said {line!r}:\n{self.system.log[-4000:]}"
            await asyncio.sleep(0.05)


@pytest.fixture
async def operator(pair: System) -> AsyncIterator[DeclarationOperator]:
    await pair.whole()
    await pair.becomes_ready()
    async with pair.store() as store:
        operator = DeclarationOperator(pair, store)
        yield operator
        operator.declare()
        await operator.wait_for_plan(*operator.usual["options"])
    await pair.whole()


async def test_an_option_is_replaced_by_another_one_and_back(pair: System, operator: DeclarationOperator):
    thinker_id, one = executor_id("L", 0), executor_id("EL", 0)

    async with keep_busy(pair, [0, 1]) as answers, Watch.on(pair) as watch:
        pids = await pair.whole()
        operator.declare(["EL"])
        await operator.wait_for_plan("EL")
        await wait_until_ended(pids[thinker_id], pids[executor_id("E", 0)])
        await watch.until(lambda: list_sent_tasks(watch)[-1].to == one)
        operator.declare(["E", "L"])
        apart = await operator.wait_for_plan("E", "L")
        await wait_until_ended(pids[one])
        await watch.until(lambda: list_sent_tasks(watch)[-1].to != one)

    assert len(answers) == 1
    assert first_ready(watch, thinker_id) < first_event(watch, apart.epoch)
    assert all_follow(watch, apart.epoch) < first_state(watch, one, "draining")
    await pair.ledger_is_empty()


async def test_an_operator_goes_back_and_on_by_hand(pair: System, operator: DeclarationOperator):
    (before,) = [each.epoch for each in await operator.store.plan_history(1)]

    async with keep_busy(pair, [0, 1]) as answers:
        operator.declare(["EL"])
        await operator.wait_for_plan("EL")
        back = run_plan_command(pair, "rollback", str(before))
        restored_plan = await operator.wait_for_plan(*operator.usual["options"])
        document = json.loads(run_plan_command(pair, "show", "--json"))
        on = run_plan_command(pair, "resume")
        await operator.wait_for_plan("EL")

    assert f"epoch {before} is pinned" in back
    assert restored_plan.reason == f"rollback to {before}"
    assert (document["plan"]["epoch"], document["pin"]) == (restored_plan.epoch, before)
    assert {each["option"]: each["count"] for each in document["up"]} == {"E": 1, "L": 2, "EL": 1}
    assert f"epoch {before} is no longer pinned" in on
    assert len(answers) == 1


def run_plan_command(system: System, *arguments: str) -> str:
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
    indexes: dict[str, int] = {}
    for index, each in enumerate(watch.seen):
        if each.subject == subjects.event_subject(subjects.GATEWAY):
            status = messages.decode_gateway(each.data)
            if status.epoch == epoch:
                indexes.setdefault(status.id, index)
    assert len(indexes) == 2
    return max(indexes.values())


def first_event(watch: Watch, epoch: int) -> int:
    plans = (
        (index, each) for index, each in enumerate(watch.seen) if each.subject == subjects.event_subject(subjects.PLAN)
    )
    return next(index for index, each in plans if messages.decode_plan_event(each.data).epoch == epoch)


async def test_executors_that_do_otherwise_take_over_under_another_name(pair: System, operator: DeclarationOperator):
    pids = await pair.whole()

    async with keep_busy(pair, [0, 1]) as answers:
        operator.declare(context=2000)
        plan = await operator.wait_for_plan(*operator.usual["options"], context=2000)
        await wait_until_ended(*pids.values())
        news = {f"{id}-{plan.models[VL].option_origin(id.split('-')[-2])[:4]}" for id in pids}
        await pair.whole(only=sorted(news))

    assert len(answers) == 1


@contextlib.asynccontextmanager
async def freeze_executor(system: System, id: str) -> AsyncIterator[psutil.Process]:
    """Freeze an executor's process as soon as it has started."""
    async with asyncio.timeout(WITHIN):
        while (process := find_process(system, id)) is None or not (pid := executing_pid(process)):
            await asyncio.sleep(0.001)
    fork = psutil.Process(pid)
    for each in (fork, process):
        each.send_signal(signal.SIGSTOP)
    try:
        yield process
    finally:
        for each in (fork, process):
            each.send_signal(signal.SIGCONT)


def executing_pid(process: psutil.Process) -> int:
    """Process that ``process`` represents, or itself; 0 until it is forked."""
    forked_pid = find_forked_pid(process.pid)
    stands_for_another = any(part.endswith("up/fork_client.py") for part in command_line(process))
    return 0 if stands_for_another and forked_pid == process.pid else forked_pid


def find_process(system: System, id: str) -> psutil.Process | None:
    for process in system.commands():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("OMNIBUS_EXECUTOR_ID") == id:
                return process
    return None


@contextlib.asynccontextmanager
async def killed_midway(operator: DeclarationOperator, options: dict[str, Any], id: str) -> AsyncIterator[Plan]:
    """Plan that waits for the frozen executor ``id``; the planner is killed.

    On a busy machine the executor may be ready, and its plan active, before it is frozen. Then the change is reverted
    first.
    """
    for _ in range(ATTEMPTS):
        operator.declare(options=options)
        async with freeze_executor(operator.system, id) as process:
            operator.kill_planner()
            plan = await operator.store.staged_plan()
            if plan is not None:
                yield plan
                assert process.is_running()
                return
        await operator.wait_for_plan(*operator.usual["options"], thinkers=3)
        operator.declare()
        await operator.wait_for_plan(*operator.usual["options"])
        await wait_until_ended(process.pid)
    raise AssertionError(f"{id} was ready {ATTEMPTS} times before it was stopped")


async def test_a_planner_that_is_killed_in_the_middle_of_a_change_goes_on_with_it(
    pair: System, operator: DeclarationOperator
):
    third = executor_id("L", 2)
    options = {**operator.usual["options"], "L": {**operator.usual["options"]["L"], "replicas": 3}}

    async with keep_busy(pair, [0, 1], path="E>L") as answers:
        async with killed_midway(operator, options, third) as before:
            await operator.wait_for_log(f"plan epoch {before.epoch} (declarations changed) is staged already")
            next_plan = await operator.store.staged_plan()
        plan = await operator.wait_for_plan(*operator.usual["options"], thinkers=3)
        await pair.whole(only=[third])

    assert next_plan == before
    assert plan.models == before.models
    assert plan.epoch == before.epoch
    assert len(answers) == 1
