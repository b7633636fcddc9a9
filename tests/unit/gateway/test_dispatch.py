"""Dispatch: what is sent, what comes back, and what moves when an executor refuses, dies or falls silent."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from omnibus.bus import subjects
from omnibus.bus.messages import Busy, Chunk, Failed
from omnibus.errors import BusUnavailable, Overloaded, Problem, StageFailed, StageUnavailable, TooLarge
from services.gateway import dispatch
from services.gateway.dispatch import ATTEMPTS
from services.gateway.running import Running
from tests.unit.gateway.world import Puppet, World, texts, world
from tests.unit.sidecar.node import until


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path) as made:
        yield made


async def finish(there: World, running: Running, vision: Puppet, thinker: Puppet, *words: str) -> list[str]:
    """Both executors do their part; returns what the client read."""
    await there.sent(thinker)
    vision.reply(vision.hop(0))
    chunks = [thinker.chunk(seq, word) for seq, word in enumerate(words)]
    thinker.reply(*chunks, thinker.chunk(len(words), last=True), thinker.hop(1))
    await there.turn()
    found = texts(running)
    there.dispatcher.finish(running, "done")
    return found


# The usual way


async def test_an_invocation_goes_at_once_and_once_to_each_executor(there: World):
    vision, thinker = await there.puppets_of(e="E", l="L")

    running = there.submit()
    await there.turn()

    assert [len(puppet.taken) for puppet in (vision, thinker)] == [1, 1]
    assert vision.taken == thinker.taken == [running.invocation]
    assert running.invocation.route == ("e", "l")
    assert there.dispatcher.inflight == 1


async def test_an_executor_of_several_nodes_gets_it_once(there: World):
    [both] = await there.puppets_of(both="EL")

    there.submit()
    await there.turn()

    assert len(both.taken) == 1
    assert both.taken[0].route == ("both", "both")


async def test_work_counts_from_dispatch_until_each_node_is_done(there: World):
    vision, thinker = await there.puppets_of(e="E", l="L")
    running = there.submit()
    assert there.outstanding() == {"e": 10, "l": 100}
    await there.turn()

    vision.reply(vision.hop(0))
    await there.turn()
    assert there.outstanding() == {"e": 0, "l": 100}
    assert not running.reported

    thinker.reply(thinker.hop(1))
    await there.turn()
    assert there.outstanding() == {"e": 0, "l": 0}
    assert running.reported


async def test_the_answer_arrives_and_everything_returns_to_zero(there: World):
    vision, thinker = await there.puppets_of(e="E", l="L")
    running = there.submit()

    assert await finish(there, running, vision, thinker, "to", "be") == ["to", "be"]

    await there.turn()
    assert there.outstanding() == {"e": 0, "l": 0}
    assert there.dispatcher.inflight == 0
    assert [(end.inv, end.status) for end in there.ends] == [(running.id, "done")]


async def test_an_end_is_published_once_however_often_it_is_asked_for(there: World):
    _, thinker = await there.puppets_of(e="E", l="L")
    running = there.submit()
    await there.turn()

    for status in ("cancelled", "failed", "done"):
        there.dispatcher.finish(running, status)
    await there.turn()

    assert [end.status for end in there.ends] == ["cancelled"]
    assert [end.status for end in thinker.ends] == ["cancelled"]
    assert there.outstanding() == {"e": 0, "l": 0}


async def test_replies_to_what_is_over_or_unknown_are_dropped(there: World):
    _, thinker = await there.puppets_of(e="E", l="L")
    running = there.submit()
    await there.turn()
    there.dispatcher.finish(running, "cancelled")

    thinker.reply(thinker.chunk(0, "late"), thinker.hop(1))
    there.bus.publish(there.dispatcher.reply, b"nonsense")
    await there.turn()

    assert texts(running) == []
    assert running.hops == {}
    assert there.outstanding() == {"e": 0, "l": 0}


async def test_what_is_too_large_to_send_leaves_nothing_behind(there: World):
    await there.puppets_of(e="E", l="L")

    with pytest.raises(TooLarge):
        there.submit(text="x" * 70_000)

    assert there.dispatcher.inflight == 0
    assert there.outstanding() == {"e": 0, "l": 0}


# The end waits for the last times


async def test_an_answer_that_is_whole_ends_when_all_times_are_there(there: World):
    vision, thinker = await there.puppets_of(e="E", l="L")
    running = there.submit()
    await there.turn()
    thinker.reply(thinker.hop(1))
    await there.turn()
    then: list[int] = []

    there.dispatcher.complete(running, lambda: then.append(len(running.hops)))
    assert (then, running.over) == ([], False)
    vision.reply(vision.hop(0))
    await there.turn()

    assert (then, running.over) == ([2], True)


async def test_times_that_never_come_are_not_waited_for(there: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dispatch, "SETTLE", 0.02)
    await there.puppets_of(e="E", l="L")
    running = there.submit()
    then: list[str] = []

    there.dispatcher.complete(running, lambda: then.append("ended"))
    await until(lambda: running.over)

    assert then == ["ended"]
    assert there.outstanding() == {"e": 0, "l": 0}


async def test_an_answer_that_is_whole_is_not_run_again_when_an_executor_dies(there: World):
    _, thinker, other = await there.puppets_of(e="E", l="L", l2="L")
    running = there.submit()
    await there.turn()
    thinker.reply(thinker.chunk(0, "done", last=True))
    await there.turn()
    then: list[int] = []
    there.dispatcher.complete(running, lambda: then.append(running.invocation.attempt))

    thinker.say("gone")
    await until(lambda: bool(then))

    assert then == [0]
    assert other.taken == []


async def test_idle_waits_for_the_last_invocation_but_not_for_ever(there: World):
    await there.puppets_of(e="E", l="L")
    await asyncio.wait_for(there.dispatcher.idle(60), 1)
    running = there.submit()

    await asyncio.wait_for(there.dispatcher.idle(0.02), 5)
    assert there.dispatcher.inflight == 1
    waiting = asyncio.ensure_future(there.dispatcher.idle(60))
    await there.turn()
    there.dispatcher.finish(running, "done")

    await asyncio.wait_for(waiting, 5)


async def test_shutting_down_cancels_what_is_in_flight(there: World):
    _, thinker = await there.puppets_of(e="E", l="L")
    there.submit()
    await there.turn()

    await there.dispatcher.shutdown()
    await there.turn()

    assert [end.status for end in thinker.ends] == ["cancelled"]
    assert there.dispatcher.inflight == 0


# Moving


async def moved(there: World, running: Running, *, to: Puppet, lost: str) -> None:
    """The second attempt is with ``to``; its whole answer reaches the client."""
    again = await there.sent(to)
    assert (again.id, again.attempt) == (running.id, 1)
    assert lost not in again.route
    vision = there.puppets[again.route[0]]
    assert await finish(there, running, vision, to, "fine") == ["fine"]
    assert set(there.outstanding().values()) == {0}
    await there.turn()
    assert [end.status for end in there.ends] == ["moved", "done"]


async def test_where_nobody_listens_it_moves(there: World):
    _, dead, other = await there.puppets_of(e="E", l="L", l2="L")
    await dead.die()

    running = there.submit()

    await moved(there, running, to=other, lost="l")
    assert there.members.get("l") is None


async def test_from_a_busy_executor_it_moves(there: World):
    _, busy, other = await there.puppets_of(e="E", l="L", l2="L")
    running = there.submit()
    await there.turn()

    busy.reply(Busy(running.id, "l", 0, 2.0))

    await moved(there, running, to=other, lost="l")
    assert busy.ends[0].status == "moved"


async def test_without_a_planned_executor_it_moves_to_another_path(there: World):
    _, busy, both = await there.puppets_of(e="E", l="L", both="EL")
    running = there.submit()
    await there.turn()

    busy.reply(Busy(running.id, "l", 0))

    await moved(there, running, to=both, lost="l")
    assert (running.invocation.path, running.invocation.options) == ("EL", ("EL", "EL"))


async def test_when_all_are_busy_the_client_is_told_when_to_come_back(there: World):
    _, first, second = await there.puppets_of(e="E", l="L", l2="L")
    running = there.submit()
    await there.turn()
    first.reply(Busy(running.id, "l", 0, 2.0))
    await there.sent(second)
    second.reply(Busy(running.id, "l2", 1, 3.0))
    await there.turn()

    with pytest.raises(Overloaded) as caught:
        texts(running)

    assert (caught.value.status, caught.value.retry_after) == (429, 3.0)


async def test_from_an_executor_that_says_it_leaves_it_moves(there: World):
    _, leaving, other = await there.puppets_of(e="E", l="L", l2="L")
    running = there.submit()
    await there.turn()
    leaving.accept()

    leaving.say("gone")

    await moved(there, running, to=other, lost="l")


async def test_from_an_executor_that_others_call_gone_it_moves(there: World):
    _, _, other = await there.puppets_of(e="E", l="L", l2="L")
    running = there.submit()
    await there.turn()

    there.bus.publish(subjects.event(subjects.GONE), b"l")

    await moved(there, running, to=other, lost="l")


async def test_when_the_last_executor_is_gone_the_stage_is_named(there: World):
    _, dead = await there.puppets_of(e="E", l="L")
    running = there.submit()
    await there.turn()

    dead.say("gone")
    await there.turn()

    with pytest.raises(StageUnavailable) as caught:
        texts(running)
    assert caught.value.stage == "thinker"


async def test_an_executor_that_has_done_its_part_may_leave(there: World):
    vision, thinker, _ = await there.puppets_of(e="E", l="L", e2="E")
    running = there.submit()
    await there.turn()
    vision.reply(vision.hop(0))
    await there.turn()

    vision.say("gone")
    await there.turn()

    assert running.invocation.attempt == 0
    assert len(thinker.taken) == 1


async def test_an_executor_that_answers_nothing_is_replaced(there: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dispatch, "ACCEPT", 0.1)
    vision, _, other = await there.puppets_of(e="E", l="L", l2="L")
    running = there.submit()
    await there.turn()
    vision.accept()

    await moved(there, running, to=other, lost="l")


async def test_an_executor_that_falls_silent_is_asked_and_replaced(there: World):
    _, dead, other = await there.puppets_of(e="E", l="L", l2="L")
    running = there.submit()
    await there.turn()
    dead.accept()

    await dead.die()  # without a word

    await moved(there, running, to=other, lost="l")


async def test_what_the_client_has_is_not_sent_again(there: World):
    vision, dying, other = await there.puppets_of(e="E", l="L", l2="L")
    running = there.submit()
    await there.turn()
    dying.reply(dying.chunk(0, "to"), dying.chunk(1, "be"))
    await there.turn()
    assert texts(running) == ["to", "be"]

    dying.say("gone")

    await there.sent(other)
    assert await finish(there, running, vision, other, "to", "be", "or", "not") == ["or", "not"]


async def test_replies_of_an_earlier_attempt_are_dropped(there: World):
    vision, first, second = await there.puppets_of(e="E", l="L", l2="L")
    running = there.submit()
    await there.turn()
    first.reply(Busy(running.id, "l", 0))
    await there.sent(second)

    first.reply(first.chunk(0, "stale"), first.hop(1), Busy(running.id, "l", 0))
    await there.turn()

    assert running.invocation.attempt == 1
    assert await finish(there, running, vision, second, "fresh") == ["fresh"]


async def test_a_lost_chunk_runs_the_invocation_again(there: World):
    vision, thinker = await there.puppets_of(e="E", l="L")
    running = there.submit()
    await there.turn()
    thinker.reply(thinker.chunk(0, "a"), thinker.chunk(2, "c"))

    assert (await there.sent(thinker, 2)).attempt == 1
    assert await finish(there, running, vision, thinker, "a", "b", "c") == ["a", "b", "c"]


async def test_an_invocation_takes_so_many_routes_and_no_more(there: World):
    puppets = [await there.puppet(f"l{number}", "L") for number in range(ATTEMPTS + 2)]
    await there.puppet("e", "E")
    running = there.submit()
    for number in range(ATTEMPTS):
        taken = next(puppet for puppet in puppets if puppet.id == running.invocation.route[1])
        await there.sent(taken)
        taken.reply(Busy(running.id, taken.id, number))
        await there.turn()

    assert isinstance(running.failure, Overloaded)
    assert sum(len(puppet.taken) for puppet in puppets) == ATTEMPTS


# Failures


async def test_a_failed_node_fails_the_answer_with_stage_and_executor(there: World):
    _, thinker = await there.puppets_of(e="E", l="L")
    running = there.submit()
    await there.turn()
    problem = Problem("stage_failed", "thinker broke", "thinker", "l", "", 0)

    thinker.reply(thinker.chunk(0, "half"), Failed(running.id, 1, problem))
    await there.turn()

    assert texts(running) == ["half"]
    with pytest.raises(StageFailed) as caught:
        texts(running)
    assert caught.value.problem() == problem
    assert running.invocation.attempt == 0


@pytest.mark.parametrize("code", ["stale_handle", "protocol_error", "sequence_gap"])
async def test_what_another_try_may_mend_is_tried_again_but_not_for_ever(there: World, code: str):
    _, thinker = await there.puppets_of(e="E", l="L")
    running = there.submit()
    for attempt in range(ATTEMPTS):
        await there.sent(thinker, attempt + 1)
        assert running.failure is None
        thinker.reply(Failed(running.id, 1, Problem(code, "gone"), attempt))
        await there.turn()

    assert running.failure is not None
    assert running.failure.code == code
    assert len(thinker.taken) == ATTEMPTS


async def test_an_array_that_was_freed_fails_the_answer(there: World):
    _, thinker = await there.puppets_of(e="E", l="L")
    running = there.submit()
    handle = await there.put(running.id, 1.0, 2.0)
    there.tensors.end(running.id)
    await there.blocks()

    thinker.reply(Chunk(running.id, 1, "said", 0, handle=handle))
    await there.turn()

    assert running.failure is not None
    assert running.failure.code == "stale_handle"


async def test_without_a_sidecar_an_array_fails_the_answer_at_once(there: World):
    _, thinker = await there.puppets_of(e="E", l="L")
    running = there.submit()
    handle = await there.put(running.id, 1.0, 2.0)
    await there.sidecar.stop()
    await until(lambda: not there.tensors.connected)

    thinker.reply(Chunk(running.id, 1, "said", 0, handle=handle))
    await there.turn()

    assert running.failure is not None
    assert running.failure.status == 503


async def test_an_array_is_read_and_its_memory_given_back(there: World):
    _, thinker = await there.puppets_of(e="E", l="L")
    running = there.submit()
    await there.turn()

    thinker.reply(Chunk(running.id, 1, "said", 0, handle=await there.put(running.id, 1.0, 2.0)))
    await there.turn()

    [item] = running.streams[1, "said"].take()
    assert item.array is not None
    assert item.array.tolist() == [1.0, 2.0]
    assert await there.blocks() == 0


# The bus goes away


async def test_after_a_reconnect_what_is_in_flight_runs_again(there: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dispatch, "RETURN", 0.05)
    vision, thinker = await there.puppets_of(e="E", l="L")
    running = there.submit()
    await there.turn()
    thinker.reply(thinker.chunk(0, "to"))
    await there.turn()
    assert texts(running) == ["to"]

    there.bus.reconnects += 1

    assert (await there.sent(thinker, 2)).attempt == 1
    assert await finish(there, running, vision, thinker, "to", "be") == ["be"]


async def test_a_bus_that_goes_away_again_and_again_is_said(there: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dispatch, "RETURN", 0.0)
    monkeypatch.setattr(dispatch, "WATCH", 0.01)
    _, thinker = await there.puppets_of(e="E", l="L")
    running = there.submit()

    for attempt in range(ATTEMPTS):
        await there.sent(thinker, attempt + 1)
        there.bus.reconnects += 1
        await until(lambda now=attempt: running.invocation.attempt > now or running.failure is not None)

    assert isinstance(running.failure, BusUnavailable)


async def test_a_move_that_cannot_be_sent_fails_its_invocation_alone(tmp_path: Path):
    async with world(tmp_path, limit=1200) as there:
        _, dead = await there.puppets_of(e="E", l="L")
        await there.puppet("a-name-that-is-much-longer-" + "x" * 200, "L")
        running = there.submit(text="y" * (1200 - 700))
        await there.turn()
        room = 1200 - len(running.body)
        assert 0 <= room < 200, f"{room} bytes of room: the second attempt must not fit"

        await dead.die()  # noticed by the watcher, which has to live on
        await until(lambda: running.failure is not None)

        assert isinstance(running.failure, TooLarge)
        there.dispatcher.finish(running, "failed")
        assert set(there.outstanding().values()) == {0}
        assert there.dispatcher._watcher is not None
        assert not there.dispatcher._watcher.done()
