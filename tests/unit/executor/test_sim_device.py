"""Order, batching and duration of work on a simulated device."""

from math import inf

import pytest

from omnibus.executor.sim.device import Device, DeviceTurn, Lane, SimSequence, SimWork
from omnibus.executor.sim.distributions import Curve

UNIT = Curve(base=1.0)
TOKENS = Curve(per_token=1.0, base=0.001)


def make_lane(*sizes: int, slots: int = 2, share: int = 0) -> tuple[Device, Lane, list[SimWork]]:
    """Return a lane of passes with works that wait."""
    lane = Lane(UNIT, None, slots, share)
    works = [SimWork(size) for size in sizes]
    for work in works:
        lane.queue_work(work, 0.0)
    return Device(lanes=[lane]), lane, works


def make_talk_lane(
    *sequences: SimSequence, slots: int = 2, batch: Curve | None = UNIT, share: int = 0
) -> tuple[Device, Lane]:
    lane = Lane(batch, UNIT, slots, share)
    for sequence in sequences:
        lane.queue_work(sequence, 0.0)
    return Device(lanes=[lane]), lane


def list_turns(device: Device, most: int = 100) -> list[DeviceTurn]:
    """Return all turns in order."""
    at, finished_turns = 0.0, []
    while (turn := device.next_turn(at)) is not None and len(finished_turns) < most:
        assert isinstance(turn, DeviceTurn)
        at += turn.seconds
        device.finish_turn(turn, at, len(turn.ends))
        finished_turns.append(turn)
    return finished_turns


def list_works(turn: DeviceTurn | None) -> list[SimWork]:
    assert turn is not None
    return [work for work, _ in turn.works]


# Passes


def test_as_many_go_as_there_are_slots_first_come_first_served():
    device, lane, (a, b, c, d, e) = make_lane(1, 1, 1, 1, 1)

    assert [list_works(turn) for turn in list_turns(device)] == [[a, b], [c, d], [e]]
    assert lane.passes == {2: 2, 1: 1}
    assert device.next_turn(10.0) is None


def test_who_comes_later_than_now_does_not_go_now():
    device, lane, (a,) = make_lane(1)
    late = SimWork(1)
    lane.queue_work(late, 0.5)

    first = device.next_turn(0.0)

    assert list_works(first) == [a]
    assert device.next_turn(0.4) is None
    assert list_works(device.next_turn(0.5)) == [late]


def test_a_batch_has_no_more_tokens_than_its_share_but_for_one_large_item():
    device, _, (a, b, c, d) = make_lane(3, 3, 9, 1, slots=4, share=6)

    assert [list_works(turn) for turn in list_turns(device)] == [[a, b], [c], [d]]


def test_who_is_told_hears_the_time_at_which_its_pass_was_over():
    device, lane, _ = make_lane()
    times: list[float] = []
    lane.queue_work(SimWork(1, told=times.append), 2.0)

    turn = device.next_turn(2.0)
    assert turn is not None
    assert times == []
    device.finish_turn(turn, 3.0, 1)

    assert times == [3.0]


def test_a_batch_takes_as_long_as_its_works_vary_on_average():
    lane = Lane(Curve(base=2.0), None, 4)
    for factor in (0.5, 1.0, 1.2):
        lane.queue_work(SimWork(1, factor), 0.0)

    [turn] = list_turns(Device(3.0, [lane]))

    assert turn.seconds == pytest.approx(2.0 * 3.0 * 0.9)
    assert lane.busy == turn.seconds


# Sequences


def test_a_sequence_passes_once_and_then_steps_to_its_limit():
    times: list[float] = []
    device, lane = make_talk_lane(SimSequence(8, told=times.append, limit=4))

    assert [turn.stepping for turn in list_turns(device)] == [False, True, True, True]
    assert times == [1.0, 2.0, 3.0, 4.0]
    assert lane.used == 0
    assert lane.tokens == 8 + 3


def test_sequences_step_together_and_join_between_two_steps():
    a, b = SimSequence(1, limit=4), SimSequence(1, limit=3)
    device, lane = make_talk_lane(a)
    turn = device.next_turn(0.0)
    assert turn is not None
    lane.queue_work(b, 0.5)
    device.finish_turn(turn, 1.0, 1)

    kinds = []
    at = 1.0
    while (turn := device.next_turn(at)) is not None:
        kinds.append((turn.stepping, list_works(turn)))
        at += turn.seconds
        device.finish_turn(turn, at, len(turn.ends))

    assert kinds == [(False, [b]), (True, [a, b]), (True, [a, b]), (True, [a])]


def test_a_slot_that_gets_free_is_taken_before_the_next_step():
    a, b, c = SimSequence(1, limit=2), SimSequence(1, limit=3), SimSequence(1, limit=2)
    device, _ = make_talk_lane(a, b, c)

    assert [list_works(turn) for turn in list_turns(device)] == [[a, b], [a, b], [c], [b, c]]


def test_the_tokens_of_a_step_are_all_that_its_sequences_have():
    device, lane = make_talk_lane(SimSequence(10, limit=3), SimSequence(20, limit=3), batch=None)
    lane.step = TOKENS

    assert [turn.seconds for turn in list_turns(device)] == pytest.approx([30.001, 32.001, 34.001])


def test_a_long_prompt_is_cut_and_steps_go_between_its_pieces():
    short, long = SimSequence(1, limit=6), SimSequence(10, limit=2)
    device, _ = make_talk_lane(short, long, share=4)

    all_turns = list_turns(device)

    assert [(turn.stepping, [size for _, size in turn.works]) for turn in all_turns if not turn.stepping] == [
        (False, [1, 3]), (False, [4]), (False, [3]),
    ]  # fmt: skip
    assert [turn.stepping for turn in all_turns] == [False, False, True, False, True, True, True, True]
    assert (long.done, short.done) == (2, 6)


def test_a_sequence_takes_no_step_that_it_is_not_allowed():
    fast, slow = SimSequence(1, limit=3), SimSequence(1, limit=3, allowed=1)
    device, lane = make_talk_lane(fast, slow)

    list_turns(device)
    assert (fast.done, slow.done, lane.used) == (3, 1, 1)

    lane.extend_sequence(slow, inf, 3, 9.0)
    assert device.next_turn(8.0) is None
    turn = device.next_turn(9.0)
    assert list_works(turn) == [slow]


def test_a_sequence_that_has_reached_its_new_limit_leaves_at_once():
    times: list[float] = []
    sequence = SimSequence(1, told=times.append, allowed=2)
    device, lane = make_talk_lane(sequence)
    list_turns(device)

    lane.extend_sequence(sequence, inf, 2, 7.0)

    assert lane.used == 0
    assert sequence.is_finished
    assert times[-1] == 7.0


def test_who_is_told_seldom_still_hears_the_end():
    times: list[float] = []
    device, _ = make_talk_lane(SimSequence(1, told=times.append, limit=8, first=2, every=3))

    list_turns(device)

    assert times == [2.0, 5.0, 8.0]


def test_one_without_a_pass_begins_with_a_step():
    sequence = SimSequence(100, limit=2)
    device, _ = make_talk_lane(sequence, batch=None)

    assert [turn.stepping for turn in list_turns(device)] == [True, True]


# Leaving


def test_who_leaves_the_queue_is_not_served():
    device, lane, (a, b, c) = make_lane(1, 1, 1)
    lane.remove_work(b, 0.0)
    lane.remove_work(b, 0.0)

    assert list_works(device.next_turn(0.0)) == [a, c]


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_slot_is_free_at_once_when_its_sequence_leaves(steps: int):
    leaving, waiting = SimSequence(1, limit=9), SimSequence(1, limit=2)
    device, lane = make_talk_lane(leaving, waiting, slots=1)
    list_turns(device, steps)
    assert len(lane.waiting) == 1

    lane.remove_work(leaving, 50.0)

    assert (lane.used, len(lane.waiting)) == (1, 0)
    assert list_works(device.next_turn(50.0)) == [waiting]


def test_who_leaves_during_a_turn_is_passed_over():
    times: list[float] = []
    device, lane = make_talk_lane(SimSequence(1, told=times.append, limit=9), slots=1)
    turn = device.next_turn(0.0)
    assert turn is not None
    lane.remove_work(list_works(turn)[0], 0.5)
    device.finish_turn(turn, 1.0, 1)

    assert times == []
    assert (lane.used, lane.tokens) == (0, 0)
    assert device.next_turn(9.0) is None


# Several steps at a time


def test_steps_that_nobody_hears_of_are_one_turn():
    times: list[float] = []
    a, b = SimSequence(10, told=times.append, limit=20, first=8), SimSequence(10, limit=30, first=30)
    device, lane = make_talk_lane(a, b, batch=None)
    lane.step = Curve(base=1.0, per_token=0.1)

    first, *later_turns = list_turns(device)

    each = [1.0 + 0.1 * (20 + 2 * step) for step in range(8)]
    assert first.ends == pytest.approx([sum(each[: step + 1]) for step in range(8)])
    assert times[0] == pytest.approx(first.seconds)
    assert [len(turn.ends) for turn in later_turns][-1] == 10
    assert lane.steps == {2: 20, 1: 10}
    assert (a.done, b.done) == (20, 30)


def test_a_turn_has_no_more_steps_than_are_allowed():
    sequence = SimSequence(1, limit=30, allowed=5, first=30)
    device, _ = make_talk_lane(sequence, batch=None)

    assert [len(turn.ends) for turn in list_turns(device)] == [5]


@pytest.mark.parametrize("beside", [True, False])
def test_while_somebody_else_could_go_each_step_is_a_turn(beside: bool):
    device, lane = make_talk_lane(SimSequence(1, limit=30, first=30))
    list_turns(device, 1)
    other = Lane(UNIT, None, 1) if beside else lane
    device.lanes.append(other)
    other.queue_work(SimWork(1) if beside else SimSequence(1, limit=2), 1.5)

    turn = device.next_turn(1.0)

    assert turn is not None
    assert (turn.stepping, len(turn.ends)) == (True, 1)


def test_a_turn_may_end_after_the_step_that_is_under_way():
    sequence = SimSequence(1, limit=30, first=30)
    device, lane = make_talk_lane(sequence, batch=None)
    turn = device.next_turn(0.0)
    assert turn is not None

    assert [turn.steps_begun(elapsed) for elapsed in (0.0, 0.5, 1.0, 1.5, 29.5, 99.0)] == [1, 1, 1, 2, 30, 30]
    device.finish_turn(turn, 2.0, 2)

    assert (sequence.done, lane.busy, lane.tokens) == (2, 2.0, 2)


# Several components


def test_components_of_one_device_take_turns_by_how_long_they_have_waited():
    encoder, thinker = Lane(UNIT, None, 1), Lane(UNIT, UNIT, 4)
    device = Device(lanes=[thinker, encoder])
    thinker.queue_work(SimSequence(1, limit=3), 0.0)
    for _ in range(3):
        encoder.queue_work(SimWork(1), 0.5)

    all_turns = list_turns(device)

    assert [(turn.lane is encoder, turn.stepping) for turn in all_turns] == [
        (False, False), (True, False), (True, False), (True, False), (False, True), (False, True),
    ]  # fmt: skip
    assert device.busy == 6.0


@pytest.mark.parametrize("continues", [True, False])
def test_media_wait_while_older_requests_wait_for_a_slot_unless_they_continue_elsewhere(continues: bool):
    device = Device()
    encoder = device.add_lane(UNIT, None, 1, reads=True)
    thinker = device.add_lane(None, UNIT, 1)
    for limit in (2, 1):
        thinker.queue_work(SimSequence(1, limit=limit), 0.0)
    media = SimWork(1)
    media.continues, media.since = continues, 0.1
    encoder.queue_work(media, 0.0)

    all_turns = list_turns(device)

    order = [turn.lane is encoder for turn in all_turns]
    assert order == ([False, False, True, False] if continues else [True, False, False, False])


def test_the_seconds_of_a_turn_are_divided_among_its_works():
    lane = Lane(Curve(base=1.0, per_token=0.1), None, 4)
    for size in (0, 10):
        lane.queue_work(SimWork(size), 0.0)

    turn = Device(2.0, [lane]).next_turn(0.0)

    assert turn is not None
    assert turn.seconds_by_work() == pytest.approx([1.0, 3.0])
