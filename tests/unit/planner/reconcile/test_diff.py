"""The minimal actions that turn the running executors into the wanted ones."""

from omnibus.cluster.presence import DesiredExecutors, ExecutorKind, desired_executors
from omnibus.plan import DeploymentOption, ModelPlan, Plan
from omnibus_planner.reconcile import RunningWorkload, ScaleWorkload, StartWorkload, StopWorkload, diff_workloads
from omnibus_planner.reconcile.backend import ReplaceWorkload


def make_desired(**replicas: int) -> dict[ExecutorKind, DesiredExecutors]:
    options = {name: DeploymentOption(("thinker",), "llm", count) for name, count in replicas.items()}
    return desired_executors(Plan(1, 0, 0.0, {"m": ModelPlan("f", "/m", ("thinker",), {}, options, {})}))


def give_mark(_: DesiredExecutors) -> str:
    return "mark"


def make_running(**replicas: int) -> list[RunningWorkload]:
    return [
        RunningWorkload(f"w-{kind.option}", kind, each.replicas, "mark", each.epoch)
        for kind, each in make_desired(**replicas).items()
    ]


def test_what_is_as_wanted_is_left_alone():
    assert diff_workloads(make_desired(E=1, L=2), make_running(E=1, L=2), give_mark) == []
    assert diff_workloads({}, [], give_mark) == []


def test_what_is_missing_starts_and_what_nobody_wants_stops_last():
    (there,) = make_running(E=1)
    (coming,) = make_desired(L=2).values()

    assert diff_workloads(make_desired(L=2), [there], give_mark) == [StartWorkload(coming), StopWorkload(there)]


def test_other_numbers_are_scaled_more_before_fewer():
    many, few = make_running(A=3, B=1)
    fewer, more = make_desired(A=1, B=4).values()

    assert diff_workloads(make_desired(A=1, B=4), [many, few], give_mark) == [
        ScaleWorkload(few, more),
        ScaleWorkload(many, fewer),
    ]


def test_what_another_plan_wants_as_well_is_told_so():
    (there,) = make_running(L=2)
    (target,) = make_desired(L=2).values()

    assert diff_workloads(make_desired(L=2), [there._replace(epoch=0)], give_mark) == [
        ScaleWorkload(there._replace(epoch=0), target)
    ]


def test_what_is_told_otherwise_is_changed_whatever_its_number():
    (there,) = make_running(L=1)
    (target,) = make_desired(L=2).values()

    assert diff_workloads(make_desired(L=2), [there._replace(mark="old")], give_mark) == [
        ReplaceWorkload(there._replace(mark="old"), target)
    ]


def test_a_kind_of_another_origin_is_another_one():
    (there,) = make_running(L=1)
    older = there._replace(kind=there.kind._replace(origin="older"))
    (target,) = make_desired(L=1).values()

    assert diff_workloads(make_desired(L=1), [older], give_mark) == [StartWorkload(target), StopWorkload(older)]


def test_one_that_is_there_twice_goes():
    (there,) = make_running(L=1)
    twice = there._replace(name="w-L-again")

    assert diff_workloads(make_desired(L=1), [twice, there], give_mark) == [StopWorkload(twice)]
