"""An input that kills two executors is rejected; other inputs that ran there are not."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from omnibus import graph
from omnibus.bus import messages, subjects
from omnibus.bus.messages import Chunk, Hop
from omnibus.errors import BadInput, ProblemDetails
from omnibus.graph import WIRE_VERSION
from omnibus.recording import dead_letters
from omnibus.recording.dead_letters import DeadLetter
from omnibus_gateway.dispatch.failures import MAX_REFUSED_INPUTS, PROBE, Quarantine, node_keys
from omnibus_gateway.dispatch.inflight import InflightInvocation
from omnibus_gateway.routing.executors import ExecutorTable
from tests.unit.executor.arithmetic import LIMIT, make_call, make_invocation
from tests.unit.gateway.world import DispatcherWorld, Puppet, open_dispatcher_world, take_texts

SECONDS = 600.0


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[DispatcherWorld]:
    async with open_dispatcher_world(tmp_path) as dispatcher_world:
        yield dispatcher_world


def submit_request(there: DispatcherWorld, item: int = 1, words: int = 0) -> InflightInvocation:
    """A request about a media item, in some words."""
    return there.run(make_call("vision", x=item), make_call("thinker", item=graph.make_ref(0, "y"), x=words))


async def crash_puppet(there: DispatcherWorld, puppet: Puppet) -> None:
    await puppet.die()
    there.bus.publish(subjects.event_subject(subjects.GONE), puppet.id.encode())
    await there.turn()


def list_ids(puppet: Puppet) -> list[str]:
    """Return the ids sent to ``puppet``, in order."""
    return [each.id for each in puppet.taken]


async def complete_request(there: DispatcherWorld, running: InflightInvocation) -> list[str]:
    """Complete the work of both executors and return the client's text."""
    request, now = running.invocation, time.time()
    hops = [Hop(request.id, node, by, now, now, now, now, request.attempt) for node, by in enumerate(request.route)]
    text_chunk = Chunk(request.id, 1, "said", 0, request.attempt, {"text": "fine"}, last=True)
    for frame in messages.join_frames([messages.encode(each) for each in (hops[0], text_chunk, hops[1])], LIMIT):
        there.bus.publish(request.reply, frame)
    await there.turn()
    answer_texts = take_texts(running)
    there.dispatcher.finish(running, "done")
    await there.turn()
    return answer_texts


def is_refused(there: DispatcherWorld, *args: Any) -> bool:
    try:
        running = submit_request(there, *args)
    except BadInput:
        return True
    there.dispatcher.finish(running, "cancelled")
    return False


async def test_one_death_refuses_nothing_and_everybody_moves(there: DispatcherWorld):
    dead, vision, thinker = await there.puppets_of(e="E", e2="E", l="L")
    several = [submit_request(there, item) for item in range(8)]
    await there.turn()
    held_ids = list_ids(dead)
    assert held_ids

    await crash_puppet(there, dead)

    assert {running.failure for running in several} == {None}
    assert not any(is_refused(there, item) for item in range(8))
    assert set(held_ids) <= set(list_ids(vision))
    assert all(running.id in list_ids(thinker) for running in several)


async def test_an_input_that_was_there_at_two_deaths_is_refused_in_all_words(there: DispatcherWorld):
    await there.puppets_of(e="E", e2="E", e3="E", l="L")
    running = submit_request(there, item=7)
    for _ in range(2):
        await there.turn()
        await crash_puppet(there, there.puppets[running.invocation.route[0]])

    with pytest.raises(BadInput, match="ended 2 executors and is refused for 600 seconds"):
        take_texts(running)

    assert is_refused(there, 7)
    assert is_refused(there, 7, 99)
    assert not is_refused(there, 8)
    assert running.invocation.attempt == 1


async def test_a_death_that_several_words_tell_of_is_one(there: DispatcherWorld):
    dead, _ = await there.puppets_of(e="E", l="L")
    running = submit_request(there, item=7)
    await there.turn()

    await crash_puppet(there, dead)
    assert running.failure is not None  # no other executor can run it, and its client has not read the failure
    there.bus.publish(subjects.event_subject(subjects.GONE), dead.id.encode())
    await there.turn()

    await there.puppet("e2", "E")
    assert not is_refused(there, 7)


@pytest.mark.parametrize("count", [1, 2])
async def test_what_a_dead_executor_never_got_is_not_suspected(there: DispatcherWorld, count: int):
    held, _ = await there.puppets_of(e="E", l="L")
    several = [submit_request(there, item) for item in range(count)]
    await there.turn()
    dead = await there.puppet("e2", "E")
    await dead.die()  # with its machine; the gateway learns of it by the refusals of what moves there

    await crash_puppet(there, held)
    await there.turn()

    assert list_ids(dead) == []
    assert [running.invocation.route[0] for running in several] == ["e2"] * count
    await there.puppet("e3", "E")
    assert not any(is_refused(there, item) for item in range(count))
    assert not any(running.single for running in several)


async def test_an_input_that_was_computed_in_between_is_not_suspected(there: DispatcherWorld):
    await there.puppets_of(e="E", e2="E", e3="E", l="L", l2="L")
    for _ in range(3):
        running = submit_request(there, item=7)
        await there.turn()
        await crash_puppet(there, there.puppets[running.invocation.route[0]])
        assert await complete_request(there, running) == ["fine"]
        await there.puppet(f"e-{running.id}", "E")

    assert not is_refused(there, 7)


async def test_a_suspect_does_not_move_to_an_executor_of_more_components(there: DispatcherWorld):
    dead, all_in_one = await there.puppets_of(e="E", all="EL")
    await there.puppet("l", "L")
    running = submit_request(there)
    await there.turn()
    other = await there.puppet("e2", "E")

    await crash_puppet(there, dead)

    assert list_ids(other) == [running.id]
    assert not list_ids(all_in_one)


async def test_where_there_is_no_other_it_moves_to_one_of_more_components(there: DispatcherWorld):
    dead, all_in_one = await there.puppets_of(e="E", all="EL")
    await there.puppet("l", "L")
    running = submit_request(there)
    await there.turn()

    await crash_puppet(there, dead)

    assert list_ids(all_in_one) == [running.id]


async def test_an_executor_that_leaves_is_no_death(there: DispatcherWorld):
    await there.puppets_of(e="E", e2="E", e3="E", l="L")
    running = submit_request(there)
    for _ in range(2):
        await there.turn()
        there.puppets[running.invocation.route[0]].say("gone")
        await there.turn()

    assert running.failure is None
    assert not is_refused(there)


async def test_of_several_suspects_each_goes_on_by_itself_until_one_is_known(there: DispatcherWorld):
    await there.puppets_of(l="L", e0="E")
    several = [submit_request(there, item) for item in range(3)]
    poison = several[0]
    for number in range(2):
        await there.turn()
        await there.puppet(f"e{number + 1}", "E")
        await crash_puppet(there, there.puppets[f"e{number}"])
    # Two deaths with three suspects: no request is refused, and one continues.
    assert {running.failure for running in several} == {None}
    assert not any(is_refused(there, item) for item in range(3))
    assert sorted(running.invocation.attempt for running in several) == [1, 1, 2]

    await there.puppet("e3", "E")
    for _ in several:
        [current] = [each for each in several if each.invocation.attempt == 2 and not each.over]
        if current is poison:
            await crash_puppet(there, there.puppets[current.invocation.route[0]])
            there.dispatcher.finish(current, "failed")
            await there.turn()
        else:
            assert await complete_request(there, current) == ["fine"]

    assert isinstance(poison.failure, BadInput)
    assert [is_refused(there, item) for item in range(3)] == [True, False, False]


async def test_who_left_while_waiting_to_go_on_holds_up_nobody(there: DispatcherWorld):
    await there.puppets_of(l="L", e0="E")
    several = [submit_request(there, item) for item in range(3)]
    for number in range(2):
        await there.turn()
        await there.puppet(f"e{number + 1}", "E")
        await crash_puppet(there, there.puppets[f"e{number}"])
    going, *waiting = sorted(several, key=lambda running: -running.invocation.attempt)

    there.dispatcher.finish(waiting[0], "cancelled")
    assert await complete_request(there, going) == ["fine"]

    assert waiting[1].invocation.attempt == 2
    assert await complete_request(there, waiting[1]) == ["fine"]


async def test_another_gateways_letter_refuses_its_input_here(there: DispatcherWorld):
    await there.puppets_of(e="E", l="L")
    culprit = node_keys([make_call("vision", x=5)])
    letter = DeadLetter(
        WIRE_VERSION,
        "i",
        "crashed",
        0.0,
        0.0,
        "chat",
        "m",
        "",
        "",
        ProblemDetails("bad_input", "m"),
        refused=tuple(culprit),
    )

    there.bus.publish_record(subjects.dead_letter_subject("chat", "i"), messages.encode(letter), "i.dead")
    there.bus.publish_record(subjects.dead_letter_subject("chat", "j"), b"no letter", "j.dead")
    await there.turn()

    assert dead_letters.decode_dead_letter(messages.encode(letter)).refused == tuple(culprit)
    assert is_refused(there, 5)
    assert not is_refused(there, 6)


async def test_a_refusal_ends(there: DispatcherWorld):
    await there.puppets_of(e="E", l="L")
    running = submit_request(there, 5)
    quarantine, now = Quarantine(there.members, SECONDS), time.monotonic()
    quarantine.refuse_inputs(node_keys(running.invocation.nodes)[:1], now)

    with pytest.raises(BadInput, match="for 1 seconds"):
        quarantine.check_invocation(running.invocation, now + SECONDS - 0.5)
    quarantine.check_invocation(running.invocation, now + SECONDS)
    quarantine.check_invocation(running.invocation, now)  # forgotten


async def test_an_operator_may_run_a_refused_input_again(there: DispatcherWorld):
    await there.puppets_of(e="E", l="L")
    running = submit_request(there, 5)
    quarantine = Quarantine(there.members, SECONDS)
    quarantine.refuse_inputs(node_keys(running.invocation.nodes), 0.0)

    quarantine.check_invocation(msgspec.structs.replace(running.invocation, replay_of="x"), 1.0)
    quarantine.clear_suspect(running, 0)  # it succeeded, so its input is accepted again
    quarantine.check_invocation(running.invocation, 1.0)


async def test_switched_off_it_refuses_nothing(there: DispatcherWorld):
    await there.puppets_of(e="E", l="L")
    running = submit_request(there, 5)
    quarantine = Quarantine(there.members, 0.0)
    for _ in range(5):
        quarantine.record_death(running.invocation.route[0], [running], 0.0)
    quarantine.refuse_inputs(node_keys(running.invocation.nodes), 0.0)

    quarantine.check_invocation(running.invocation, 1.0)
    assert quarantine.refusal_error(running) is None


def test_what_is_refused_is_bounded() -> None:
    refused_invocation = make_invocation([make_call("vision", x=1)], ["e"], [(0, "y")])
    quarantine = Quarantine(ExecutorTable(), SECONDS)
    quarantine.refuse_inputs(node_keys(refused_invocation.nodes), 0.0)
    for number in range(MAX_REFUSED_INPUTS):
        quarantine.refuse_inputs([str(number)], 0.0)

    quarantine.check_invocation(refused_invocation, 1.0)


def test_an_input_that_is_refused_again_is_not_the_next_one_to_be_evicted() -> None:
    refused_again = make_invocation([make_call("vision", x=1)], ["e"], [(0, "y")])
    quarantine = Quarantine(ExecutorTable(), SECONDS)
    quarantine.refuse_inputs(node_keys(refused_again.nodes), 0.0)
    for number in range(MAX_REFUSED_INPUTS - 1):
        quarantine.refuse_inputs([str(number)], 0.0)
    quarantine.refuse_inputs(node_keys(refused_again.nodes), 1.0)
    quarantine.refuse_inputs(["one more"], 1.0)

    with pytest.raises(BadInput):
        quarantine.check_invocation(refused_again, 2.0)


def test_keys_are_of_all_that_a_node_is_computed_from() -> None:
    def compute_keys(item: int, words: int) -> list[str]:
        return node_keys([make_call("vision", x=item), make_call("thinker", item=graph.make_ref(0, "y"), x=words)])

    assert compute_keys(1, 1) == compute_keys(1, 1)
    assert compute_keys(1, 1)[0] == compute_keys(1, 2)[0] != compute_keys(2, 1)[0]
    assert len({compute_keys(item, words)[1] for item in (1, 2) for words in (1, 2)}) == 4


async def drop_connection(there: DispatcherWorld, puppet: Puppet) -> None:
    """Drop an executor's connection: the bus reports no listener, and its process continues."""
    await puppet.die()
    there.bus.publish(subjects.edge_subject(puppet.id), b"", reply=build_probe_subject(there, puppet, time.monotonic()))
    await there.turn()


def build_probe_subject(there: DispatcherWorld, puppet: Puppet, sent_at: float) -> str:
    return subjects.refused_subject("g", PROBE, int(sent_at * 1000), puppet.id)


async def test_an_executor_that_comes_back_has_not_died_of_its_input(there: DispatcherWorld):
    await there.puppets_of(e="E", e2="E", e3="E", l="L")
    running = submit_request(there, item=7)
    lost_puppets = []
    for _ in range(2):
        await there.turn()
        lost_puppets.append(there.puppets[running.invocation.route[0]])
        await drop_connection(there, lost_puppets[-1])
    assert is_refused(there, 7)

    for puppet in lost_puppets:
        puppet.reconnects += 1
        puppet.say()
        await there.turn()

    assert not is_refused(there, 7)


async def test_another_process_in_its_place_proves_nothing(there: DispatcherWorld):
    await there.puppets_of(e="E", e2="E", e3="E", l="L")
    running = submit_request(there, item=7)
    for _ in range(2):
        await there.turn()
        dead = there.puppets[running.invocation.route[0]]
        await drop_connection(there, dead)
        dead.say(pid=12345)
        await there.turn()

    assert is_refused(there, 7)


async def test_who_is_not_found_behind_a_frozen_bus_is_not_taken_for_dead(there: DispatcherWorld):
    vision, other, third, _ = await there.puppets_of(e="E", e2="E", e3="E", l="L")
    running = submit_request(there, item=7)
    await there.turn()
    for puppet in (vision, other, third):
        await puppet.die()  # they reconnect
        there.bus.publish(
            subjects.edge_subject(puppet.id), b"", reply=build_probe_subject(there, puppet, time.monotonic() - 4)
        )
        await there.turn()
        # A probe sent after the bus returned is answered at once, and is just as inconclusive.
        there.bus.publish(
            subjects.edge_subject(puppet.id), b"", reply=build_probe_subject(there, puppet, time.monotonic())
        )
        await there.turn()

    assert running.failure is None
    assert running.invocation.attempt == 0
    assert not is_refused(there, 7)
