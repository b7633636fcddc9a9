"""Replans that serve less than before are reverted once. They are not repeated for the same load."""

import pytest

from omnibus_planner.autoscale.replan_guard import ReplanEstimate, ReplanGuard
from omnibus_planner.optimize import ModelLoad, PlanningResult
from tests.unit.planner.adapting import SEEN, TEXT, Clock

WINDOW = 30.0
BEFORE = PlanningResult({}, {"planned": "before"}, {}, {})


def load(rate: float = 12.0, seen: float = 0.5) -> dict[str, ModelLoad]:
    return {"vl": ModelLoad(rate, {SEEN: seen, TEXT: 1 - seen})}


def replanned(clock: Clock) -> ReplanGuard:
    """Return a guard after a replan. Before it, 11.7 req/s were served."""
    guard = ReplanGuard(WINDOW, clock)
    guard.note_replan(BEFORE, load(), {"vl": 11.7})
    guard.note_running()
    return guard


def test_less_served_under_the_same_load_goes_back_once():
    clock = Clock()
    guard = replanned(clock)
    clock.now = WINDOW - 1
    assert guard.find_fallback(load(), {"vl": 8.9}) is None

    clock.now = WINDOW
    found = guard.find_fallback(load(), {"vl": 8.9})

    assert found is not None
    assert found[0] is BEFORE
    assert found[1] == "load: back to the plan before: 8.9 req/s were served, 11.7 by it"
    assert guard.find_fallback(load(), {"vl": 8.9}) is None


@pytest.mark.parametrize(
    ("now", "served"), [(load(), 11.5), (load(rate=9.0), 8.9), (load(seen=0.9), 8.9), ({}, 0.0)],
    ids=["as much is served", "less comes", "another mix", "nothing comes"],
)  # fmt: skip
def test_a_replan_stays_when(now: dict[str, ModelLoad], served: float):
    clock = Clock()
    guard = replanned(clock)
    clock.now = WINDOW

    assert guard.find_fallback(now, {"vl": served}) is None
    assert not guard.is_rejected(load())


def test_the_time_counts_from_when_the_executors_are_there():
    clock = Clock()
    guard = ReplanGuard(WINDOW, clock)
    guard.note_replan(BEFORE, load(), {"vl": 11.7})
    clock.now = 100.0
    assert guard.find_fallback(load(), {"vl": 1.0}) is None

    guard.note_running()
    clock.now = 100.0 + WINDOW
    assert guard.find_fallback(load(), {"vl": 1.0}) is not None


def test_what_was_taken_back_is_not_made_again_for_the_same_load():
    clock = Clock()
    guard = replanned(clock)
    clock.now = WINDOW
    guard.find_fallback(load(), {"vl": 8.9})

    assert guard.is_rejected(load(12.1))
    assert not guard.is_rejected(load(seen=0.9))


def test_an_advantage_within_the_error_is_not_certain():
    assert ReplanEstimate(BEFORE, 0.2, 0.1).is_certain
    assert not ReplanEstimate(BEFORE, 0.08, 0.1).is_certain
