"""Invocations move when an executor refuses, leaves or dies. They also move after a bus outage."""

from pathlib import Path
from typing import Any

import pytest

from omnibus.bus import subjects
from omnibus.bus.messages import BusyReply, NodeFailed
from omnibus.errors import BusUnavailable, Overloaded, ProblemDetails, StageUnavailable, TooLarge
from omnibus.plan import Plan
from omnibus_gateway.dispatch import failures as failure_detector
from omnibus_gateway.dispatch.dispatcher import MAX_ATTEMPTS
from omnibus_gateway.dispatch.inflight import InflightInvocation
from tests.unit.gateway.world import DispatcherWorld, Puppet, finish_work, open_dispatcher_world, take_texts
from tests.unit.sidecar.node import wait_until


async def check_move(there: DispatcherWorld, running: InflightInvocation, *, to: Puppet, lost_id: str) -> None:
    """Check that the second attempt at ``to`` answers the client completely."""
    again = await there.sent(to)
    assert (again.id, again.attempt) == (running.id, 1)
    assert lost_id not in again.route
    vision = there.puppets[again.route[0]]
    assert await finish_work(there, running, vision, to, "fine") == ["fine"]
    assert set(there.outstanding().values()) == {0}
    await there.turn()
    assert [end.status for end in there.ends] == ["moved", "done"]


async def test_where_nobody_listens_it_moves(there: DispatcherWorld):
    _, dead, other = await there.puppets_of(e="E", l="L", l2="L")
    await dead.die()

    running = there.submit()

    await check_move(there, running, to=other, lost_id="l")
    assert there.members.get("l") is None


async def test_from_a_busy_executor_it_moves(there: DispatcherWorld):
    _, busy, other = await there.puppets_of(e="E", l="L", l2="L")
    running = there.submit()
    await there.turn()

    busy.reply(BusyReply(running.id, "l", 0, 2.0))

    await check_move(there, running, to=other, lost_id="l")
    assert busy.ends[0].status == "moved"


async def test_from_an_executor_whose_engine_died_it_moves(there: DispatcherWorld):
    _, hurt, other = await there.puppets_of(e="E", l="L", l2="L")
    running = there.submit()
    await there.turn()

    hurt.reply(NodeFailed(running.id, 1, ProblemDetails("stage_unavailable", "the engine died", "thinker", "l", "", 0)))

    await check_move(there, running, to=other, lost_id="l")


async def test_an_engine_that_died_fails_what_nobody_else_can_take(there: DispatcherWorld):
    _, hurt = await there.puppets_of(e="E", l="L")
    running = there.submit()
    await there.turn()

    hurt.reply(NodeFailed(running.id, 1, ProblemDetails("stage_unavailable", "the engine died", "thinker", "l", "", 0)))
    await there.turn()

    assert running.failure is not None
    assert running.failure.to_problem().message == "the engine died"


async def test_without_a_planned_executor_it_moves_to_another_path(there: DispatcherWorld):
    _, busy, combined_puppet = await there.puppets_of(e="E", l="L", both="EL")
    running = there.submit()
    await there.turn()

    busy.reply(BusyReply(running.id, "l", 0))

    await check_move(there, running, to=combined_puppet, lost_id="l")
    assert (running.invocation.path, running.invocation.options) == ("EL", ("E", "EL")), "the encoder goes on"


async def test_when_all_are_busy_the_client_is_told_when_to_come_back(there: DispatcherWorld):
    _, first, second = await there.puppets_of(e="E", l="L", l2="L")
    running = there.submit()
    await there.turn()
    first.reply(BusyReply(running.id, "l", 0, 2.0))
    await there.sent(second)
    second.reply(BusyReply(running.id, "l2", 1, 3.0))
    await there.turn()

    with pytest.raises(Overloaded) as caught:
        take_texts(running)

    assert (caught.value.status, caught.value.retry_after) == (429, 3.0)


async def test_from_an_executor_that_says_it_leaves_it_moves(there: DispatcherWorld):
    _, leaving, other = await there.puppets_of(e="E", l="L", l2="L")
    running = there.submit()
    await there.turn()
    leaving.accept()

    leaving.say("gone")

    await check_move(there, running, to=other, lost_id="l")


async def test_from_an_executor_that_others_call_gone_it_moves(there: DispatcherWorld):
    _, _, other = await there.puppets_of(e="E", l="L", l2="L")
    running = there.submit()
    await there.turn()

    there.bus.publish(subjects.event_subject(subjects.GONE), b"l")

    await check_move(there, running, to=other, lost_id="l")


async def test_when_the_last_executor_is_gone_the_stage_is_named(there: DispatcherWorld):
    _, dead = await there.puppets_of(e="E", l="L")
    running = there.submit()
    await there.turn()

    dead.say("gone")
    await there.turn()

    with pytest.raises(StageUnavailable) as caught:
        take_texts(running)
    assert caught.value.stage == "thinker"


async def test_an_executor_that_has_done_its_part_may_leave(there: DispatcherWorld):
    vision, thinker, _ = await there.puppets_of(e="E", l="L", e2="E")
    running = there.submit()
    await there.turn()
    vision.reply(vision.hop(0))
    await there.turn()

    vision.say("gone")
    await there.turn()

    assert running.invocation.attempt == 0
    assert len(thinker.taken) == 1


@pytest.mark.parametrize("routing", [{"pinned": "E>L"}, {"pins": ["apart", ""]}], ids=["header", "pin"])
async def test_a_move_keeps_what_was_pinned(there: DispatcherWorld, routing: dict[str, Any]):
    _, dead, other, combined_puppet = await there.puppets_of(e="E", l="L", l2="L", both="EL")
    running = there.submit(routing=routing)
    await there.turn()
    dead.say("gone")
    assert (await there.sent(other)).path == "E>L"

    other.say("gone")
    await there.turn()

    assert isinstance(running.failure, StageUnavailable)
    assert running.failure.stage == "thinker"
    assert combined_puppet.taken == []


async def test_a_move_under_a_plan_without_the_model_says_what_is_gone(there: DispatcherWorld):
    _, dead, _ = await there.puppets_of(e="E", l="L", l2="L")
    running = there.submit()
    await there.turn()
    there.router.plan = Plan(2, 0, 1000.0, {})

    dead.say("gone")
    await there.turn()

    assert isinstance(running.failure, StageUnavailable)
    assert (running.failure.stage, running.failure.executor) == ("thinker", "l")


async def test_what_the_client_has_is_not_sent_again(there: DispatcherWorld):
    vision, dying, other = await there.puppets_of(e="E", l="L", l2="L")
    running = there.submit()
    await there.turn()
    dying.reply(dying.chunk(0, "to"), dying.chunk(1, "be"))
    await there.turn()
    assert take_texts(running) == ["to", "be"]

    dying.say("gone")

    await there.sent(other)
    assert await finish_work(there, running, vision, other, "to", "be", "or", "not") == ["or", "not"]


async def test_replies_of_an_earlier_attempt_are_dropped(there: DispatcherWorld):
    vision, first, second = await there.puppets_of(e="E", l="L", l2="L")
    running = there.submit()
    await there.turn()
    first.reply(BusyReply(running.id, "l", 0))
    await there.sent(second)

    first.reply(first.chunk(0, "stale"), first.hop(1), BusyReply(running.id, "l", 0))
    await there.turn()

    assert running.invocation.attempt == 1
    assert await finish_work(there, running, vision, second, "fresh") == ["fresh"]


async def test_a_lost_chunk_runs_the_invocation_again(there: DispatcherWorld):
    vision, thinker = await there.puppets_of(e="E", l="L")
    running = there.submit()
    await there.turn()
    thinker.reply(thinker.chunk(0, "a"), thinker.chunk(2, "c"))

    assert (await there.sent(thinker, 2)).attempt == 1
    assert await finish_work(there, running, vision, thinker, "a", "b", "c") == ["a", "b", "c"]


async def test_an_invocation_takes_so_many_routes_and_no_more(there: DispatcherWorld):
    puppets = [await there.puppet(f"l{number}", "L") for number in range(MAX_ATTEMPTS + 2)]
    await there.puppet("e", "E")
    running = there.submit()
    for number in range(MAX_ATTEMPTS):
        busy_puppet = next(puppet for puppet in puppets if puppet.id == running.invocation.route[1])
        await there.sent(busy_puppet)
        busy_puppet.reply(BusyReply(running.id, busy_puppet.id, number))
        await there.turn()

    assert isinstance(running.failure, Overloaded)
    assert sum(len(puppet.taken) for puppet in puppets) == MAX_ATTEMPTS


# Bus outages


async def test_after_a_reconnect_what_is_in_flight_runs_again(there: DispatcherWorld, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(failure_detector, "RECONNECT_GRACE_SECONDS", 0.05)
    vision, thinker = await there.puppets_of(e="E", l="L")
    running = there.submit()
    await there.turn()
    thinker.reply(thinker.chunk(0, "to"))
    await there.turn()
    assert take_texts(running) == ["to"]

    there.bus.reconnects += 1

    assert (await there.sent(thinker, 2)).attempt == 1
    assert await finish_work(there, running, vision, thinker, "to", "be") == ["be"]


async def test_a_bus_that_goes_away_again_and_again_is_said(there: DispatcherWorld, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(failure_detector, "RECONNECT_GRACE_SECONDS", 0.0)
    monkeypatch.setattr(failure_detector, "POLL_SECONDS", 0.01)
    _, thinker = await there.puppets_of(e="E", l="L")
    running = there.submit()

    for attempt in range(MAX_ATTEMPTS):
        await there.sent(thinker, attempt + 1)
        there.bus.reconnects += 1
        await wait_until(lambda now=attempt: running.invocation.attempt > now or running.failure is not None)

    assert isinstance(running.failure, BusUnavailable)


# A server of a cluster is lost


async def test_an_executor_that_changes_servers_keeps_its_work(there: DispatcherWorld):
    there.bus.clustered = True
    vision, thinker = await there.puppets_of(e="E", l="L")
    await thinker.die()  # as the gateway's server reports
    running = there.submit()
    await there.turn()
    assert there.members.get("l") is not None

    thinker.reconnects += 1
    await thinker.live()

    assert (await there.sent(thinker)).attempt == 1
    assert await finish_work(there, running, vision, thinker, "to", "be") == ["to", "be"]


async def test_an_executor_that_is_found_at_no_server_is_gone(there: DispatcherWorld):
    there.bus.clustered = True
    _, thinker = await there.puppets_of(e="E", l="L")
    await thinker.die()

    running = there.submit()

    await wait_until(lambda: running.failure is not None)
    assert isinstance(running.failure, StageUnavailable)
    assert there.members.get("l") is None


async def test_others_take_the_work_of_one_that_may_change_servers(there: DispatcherWorld):
    there.bus.clustered = True
    _, lost_puppet, other = await there.puppets_of(e="E", l="L", l2="L")
    await lost_puppet.die()

    running = there.submit()

    await check_move(there, running, to=other, lost_id="l")
    assert there.members.get("l") is not None


async def test_what_was_sent_before_an_executor_reconnected_runs_again(there: DispatcherWorld):
    """Its replies may have been lost with its server. This gateway's connection may have seen no failure."""
    vision, thinker = await there.puppets_of(e="E", l="L")
    running = there.submit()
    await there.sent(thinker)

    thinker.reconnects += 1

    assert (await there.sent(thinker, 2)).attempt == 1
    assert await finish_work(there, running, vision, thinker, "to", "be") == ["to", "be"]


async def test_a_move_that_cannot_be_sent_fails_its_invocation_alone(tmp_path: Path):
    async with open_dispatcher_world(tmp_path, limit=1200) as there:
        _, dead = await there.puppets_of(e="E", l="L")
        await there.puppet("z-name-that-is-much-longer-" + "x" * 200, "L")
        running = there.submit(text="y" * 500)
        await there.turn()
        assert 1000 < len(running.body) <= 1200, "it fits, and does not with a name that is 200 longer"

        await dead.die()  # the watcher must notice it and survive
        await wait_until(lambda: running.failure is not None)

        assert isinstance(running.failure, TooLarge)
        there.dispatcher.finish(running, "failed")
        assert set(there.outstanding().values()) == {0}
        assert there.dispatcher._watcher._task is not None
        assert not there.dispatcher._watcher._task.done()
