"""Executors that never answer, fall silent, or seem silent to a gateway."""

import asyncio
import time

import msgspec
import pytest

from omnibus.bus.heartbeats import EXECUTOR_SUSPECT_SECONDS
from omnibus.bus.messages import BusyReply
from omnibus.errors import StageUnavailable
from omnibus_gateway.dispatch import failures as failure_detector
from tests.unit.gateway.dispatch.test_moves import check_move
from tests.unit.gateway.world import DispatcherWorld, finish_work
from tests.unit.sidecar.node import wait_until


async def test_an_executor_that_answers_nothing_is_replaced(there: DispatcherWorld, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(failure_detector, "ACCEPT_TIMEOUT_SECONDS", 0.1)
    vision, _, other = await there.puppets_of(e="E", l="L", l2="L")
    running = there.submit()
    await there.turn()
    vision.accept()

    await check_move(there, running, to=other, lost_id="l")


async def test_an_executor_that_has_no_other_beside_it_may_take_longer_to_answer(
    there: DispatcherWorld, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(failure_detector, "ACCEPT_TIMEOUT_SECONDS", 0.0)
    vision, thinker = await there.puppets_of(e="E", l="L")
    running = there.submit()
    await there.turn()

    there.dispatcher._watcher.replace_overdue()
    assert running.failure is None
    assert await finish_work(there, running, vision, thinker, "late") == ["late"]


async def test_an_executor_that_never_answers_fails_the_request(
    there: DispatcherWorld, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(failure_detector, "EXECUTOR_LAST_RESORT_SECONDS", 0.0)
    monkeypatch.setattr(failure_detector, "ACCEPT_TIMEOUT_SECONDS", 0.0)
    await there.puppets_of(e="E", l="L")
    running = there.submit()
    await there.turn()

    there.dispatcher._watcher.replace_overdue()

    assert isinstance(running.failure, StageUnavailable)


async def test_the_next_executor_that_answers_nothing_is_replaced_too(
    there: DispatcherWorld, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(failure_detector, "ACCEPT_TIMEOUT_SECONDS", 0.1)
    vision, _, second = await there.puppets_of(e="E", l="L", l2="L")
    vision.accepts = True
    running = there.submit()
    await there.sent(second)
    monkeypatch.setattr(failure_detector, "ACCEPT_TIMEOUT_SECONDS", 60.0)  # until another executor can take it
    third = await there.puppet("l3", "L")
    third.accepts = True

    monkeypatch.setattr(failure_detector, "ACCEPT_TIMEOUT_SECONDS", 0.1)

    assert (await there.sent(third)).attempt == 2
    assert running.lost == {"l", "l2"}
    assert await finish_work(there, running, vision, third, "fine") == ["fine"]


async def test_an_executor_that_answers_late_in_the_request_is_not_overdue(
    there: DispatcherWorld, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(failure_detector, "POLL_SECONDS", 0.01)
    vision, busy, other = await there.puppets_of(e="E", l="L", l2="L")
    vision.accepts = other.accepts = True
    running = there.submit()
    await there.turn()
    running.invocation = msgspec.structs.replace(running.invocation, created=0.0)  # as if it ran for long

    busy.reply(BusyReply(running.id, "l", 0))
    await there.sent(other)
    there.dispatcher._watcher.replace_overdue()

    assert running.invocation.attempt == 1


async def test_an_executor_that_falls_silent_is_asked_and_replaced(there: DispatcherWorld):
    _, dead, other = await there.puppets_of(e="E", l="L", l2="L")
    running = there.submit()
    await there.turn()
    dead.accept()

    await dead.die()  # without a message

    await check_move(there, running, to=other, lost_id="l")


async def test_asking_executors_that_are_there_moves_nothing(there: DispatcherWorld, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(failure_detector, "EXECUTOR_PROBE_SECONDS", 0.0)  # all of them, at each look
    monkeypatch.setattr(failure_detector, "POLL_SECONDS", 0.01)
    vision, thinker, _ = await there.puppets_of(e="E", l="L", l2="L")
    vision.accepts = thinker.accepts = True
    running = there.submit()
    await there.sent(thinker)

    await asyncio.sleep(0.3)

    assert running.invocation.attempt == 0
    assert await finish_work(there, running, vision, thinker, "fine") == ["fine"]


async def test_an_executor_that_answers_and_then_freezes_is_replaced(
    there: DispatcherWorld, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(failure_detector, "EXECUTOR_LOST_SECONDS", EXECUTOR_SUSPECT_SECONDS)
    _, frozen, other = await there.puppets_of(e="E", l="L", l2="L")
    running = there.submit()
    await there.turn()
    frozen.accept()

    frozen.freeze()

    await check_move(there, running, to=other, lost_id="l")


async def test_a_frozen_executor_that_has_no_other_beside_it_is_waited_for_and_then_named(
    there: DispatcherWorld, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(failure_detector, "EXECUTOR_LOST_SECONDS", EXECUTOR_SUSPECT_SECONDS)
    vision, frozen = await there.puppets_of(e="E", l="L")
    vision.accepts = frozen.accepts = True
    running = there.submit()
    await there.sent(frozen)
    frozen.freeze()
    await wait_until(lambda: "l" in there.members.silent_executors())
    await asyncio.sleep(2 * failure_detector.POLL_SECONDS)
    assert (running.failure, running.invocation.attempt) == (None, 0)

    monkeypatch.setattr(failure_detector, "EXECUTOR_LAST_RESORT_SECONDS", EXECUTOR_SUSPECT_SECONDS)
    await wait_until(lambda: running.failure is not None)

    assert isinstance(running.failure, StageUnavailable)
    assert (running.failure.stage, running.failure.executor) == ("thinker", "l")


async def test_a_gateway_that_was_held_up_itself_takes_nobody_for_frozen(
    there: DispatcherWorld, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(failure_detector, "EXECUTOR_LOST_SECONDS", EXECUTOR_SUSPECT_SECONDS)
    _, thinker, _ = puppets = await there.puppets_of(e="E", l="L", l2="L")
    for puppet in puppets:
        puppet.accepts = True
    running = there.submit()
    await there.sent(thinker)

    time.sleep(EXECUTOR_SUSPECT_SECONDS + 2 * failure_detector.MAX_POLL_DELAY_SECONDS)  # noqa: ASYNC251 nothing here goes on meanwhile
    await asyncio.sleep(2 * failure_detector.POLL_SECONDS)

    assert (running.failure, running.invocation.attempt) == (None, 0)
