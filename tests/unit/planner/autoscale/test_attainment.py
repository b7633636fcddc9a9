"""Missed goals add executors, but only as long as needed."""

from omnibus.bus.messages import LoadCounts, LoadEvent
from omnibus_planner.autoscale.attainment import MAX_FACTOR, STEP_FACTOR, AttainmentControl, GoalCounts
from omnibus_planner.autoscale.load_window import LoadWindows
from omnibus_planner.optimize import ModelLoad
from tests.unit.planner.adapting import Clock

WINDOW, PATIENCE, LEAST = 10.0, 100.0, 20


def control(clock: Clock) -> AttainmentControl:
    return AttainmentControl(["vl"], WINDOW, PATIENCE, LEAST, clock)


def hold(control: AttainmentControl, clock: Clock, seconds: int, counts: GoalCounts) -> float:
    """Return the factor after ``seconds`` of windows with ``counts``."""
    for _ in range(seconds):
        clock.now += 1.0
        control.update({"vl": counts})
    return control.raised_loads().get("vl", 1.0)


def test_more_is_planned_for_while_goals_are_missed_and_less_once_they_were_met_for_long():
    clock = Clock()
    found = control(clock)
    assert hold(found, clock, int(WINDOW) - 1, GoalCounts(90, 10)) == 1.0
    assert hold(found, clock, 1, GoalCounts(90, 10)) == STEP_FACTOR
    assert found.raise_loads({"vl": ModelLoad(8.0), "other": ModelLoad(8.0)}) == {
        "vl": ModelLoad(8.0 * STEP_FACTOR),
        "other": ModelLoad(8.0),
    }
    assert hold(found, clock, int(PATIENCE) - 1, GoalCounts(100, 0)) == STEP_FACTOR
    assert hold(found, clock, 2, GoalCounts(100, 0)) == 1.0


def test_a_step_down_that_had_to_be_taken_back_is_tried_again_later():
    clock = Clock()
    found = control(clock)
    hold(found, clock, int(WINDOW), GoalCounts(90, 10))
    assert hold(found, clock, int(PATIENCE) + 1, GoalCounts(100, 0)) == 1.0
    assert hold(found, clock, int(WINDOW), GoalCounts(90, 10)) == STEP_FACTOR
    assert hold(found, clock, int(PATIENCE) + 1, GoalCounts(100, 0)) == STEP_FACTOR


def test_chance_few_requests_and_other_models_raise_nothing_and_there_is_a_limit():
    clock = Clock()
    found = control(clock)
    assert hold(found, clock, 50, GoalCounts(98, 2)) == 1.0
    assert hold(found, clock, 50, GoalCounts(5, 5)) == 1.0
    found.update({"other": GoalCounts(0, 100)})
    assert found.raised_loads() == {}
    assert hold(found, clock, 1000, GoalCounts(0, 100)) == MAX_FACTOR


def test_what_was_measured_before_another_plan_counts_no_more():
    clock = Clock()
    found = control(clock)
    clock.now += WINDOW
    found.note_plan_change()
    assert hold(found, clock, int(WINDOW) - 1, GoalCounts(0, 100)) == 1.0
    assert hold(found, clock, 1, GoalCounts(0, 100)) == STEP_FACTOR


def test_a_window_counts_over_types_and_gateways_and_forgets():
    clock = Clock()
    windows = LoadWindows(WINDOW, clock)
    for gateway in ("a", "b"):
        kinds = {"thinker": LoadCounts(met=3, missed=1), "": LoadCounts(refused=2, missed=2)}
        windows.add_event(LoadEvent(gateway, 1, 1.0, 0, {"vl": kinds, "plain": {"thinker": LoadCounts(came=1)}}))
    assert windows.goal_counts() == {"vl": GoalCounts(6, 6)}
    clock.now += 2 * WINDOW
    assert windows.goal_counts() == {}
