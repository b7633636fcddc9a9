"""Links between nodes in virtual time, shared by pulls like TCP connections."""

import pytest

from omnibus_planner.simulate.agenda import Agenda
from omnibus_planner.simulate.links import PULLS_AT_ONCE, Links, NodeNetwork

SECONDS = 0.5  # in addition to a pull's bytes


def measure_arrivals(*sent: tuple[float, float]) -> list[float]:
    """Return arrival times of pulls, sent as (time, GB). The link has 2 GB/s."""
    agenda = Agenda()
    network = NodeNetwork(agenda, Links(SECONDS, lambda start, end: 2.0))
    times = [0.0] * len(sent)
    for number, (at, gb) in enumerate(sent):
        agenda.add(
            at,
            lambda now, number=number, gb=gb: network.send(  # type: ignore[misc]
                "a", "b", gb, now, lambda when, number=number: times.__setitem__(number, when)
            ),
        )
    agenda.run_until(1000.0)
    return [pytest.approx(when) for when in times]


def test_a_pull_alone_has_the_whole_link():
    assert measure_arrivals((1.0, 4.0)) == [3.5]


def test_two_at_once_have_half_of_it_each():
    assert measure_arrivals((0.0, 4.0), (0.0, 4.0)) == [4.5, 4.5]


def test_a_later_one_slows_down_the_one_before_it():
    # The first one is alone for a second, then they share; at the end the second one has the link.
    assert measure_arrivals((0.0, 4.0), (1.0, 4.0)) == [3.5, 4.5]


def test_more_than_there_are_connections_wait_their_turn():
    times = measure_arrivals(*[(0.0, 2.0)] * PULLS_AT_ONCE, (0.0, 2.0))

    assert times == [PULLS_AT_ONCE + SECONDS] * PULLS_AT_ONCE + [PULLS_AT_ONCE + 1 + SECONDS]


def test_small_tensors_never_wait_for_a_connection():
    *_, small = measure_arrivals(*[(0.0, 2.0)] * (PULLS_AT_ONCE + 3), (0.0, 1e-4))

    assert small == SECONDS + (PULLS_AT_ONCE + 1) * 1e-4 / 2


def test_directions_and_pairs_do_not_share():
    agenda, times = Agenda(), list[float]()
    network = NodeNetwork(agenda, Links(0.0, lambda start, end: 1.0))
    for start, end in (("a", "b"), ("b", "a"), ("a", "c")):
        network.send(start, end, 3.0, 0.0, times.append)
    agenda.run_until(10.0)

    assert times == [3.0] * 3
