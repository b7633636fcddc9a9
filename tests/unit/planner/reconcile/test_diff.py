"""What has to be done so that what runs is what is wanted: no more than that."""

from omnibus.cluster.desired import Kind, Wanted, wanted
from omnibus.plan import ModelPlan, Option, Plan
from services.planner.reconcile import Running, Scale, Start, Stop, steps
from services.planner.reconcile.diff import Change


def asked(**replicas: int) -> dict[Kind, Wanted]:
    options = {name: Option(("thinker",), "llm", count) for name, count in replicas.items()}
    return wanted(Plan(1, 0, 0.0, {"m": ModelPlan("f", "/m", ("thinker",), {}, options, {})}))


def mark(_: Wanted) -> str:
    return "mark"


def running(**replicas: int) -> list[Running]:
    return [
        Running(f"w-{kind.option}", kind, each.replicas, "mark", each.epoch) for kind, each in asked(**replicas).items()
    ]


def test_what_is_as_wanted_is_left_alone():
    assert steps(asked(E=1, L=2), running(E=1, L=2), mark) == []
    assert steps({}, [], mark) == []


def test_what_is_missing_starts_and_what_nobody_wants_stops_last():
    (there,) = running(E=1)
    (coming,) = asked(L=2).values()

    assert steps(asked(L=2), [there], mark) == [Start(coming), Stop(there)]


def test_other_numbers_are_scaled_more_before_fewer():
    many, few = running(A=3, B=1)
    fewer, more = asked(A=1, B=4).values()

    assert steps(asked(A=1, B=4), [many, few], mark) == [Scale(few, more), Scale(many, fewer)]


def test_what_another_plan_wants_as_well_is_told_so():
    (there,) = running(L=2)
    (wanted,) = asked(L=2).values()

    assert steps(asked(L=2), [there._replace(epoch=0)], mark) == [Scale(there._replace(epoch=0), wanted)]


def test_what_is_told_otherwise_is_changed_whatever_its_number():
    (there,) = running(L=1)
    (wanted,) = asked(L=2).values()

    assert steps(asked(L=2), [there._replace(mark="old")], mark) == [Change(there._replace(mark="old"), wanted)]


def test_a_kind_of_another_origin_is_another_one():
    (there,) = running(L=1)
    older = there._replace(kind=there.kind._replace(origin="older"))
    (wanted,) = asked(L=1).values()

    assert steps(asked(L=1), [older], mark) == [Start(wanted), Stop(older)]


def test_one_that_is_there_twice_goes():
    (there,) = running(L=1)
    twice = there._replace(name="w-L-again")

    assert steps(asked(L=1), [twice, there], mark) == [Stop(twice)]
