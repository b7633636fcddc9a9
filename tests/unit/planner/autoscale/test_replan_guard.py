"""Replans that serve less than before are reverted once. They are not repeated for the same load."""

import pytest

from omnibus_planner.autoscale.candidates import ReplanEstimate, ReplanGuard
from omnibus_planner.optimize import ModelLoad, PlanningResult
from tests.unit.planner.adapting import SEEN, TEXT, AdaptationClock

WINDOW = 30.0
BEFORE = PlanningResult({}, {"planned": "before"}, {}, {})


def make_load(rate: float = 12.0, image_share: float = 0.5) -> dict[str, ModelLoad]:
    return {"vl": ModelLoad(rate, {SEEN: image_share, TEXT: 1 - image_share})}


def make_guard(clock: AdaptationClock) -> ReplanGuard:
    """Return a guard after a replan. Before it, 11.7 req/s were served."""
    guard = ReplanGuard(WINDOW, clock)
    guard.note_replan(BEFORE, make_load(), {"vl": 11.7})
    guard.note_running()
    return guard


def test_less_served_under_the_same_load_goes_back_once():
    clock = AdaptationClock()
    guard = make_guard(clock)
    clock.now = WINDOW - 1
    assert guard.find_fallback(make_load(), {"vl": 8.9}) is None

    clock.now = WINDOW
    fallback = guard.find_fallback(make_load(), {"vl": 8.9})

    assert fallback is not None
    assert fallback[0] is BEFORE
    assert fallback[1] == "load: back to the plan before: 8.9 req/s were served, 11.7 by it"
    assert guard.find_fallback(make_load(), {"vl": 8.9}) is None


@pytest.mark.parametrize(
    ("now", "served_rate"), [(make_load(), 11.5), (make_load(rate=9.0), 8.9), (make_load(image_share=0.9), 8.9), ({}, 0.0)],
    ids=["as much is served", "less comes", "another mix", "nothing comes"],
)  # fmt: skip
def test_a_replan_stays_when(now: dict[str, ModelLoad], served_rate: float):
    clock = AdaptationClock()
    guard = make_guard(clock)
    clock.now = WINDOW

    assert guard.find_fallback(now, {"vl": served_rate}) is None
    assert not guard.is_rejected(make_load())


def test_the_time_counts_from_when_the_executors_are_there():
    clock = AdaptationClock()
    guard = ReplanGuard(WINDOW, clock)
    guard.note_replan(BEFORE, make_load(), {"vl": 11.7})
    clock.now = 100.0
    assert guard.find_fallback(make_load(), {"vl": 1.0}) is None

    guard.note_running()
    clock.now = 100.0 + WINDOW
    assert guard.find_fallback(make_load(), {"vl": 1.0}) is not None


def test_what_was_taken_back_is_not_made_again_for_the_same_load():
    clock = AdaptationClock()
    guard = make_guard(clock)
    clock.now = WINDOW
    guard.find_fallback(make_load(), {"vl": 8.9})

    assert guard.is_rejected(make_load(12.1))
    assert not guard.is_rejected(make_load(image_share=0.9))


def test_an_advantage_within_the_error_is_not_certain():
    assert ReplanEstimate(BEFORE, 0.2, 0.1).is_certain
    assert not ReplanEstimate(BEFORE, 0.08, 0.1).is_certain
