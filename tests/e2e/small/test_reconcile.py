"""The processes follow the plan while requests run, and no request notices."""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil
import pytest

from omnibus.bus import subjects
from omnibus.plan import ModelPlan, Plan
from omnibus.store import StaleEpoch
from tests.e2e.small.load import QUESTION, keep_busy, list_sent_tasks, make_body, send_chat
from tests.e2e.system import VL, System
from tests.e2e.watch import Watch

pytestmark = pytest.mark.e2e

WITHIN = 60.0  # seconds for executors to come or go
TWIN = "twin"
ON_THE_WAY = 1.6  # seconds of an answer that is on the way when the plan changes, and over before a drain is
STILL_LOOKS = 60  # of 10 ms, less than the silence after which an executor is lost
TRIES = 4
LONG = 3900  # tokens; more than a drain lasts on any machine of today


def executor_id(option: str, replica: int, model: str = VL) -> str:
    return subjects.subject_token(f"{model}-{option}-{replica}")


async def swap_models(system: System, models: Mapping[str, ModelPlan]) -> None:
    """Activate a plan with ``models``."""
    async with system.store() as store:
        while True:
            plan = await store.plan()
            assert plan is not None
            try:
                return await store.swap_plan(msgspec.structs.replace(plan, epoch=plan.epoch + 1, models=dict(models)))
            except StaleEpoch:
                continue


async def read_plan(system: System) -> Plan:
    async with system.store() as store:
        plan = await store.plan()
    assert plan is not None
    return plan


async def thinkers_become(system: System, count: int) -> None:
    """Plan for ``count`` replicas of L."""
    plan = await read_plan(system)
    model = plan.models[VL]
    options = {**model.options, "L": msgspec.structs.replace(model.options["L"], replicas=count)}
    await swap_models(system, {**plan.models, VL: msgspec.structs.replace(model, options=options)})


async def wait_until_ended(*pids: int) -> None:
    """Wait until these processes have ended."""
    async with asyncio.timeout(WITHIN):
        while any(psutil.pid_exists(pid) for pid in pids):
            await asyncio.sleep(0.05)


@pytest.fixture(autouse=True)
async def as_declared(pair: System) -> AsyncIterator[dict[str, int]]:
    """Process id of every executor at the beginning; the plan is the same one afterwards."""
    plan = await read_plan(pair)
    pids = await pair.whole()
    await pair.becomes_ready()
    yield pids
    await swap_models(pair, plan.models)
    await pair.whole()


async def test_replicas_come_and_go_while_requests_run(pair: System, as_declared: dict[str, int]):
    last, middle = executor_id("L", 2), executor_id("L", 1)

    async with keep_busy(pair, [0, 1], path="E>L") as answers:
        await thinkers_become(pair, 3)
        added_pids = await pair.whole(WITHIN, [last])
        await given_work(pair, last)
        await thinkers_become(pair, 1)
        await wait_until_ended(added_pids[last], as_declared[middle])
        await given_work(pair, executor_id("L", 0))
        await thinkers_become(pair, 2)
        back = await pair.whole(WITHIN, [middle])
        await given_work(pair, middle)

    assert len(answers) == 1
    assert back[middle] != as_declared[middle]
    assert await pair.whole() == {**as_declared, **back}
    await pair.ledger_is_empty()


async def given_work(system: System, executor: str) -> None:
    """Wait for the next invocation to ``executor``."""
    async with Watch.on(system) as watch:
        await watch.until(lambda: any(each.to == executor for each in list_sent_tasks(watch)))


@pytest.mark.parametrize(
    ("tokens", "attempts"),
    [
        pytest.param(0, 1, id="may_finish"),
        pytest.param(LONG, 2, id="moves_when_it_takes_too_long"),
    ],
)
async def test_a_request_on_an_executor_that_leaves(pair: System, tokens: int, attempts: int):
    for _ in range(TRIES):
        departure = await let_one_leave(pair, tokens)
        if departure.inflight:
            break
        await thinkers_become(pair, 2)  # its answer was over when the order came: a busy machine takes long to plan
        await pair.whole(WITHIN, [executor_id("L", 1)])
        await pair.becomes_ready()

    one, other = departure.answers
    assert departure.inflight == 1
    assert one == other
    assert departure.attempts == attempts
    assert departure.other_attempts == [1]
    await pair.ledger_is_empty()


class Departure(NamedTuple):
    """An executor that has left: its invocations when it drained, and both answers with the attempts that they took."""

    inflight: int
    answers: list[str]
    attempts: int
    other_attempts: list[int]


async def let_one_leave(pair: System, tokens: int) -> Departure:
    """Ask two executors, and let one of them leave meanwhile."""
    stays, leaves = executor_id("L", 0), executor_id("L", 1)
    pids = await pair.whole()
    request_body = make_body(
        QUESTION.messages[0]["content"], max_tokens=tokens or await measure_tokens(pair), ignore_eos=True
    )

    async with Watch.on(pair) as watch, pair.http() as http:
        asking = [asyncio.create_task(send_chat(http, request_body, "E>L")) for _ in range(2)]
        await watch.until(lambda: {stays, leaves} <= {each.to for each in list_sent_tasks(watch)})
        await watch.until(lambda: all(watch.ids(each.inv) for each in list_sent_tasks(watch)))
        inflight = await order_to_leave(pair, watch, leaves, pids[leaves])
        answers = await asyncio.gather(*asking)
        await wait_until_ended(pids[leaves])

    left = next(each.inv for each in list_sent_tasks(watch) if each.to == leaves)
    last = {each.inv: each.attempt + 1 for each in list_sent_tasks(watch)}
    return Departure(inflight, answers, last.pop(left), list(last.values()))


async def order_to_leave(system: System, watch: Watch, executor: str, pid: int) -> int:
    """Freeze ``executor`` until SIGTERM, while the plan drops it.

    Returns its number of invocations when it drains.

    It resumes briefly for heartbeats, because gateways treat one that is silent for longer as lost.
    """
    waiting, planning = (
        asyncio.create_task(wait_until_draining(system, executor)),
        asyncio.create_task(thinkers_become(system, 1)),
    )
    process = psutil.Process(pid)
    try:
        while not (is_terminating(pid) or waiting.done()):
            process.suspend()
            for _ in range(STILL_LOOKS):
                await asyncio.sleep(0.01)
                if is_terminating(pid):
                    break
            process.resume()
            await beats_or_drains(watch, executor, waiting)
    except psutil.NoSuchProcess:
        pass  # the order came while it ran for a moment, and it has left
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()
    await planning
    return await waiting


async def beats_or_drains(watch: Watch, executor: str, draining: "asyncio.Task[int]") -> None:
    """Wait until ``executor`` sends a heartbeat, or ``draining`` is done: then it sends no more."""
    beat = asyncio.create_task(watch.heartbeat(executor))
    await asyncio.wait([beat, draining], return_when=asyncio.FIRST_COMPLETED)
    beat.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await beat


def is_terminating(pid: int) -> bool:
    """Return True if SIGTERM is pending for a frozen process, or ended it while it ran for a moment."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return True
    pending = next(line.split()[1] for line in lines if line.startswith("ShdPnd:"))
    return bool(int(pending, 16) >> (signal.SIGTERM - 1) & 1)


async def measure_tokens(system: System) -> int:
    """Tokens for which two concurrent answers take ``ON_THE_WAY`` on this machine."""
    request_body = make_body(QUESTION.messages[0]["content"], max_tokens=200, ignore_eos=True)
    async with system.http() as http:
        start = time.monotonic()
        await asyncio.gather(*(send_chat(http, request_body, "E>L") for _ in range(2)))
    return min(2000, max(100, int(200 * ON_THE_WAY / (time.monotonic() - start))))


async def wait_until_draining(system: System, executor: str) -> int:
    """Wait until ``executor`` is draining; return its number of invocations."""
    async with asyncio.timeout(WITHIN), system.bus() as bus, contextlib.aclosing(system.statuses(bus)) as stream:
        async for status in stream:
            if (status.id, status.state) == (executor, "draining"):
                return status.inflight
    raise AssertionError("unreachable")


async def test_a_model_appears_at_every_gateway_and_goes(pair: System, as_declared: dict[str, int]):
    plan = await read_plan(pair)
    twin = executor_id("EL", 0, TWIN)
    lone = plan.models[VL]
    options = {"EL": lone.options["EL"]}
    types = {kind: tuple(path for path in paths if path.name == "EL") for kind, paths in lone.types.items()}
    lone = msgspec.structs.replace(lone, options=options, types=types, tasks={})

    async with keep_busy(pair, [0, 1]) as answers, pair.http(0) as one, pair.http(1) as other:
        await swap_models(pair, {**plan.models, TWIN: lone})
        added_pids = await pair.whole(WITHIN, [twin])
        await pair.becomes_ready()
        texts = [
            await send_chat(http, {**make_body(), "model": model}) for http in (one, other) for model in (TWIN, VL)
        ]
        await swap_models(pair, plan.models)
        await wait_until_ended(added_pids[twin])
        responses = [
            await http.post("/v1/chat/completions", json={**make_body(), "model": TWIN}) for http in (one, other)
        ]

    assert len(set(texts)) == 1
    assert [answer.status_code for answer in responses] == [404, 404]
    assert len(answers) == 1
    assert await pair.whole() == as_declared
