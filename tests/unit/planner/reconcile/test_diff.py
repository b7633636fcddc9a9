"""The minimal actions that turn the running executors into the wanted ones."""

from omnibus.cluster.desired import DesiredExecutors, ExecutorKind, desired_executors
from omnibus.plan import DeploymentOption, ModelPlan, Plan
from omnibus_planner.reconcile import RunningWorkload, ScaleWorkload, StartWorkload, StopWorkload, diff_workloads
from omnibus_planner.reconcile.diff import ReplaceWorkload


def asked(**replicas: int) -> dict[ExecutorKind, DesiredExecutors]:
    options = {name: DeploymentOption(("thinker",), "llm", count) for name, count in replicas.items()}
    return desired_executors(Plan(1, 0, 0.0, {"m": ModelPlan("f", "/m", ("thinker",), {}, options, {})}))


def mark(_: DesiredExecutors) -> str:
    return "mark"


def running(**replicas: int) -> list[RunningWorkload]:
    return [
        RunningWorkload(f"w-{kind.option}", kind, each.replicas, "mark", each.epoch)
        for kind, each in asked(**replicas).items()
    ]


def test_what_is_as_wanted_is_left_alone():
    assert diff_workloads(asked(E=1, L=2), running(E=1, L=2), mark) == []
    assert diff_workloads({}, [], mark) == []


def test_what_is_missing_starts_and_what_nobody_wants_stops_last():
    (there,) = running(E=1)
    (coming,) = asked(L=2).values()

    assert diff_workloads(asked(L=2), [there], mark) == [StartWorkload(coming), StopWorkload(there)]


def test_other_numbers_are_scaled_more_before_fewer():
    many, few = running(A=3, B=1)
    fewer, more = asked(A=1, B=4).values()

    assert diff_workloads(asked(A=1, B=4), [many, few], mark) == [ScaleWorkload(few, more), ScaleWorkload(many, fewer)]


def test_what_another_plan_wants_as_well_is_told_so():
    (there,) = running(L=2)
    (wanted,) = asked(L=2).values()

    assert diff_workloads(asked(L=2), [there._replace(epoch=0)], mark) == [
        ScaleWorkload(there._replace(epoch=0), wanted)
    ]


def test_what_is_told_otherwise_is_changed_whatever_its_number():
    (there,) = running(L=1)
    (wanted,) = asked(L=2).values()

    assert diff_workloads(asked(L=2), [there._replace(mark="old")], mark) == [
        ReplaceWorkload(there._replace(mark="old"), wanted)
    ]


def test_a_kind_of_another_origin_is_another_one():
    (there,) = running(L=1)
    older = there._replace(kind=there.kind._replace(origin="older"))
    (wanted,) = asked(L=1).values()

    assert diff_workloads(asked(L=1), [older], mark) == [StartWorkload(wanted), StopWorkload(older)]


def test_one_that_is_there_twice_goes():
    (there,) = running(L=1)
    twice = there._replace(name="w-L-again")

    assert diff_workloads(asked(L=1), [twice, there], mark) == [StopWorkload(twice)]
