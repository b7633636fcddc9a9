"""Missed goals add executors, but only as long as needed."""

from omnibus.bus.messages import LoadCounts, LoadEvent
from omnibus_planner.autoscale.attainment import MAX_FACTOR, STEP_FACTOR, AttainmentControl, GoalCounts
from omnibus_planner.autoscale.load_window import LoadWindows
from omnibus_planner.optimize import ModelLoad
from tests.unit.planner.adapting import AdaptationClock

WINDOW, PATIENCE, LEAST = 10.0, 100.0, 20


def make_control(clock: AdaptationClock) -> AttainmentControl:
    return AttainmentControl(["vl"], WINDOW, PATIENCE, LEAST, clock)


def hold_counts(control: AttainmentControl, clock: AdaptationClock, seconds: int, counts: GoalCounts) -> float:
    """Return the factor after ``seconds`` of windows with ``counts``."""
    for _ in range(seconds):
        clock.now += 1.0
        control.update({"vl": counts})
    return control.raised_loads().get("vl", 1.0)


def test_more_is_planned_for_while_goals_are_missed_and_less_once_they_were_met_for_long():
    clock = AdaptationClock()
    attainment = make_control(clock)
    assert hold_counts(attainment, clock, int(WINDOW) - 1, GoalCounts(90, 10)) == 1.0
    assert hold_counts(attainment, clock, 1, GoalCounts(90, 10)) == STEP_FACTOR
    assert attainment.raise_loads({"vl": ModelLoad(8.0), "other": ModelLoad(8.0)}) == {
        "vl": ModelLoad(8.0 * STEP_FACTOR),
        "other": ModelLoad(8.0),
    }
    assert hold_counts(attainment, clock, int(PATIENCE) - 1, GoalCounts(100, 0)) == STEP_FACTOR
    assert hold_counts(attainment, clock, 2, GoalCounts(100, 0)) == 1.0


def test_a_step_down_that_had_to_be_taken_back_is_tried_again_later():
    clock = AdaptationClock()
    attainment = make_control(clock)
    hold_counts(attainment, clock, int(WINDOW), GoalCounts(90, 10))
    assert hold_counts(attainment, clock, int(PATIENCE) + 1, GoalCounts(100, 0)) == 1.0
    assert hold_counts(attainment, clock, int(WINDOW), GoalCounts(90, 10)) == STEP_FACTOR
    assert hold_counts(attainment, clock, int(PATIENCE) + 1, GoalCounts(100, 0)) == STEP_FACTOR


def test_chance_few_requests_and_other_models_raise_nothing_and_there_is_a_limit():
    clock = AdaptationClock()
    attainment = make_control(clock)
    assert hold_counts(attainment, clock, 50, GoalCounts(98, 2)) == 1.0
    assert hold_counts(attainment, clock, 50, GoalCounts(5, 5)) == 1.0
    attainment.update({"other": GoalCounts(0, 100)})
    assert attainment.raised_loads() == {}
    assert hold_counts(attainment, clock, 1000, GoalCounts(0, 100)) == MAX_FACTOR


def test_what_was_measured_before_another_plan_counts_no_more():
    clock = AdaptationClock()
    attainment = make_control(clock)
    clock.now += WINDOW
    attainment.note_plan_change()
    assert hold_counts(attainment, clock, int(WINDOW) - 1, GoalCounts(0, 100)) == 1.0
    assert hold_counts(attainment, clock, 1, GoalCounts(0, 100)) == STEP_FACTOR


def test_a_window_counts_over_types_and_gateways_and_forgets():
    clock = AdaptationClock()
    windows = LoadWindows(WINDOW, clock)
    for gateway in ("a", "b"):
        kinds = {"thinker": LoadCounts(met=3, missed=1), "": LoadCounts(refused=2, missed=2)}
        windows.add_event(LoadEvent(gateway, 1, 1.0, 0, {"vl": kinds, "plain": {"thinker": LoadCounts(came=1)}}))
    assert windows.goal_counts() == {"vl": GoalCounts(6, 6)}
    clock.now += 2 * WINDOW
    assert windows.goal_counts() == {}
