"""``choose``: even over many requests, the same on replay, part of the record."""

from collections import Counter
from typing import Any

import pytest

from omnibus.errors import BadRequest, GraphError, PlaceholderError, ReplayMismatch
from omnibus.plan import GOLDEN
from omnibus.task import choose, record, replay
from tests.unit.task.tasks import ONE, TWO, NumberInput


def make_invoke(options: Any, weights: Any = None) -> Any:
    def invoke(_: Any) -> Any:
        return ONE.invoke(NumberInput(x=choose(options, weights))).n

    return invoke


def make_points(request: int) -> Any:
    return lambda site: (request * GOLDEN + site * 0.5) % 1.0


def count_shares(weights: Any, requests: int = 1000) -> Counter[int]:
    invoke = make_invoke([0, 1, 2], weights)
    return Counter(record(invoke, None, make_points(number)).nodes[0].inputs["x"] for number in range(requests))


def test_weights_are_met_over_many_requests():
    counts = count_shares([5, 3, 2])

    assert all(abs(counts[option] - share) <= 3 for option, share in enumerate([500, 300, 200]))


def test_without_weights_all_options_are_alike():
    assert all(abs(each - 333) <= 3 for each in count_shares(None).values())


def test_an_option_of_no_weight_is_never_chosen():
    assert count_shares([0, 1, 0]) == {1: 1000}


@pytest.mark.parametrize("at", [0.0, 0.3, 0.9999999999999999, 1.0])
def test_the_ends_of_the_range_are_options_too(at: float):
    recording = record(make_invoke([7, 8, 9], [0.1, 0.2, 0]), None, lambda _: at)

    assert recording.nodes[0].inputs["x"] in (7, 8)


def test_a_choice_is_recorded_and_made_again():
    invoke = make_invoke([5, 6, 7])
    recording = record(invoke, None, lambda _: 0.5)

    assert recording.choices == (1,)
    assert replay(invoke, None, recording, {}).origin == (0, "n")


def test_each_choice_of_a_request_has_a_point_of_its_own():
    sites: list[int] = []

    def choose_point(site: int) -> float:
        sites.append(site)
        return site / 2

    def invoke(_: Any) -> Any:
        return [ONE.invoke(NumberInput(x=choose([1, 2]))).n for _ in range(2)]

    recording = record(invoke, None, choose_point)

    assert sites == [0, 1]
    assert recording.choices == (0, 1)


def test_other_options_on_replay_are_refused():
    options = iter([[1, 2, 3], [1]])

    def invoke(_: Any) -> Any:
        return (ONE, TWO, TWO)[choose(next(options)) - 1].invoke(NumberInput(x=1)).n

    recording = record(invoke, None, lambda _: 0.9)

    with pytest.raises(ReplayMismatch, match="chose among other options on replay"):
        replay(invoke, None, recording, {})


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ([], None),
        ([], []),
        ([1, 2], [1]),
        ([1], [1, 2]),
        ([1, 2], [0, 0]),
        ([1, 2], [-1, 2]),
        ([1, 2], [float("nan"), 1]),
        ([1, 2], [float("inf"), 1]),
    ],
)
def test_bad_weights_are_refused(options: Any, weights: Any):
    with pytest.raises(BadRequest, match="choose needs at least one option, and as many weights"):
        record(make_invoke(options, weights), None, make_points(0))


def test_a_weight_that_is_no_number_is_refused():
    with pytest.raises(GraphError, match="could not convert string to float"):
        record(make_invoke([1, 2], ["a", "b"]), None, make_points(0))


def test_choosing_needs_a_request_and_an_invoke():
    with pytest.raises(GraphError, match="choose needs a request: run the task by an app"):
        record(make_invoke([1]), None)
    with pytest.raises(PlaceholderError, match="call `.invoke`, `choose` and `pinned` inside"):
        choose([1])
