"""Dispatch: messages sent, replies, completion and failures."""

import asyncio

import msgspec
import pytest

from omnibus.bus.messages import Chunk, NodeFailed
from omnibus.errors import ProblemDetails, StageFailed, TooLarge
from omnibus.graph import HANDLE
from omnibus_gateway.dispatch import dispatcher
from omnibus_gateway.dispatch.dispatcher import MAX_ATTEMPTS
from tests.unit.executor.arithmetic import make_call
from tests.unit.gateway.world import DispatcherWorld, finish_work, take_texts
from tests.unit.sidecar.node import wait_until

# Normal operation


async def test_an_invocation_goes_at_once_and_once_to_each_executor(there: DispatcherWorld):
    vision, thinker = await there.puppets_of(e="E", l="L")

    running = there.submit()
    await there.turn()

    assert [len(puppet.taken) for puppet in (vision, thinker)] == [1, 1]
    assert vision.taken == thinker.taken == [running.invocation]
    assert running.invocation.route == ("e", "l")
    assert there.dispatcher.inflight_count == 1


async def test_an_executor_of_several_nodes_gets_it_once(there: DispatcherWorld):
    [puppet] = await there.puppets_of(both="EL")

    there.submit()
    await there.turn()

    assert len(puppet.taken) == 1
    assert puppet.taken[0].route == ("both", "both")


async def test_work_counts_from_dispatch_until_each_node_is_done(there: DispatcherWorld):
    vision, thinker = await there.puppets_of(e="E", l="L")
    running = there.submit()
    assert there.outstanding() == {"e": 10, "l": 100}
    await there.turn()

    vision.reply(vision.hop(0))
    await there.turn()
    assert there.outstanding() == {"e": 0, "l": 100}
    assert not running.all_reported

    thinker.reply(thinker.hop(1))
    await there.turn()
    assert there.outstanding() == {"e": 0, "l": 0}
    assert running.all_reported


async def test_an_invocation_counts_once_at_each_executor_until_its_last_node_there_is_done(there: DispatcherWorld):
    [puppet] = await there.puppets_of(both="EL")
    member = there.members.get("both")
    assert member is not None
    there.submit()
    running = there.submit()
    await there.turn()
    assert (member.own, member.outstanding) == (2, 220)

    puppet.reply(puppet.hop(0))
    await there.turn()
    assert (member.own, member.outstanding) == (2, 210)
    puppet.reply(puppet.hop(1), puppet.hop(1))
    await there.turn()
    assert (member.own, member.outstanding) == (1, 110)

    there.dispatcher.finish(running, "done")
    assert (member.own, member.outstanding) == (1, 110)
    await there.dispatcher.shutdown()
    assert (member.own, member.outstanding) == (0, 0)


async def test_the_answer_arrives_and_everything_returns_to_zero(there: DispatcherWorld):
    vision, thinker = await there.puppets_of(e="E", l="L")
    running = there.submit()

    assert await finish_work(there, running, vision, thinker, "to", "be") == ["to", "be"]

    await there.turn()
    assert there.outstanding() == {"e": 0, "l": 0}
    assert there.dispatcher.inflight_count == 0
    assert [(end.inv, end.status) for end in there.ends] == [(running.id, "done")]


async def test_an_end_is_published_once_however_often_it_is_asked_for(there: DispatcherWorld):
    _, thinker = await there.puppets_of(e="E", l="L")
    running = there.submit()
    await there.turn()

    for status in ("cancelled", "failed", "done"):
        there.dispatcher.finish(running, status)
    await there.turn()

    assert [end.status for end in there.ends] == ["cancelled"]
    assert [end.status for end in thinker.ends] == ["cancelled"]
    assert there.outstanding() == {"e": 0, "l": 0}


async def test_replies_to_what_is_over_or_unknown_are_dropped(there: DispatcherWorld):
    _, thinker = await there.puppets_of(e="E", l="L")
    running = there.submit()
    await there.turn()
    there.dispatcher.finish(running, "cancelled")

    thinker.reply(thinker.chunk(0, "late"), thinker.hop(1))
    there.bus.publish(there.dispatcher.reply, b"nonsense")
    await there.turn()

    assert take_texts(running) == []
    assert running.hops == {}
    assert there.outstanding() == {"e": 0, "l": 0}


async def test_what_is_too_large_to_send_leaves_nothing_behind(there: DispatcherWorld):
    await there.puppets_of(e="E", l="L")

    with pytest.raises(TooLarge) as rejection:
        there.submit(text="x" * 70_000)

    assert "omnibus." not in rejection.value.message  # subjects stay internal
    assert there.dispatcher.inflight_count == 0
    assert there.outstanding() == {"e": 0, "l": 0}


# The end waits for the last times


async def test_an_answer_that_is_whole_ends_when_all_times_are_there(there: DispatcherWorld):
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


async def test_times_that_never_come_are_not_waited_for(there: DispatcherWorld, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dispatcher, "SETTLE_SECONDS", 0.02)
    await there.puppets_of(e="E", l="L")
    running = there.submit()
    then: list[str] = []

    there.dispatcher.complete(running, lambda: then.append("ended"))
    await wait_until(lambda: running.over)

    assert then == ["ended"]
    assert there.outstanding() == {"e": 0, "l": 0}


async def test_an_answer_that_is_whole_is_not_run_again_when_an_executor_dies(there: DispatcherWorld):
    _, thinker, other = await there.puppets_of(e="E", l="L", l2="L")
    running = there.submit()
    await there.turn()
    thinker.reply(thinker.chunk(0, "done", last=True))
    await there.turn()
    then: list[int] = []
    there.dispatcher.complete(running, lambda: then.append(running.invocation.attempt))

    thinker.say("gone")
    await wait_until(lambda: bool(then))

    assert then == [0]
    assert other.taken == []


async def test_idle_waits_for_the_last_invocation_but_not_for_ever(there: DispatcherWorld):
    await there.puppets_of(e="E", l="L")
    await asyncio.wait_for(there.dispatcher.wait_idle(600), 30)
    running = there.submit()

    await asyncio.wait_for(there.dispatcher.wait_idle(0.02), 30)
    assert there.dispatcher.inflight_count == 1
    waiting = asyncio.ensure_future(there.dispatcher.wait_idle(60))
    await there.turn()
    there.dispatcher.finish(running, "done")

    await asyncio.wait_for(waiting, 5)


async def test_shutting_down_cancels_what_is_in_flight(there: DispatcherWorld):
    _, thinker = await there.puppets_of(e="E", l="L")
    there.submit()
    await there.turn()

    await there.dispatcher.shutdown()
    await there.turn()

    assert [end.status for end in thinker.ends] == ["cancelled"]
    assert there.dispatcher.inflight_count == 0


# Failures


async def test_a_failed_node_fails_the_answer_with_stage_and_executor(there: DispatcherWorld):
    _, thinker = await there.puppets_of(e="E", l="L")
    running = there.submit()
    await there.turn()
    problem = ProblemDetails("stage_failed", "thinker broke", "thinker", "l", "", 0)

    thinker.reply(thinker.chunk(0, "half"), NodeFailed(running.id, 1, problem))
    await there.turn()

    assert take_texts(running) == ["half"]
    with pytest.raises(StageFailed) as caught:
        take_texts(running)
    assert caught.value.to_problem() == problem
    assert running.invocation.attempt == 0


@pytest.mark.parametrize("nbytes", [0, 8], ids=["without tensors", "with a tensor"])
async def test_the_sidecar_is_told_of_an_end_only_where_tensors_were(
    there: DispatcherWorld, monkeypatch: pytest.MonkeyPatch, nbytes: int
):
    vision, thinker = await there.puppets_of(e="E", l="L")
    running = there.submit()
    await there.sent(thinker, 1)
    ended_ids: list[str] = []
    monkeypatch.setattr(there.tensors, "end_invocation", ended_ids.append)
    vision.reply(msgspec.structs.replace(vision.hop(0), nbytes=nbytes))
    thinker.reply(thinker.hop(1))
    await there.turn()

    there.dispatcher.complete(running, lambda: None)

    assert running.over
    assert ended_ids == [running.id] * bool(nbytes)


@pytest.mark.parametrize("code", ["stale_handle", "protocol_error", "sequence_gap"])
async def test_what_another_try_may_mend_is_tried_again_but_not_for_ever(there: DispatcherWorld, code: str):
    _, thinker = await there.puppets_of(e="E", l="L")
    running = there.submit()
    for attempt in range(MAX_ATTEMPTS):
        await there.sent(thinker, attempt + 1)
        assert running.failure is None
        thinker.reply(NodeFailed(running.id, 1, ProblemDetails(code, "gone"), attempt))
        await there.turn()

    assert running.failure is not None
    assert running.failure.code == code
    assert len(thinker.taken) == MAX_ATTEMPTS


async def test_an_array_that_was_freed_fails_the_answer(there: DispatcherWorld):
    _, thinker = await there.puppets_of(e="E", l="L")
    running = there.submit()
    handle = await there.put(running.id, 1.0, 2.0)
    there.tensors.end_invocation(running.id)
    await there.blocks()

    thinker.reply(Chunk(running.id, 1, "said", 0, handle=handle))
    await there.turn()

    assert running.failure is not None
    assert running.failure.code == "stale_handle"


async def test_without_a_sidecar_an_array_fails_the_answer_at_once(there: DispatcherWorld):
    _, thinker = await there.puppets_of(e="E", l="L")
    running = there.submit()
    handle = await there.put(running.id, 1.0, 2.0)
    await there.sidecar.stop()
    await wait_until(lambda: not there.tensors.connected)

    thinker.reply(Chunk(running.id, 1, "said", 0, handle=handle))
    await there.turn()

    assert running.failure is not None
    assert running.failure.status == 503


@pytest.mark.parametrize("nested", [False, True])
async def test_an_input_that_nobody_read_leaves_the_arena_with_its_invocation(
    there: DispatcherWorld, nested: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(there.router, "new_id", lambda of: f"g-{of}-0")
    [thinker] = await there.puppets_of(l="L")
    handle = {HANDLE: msgspec.to_builtins(await there.put("g-0-0", 1.0)), "sha256": "00"}
    running = there.run(make_call("thinker", item=[{"type": "image", "image": handle}] if nested else handle))
    await there.sent(thinker)
    assert (running.id, await there.blocks()) == ("g-0-0", 1)

    there.dispatcher.finish(running, "failed")

    assert await there.blocks() == 0


async def test_an_array_of_an_earlier_attempt_leaves_the_arena_with_its_invocation(there: DispatcherWorld):
    first, second = await there.puppets_of(l="L", l2="L")
    running = there.run(make_call("thinker", x=1))
    await there.sent(first)
    await there.put(running.id, 1.0)
    first.say("gone")
    await there.sent(second)
    second.reply(second.chunk(0, "fine", last=True, node=0), second.hop(0))
    await there.turn()

    there.dispatcher.finish(running, "done")

    assert await there.blocks() == 0


async def test_an_array_is_read_and_its_memory_given_back(there: DispatcherWorld):
    _, thinker = await there.puppets_of(e="E", l="L")
    running = there.submit()
    await there.turn()

    thinker.reply(Chunk(running.id, 1, "said", 0, handle=await there.put(running.id, 1.0, 2.0)))
    await there.turn()

    [item] = running.streams[1, "said"].take_ready()
    assert item.array is not None
    assert item.array.tolist() == [1.0, 2.0]
    assert await there.blocks() == 0
