"""Deriving the wanted executors from plans."""

import msgspec
import pytest

from omnibus.cluster.presence import ExecutorKind, added_replicas, desired_executors, replica_counts
from omnibus.plan import DeploymentOption, ModelPlan, Plan, decode_plan, encode_plan


def make_model(options: dict[str, DeploymentOption], **fields: object) -> ModelPlan:
    return ModelPlan("f", "/m", ("vision", "thinker"), {}, options, {}, **fields)


def make_plan(**models: ModelPlan) -> Plan:
    return Plan(1, 0, 0.0, models)


def make_option(replicas: int = 1, **fields: object) -> DeploymentOption:
    return DeploymentOption(("thinker",), "llm", replicas, **fields)


def test_each_kind_is_asked_for_once_with_all_that_it_is_told():
    tasks = {"vision": "encode-m-vision", "thinker": "think-m-thinker"}
    model_plan = make_model({"L": make_option(2, gpus=1, engine="a:b")}, context=9, tasks=tasks, apps=("poem",))

    (executors,) = desired_executors(make_plan(m=model_plan)).values()

    assert executors.kind == ExecutorKind("m", "L", model_plan.option_origin("L"))
    assert (executors.replicas, executors.service, executors.gpus, executors.apps) == (2, "llm", 1, ("poem",))
    assert {name.removeprefix("OMNIBUS_EXECUTOR_"): value for name, value in executors.env.items()} == {
        "MODEL": "m", "FAMILY": "f", "CHECKPOINT": "/m", "CONTEXT": "9", "OPTION": "L", "ORIGIN": model_plan.option_origin("L"),
        "COMPONENTS": "thinker", "TASKS": "think-m-thinker", "ENGINE": "a:b",
    }  # fmt: skip


def test_executors_have_the_nodes_of_their_plan():
    plan = msgspec.structs.replace(
        make_plan(m=make_model({"L": make_option(3), "S": make_option()})), placement={"m/L": {"n1": 1, "n2": 2}}
    )

    executors = desired_executors(decode_plan(encode_plan(plan)))

    assert {kind.option: each.nodes for kind, each in executors.items()} == {"L": {"n1": 1, "n2": 2}, "S": {}}
    assert b"placement" not in encode_plan(make_plan())


def test_executors_of_another_batch_are_of_another_kind():
    plain, batched_model = make_model({"L": make_option()}), make_model({"L": make_option(batch=8)})

    (executors,) = desired_executors(make_plan(m=batched_model)).values()

    assert executors.env["OMNIBUS_EXECUTOR_BATCH"] == "8"
    assert plain.option_origin("L") != batched_model.option_origin("L")


def test_two_plans_together_ask_for_the_most_of_each_kind():
    one, other = (
        make_plan(m=make_model({"L": make_option(3), "E": make_option(1)})),
        make_plan(m=make_model({"L": make_option(2), "X": make_option(1)})),
    )

    counts = {kind.option: each.replicas for kind, each in desired_executors(one, other).items()}

    assert counts == {"L": 3, "E": 1, "X": 1}
    assert desired_executors(one, other).keys() == desired_executors(other, one).keys()


def test_nobody_is_asked_for_a_shared_option_or_one_without_replicas():
    lender, borrower = (
        make_model({"E": make_option()}),
        make_model({"m/E": make_option(0, of="m/E"), "L": make_option(0)}),
    )

    assert [kind.option for kind in replica_counts({"m": lender, "n": borrower})] == ["E"]


@pytest.mark.parametrize(
    "other",
    [
        make_model({"L": make_option()}, context=7),
        msgspec.structs.replace(make_model({"L": make_option()}), checkpoint="/other"),
        msgspec.structs.replace(make_model({"L": make_option()}), family="g"),
        make_model({"L": make_option(gpus=2)}),
        make_model({"L": make_option(engine="a:b")}),
        make_model({"L": DeploymentOption(("vision",), "llm")}),
        make_model({"L": DeploymentOption(("thinker",), "generator")}),
        make_model({"L": make_option()}, tasks={"thinker": "think"}),
    ],
)
def test_executors_that_go_by_something_else_are_of_another_origin(other: ModelPlan):
    assert make_model({"L": make_option()}).option_origin("L") != other.option_origin("L")


def test_numbers_paths_and_other_options_do_not_make_another_origin():
    one = make_model({"L": make_option()})
    other = make_model({"L": make_option(5), "E": make_option()}, voices=("a",), apps=("poem",))

    assert one.option_origin("L") == other.option_origin("L")
    assert len(one.option_origin("L")) == 16


def test_of_an_apps_code_it_is_what_its_executors_say_without_being_told():
    model_plan = msgspec.structs.replace(make_model({"spell": make_option()}), family="python", checkpoint="[]")

    assert model_plan.option_origin("spell") == msgspec.structs.replace(model_plan, context=9).option_origin("spell")
    assert model_plan.option_origin("spell") != msgspec.structs.replace(model_plan, checkpoint="[1]").option_origin(
        "spell"
    )


def test_only_kinds_of_which_there_are_too_few_have_to_start():
    before = {"m": make_model({"L": make_option(2), "E": make_option(1)})}
    after = {
        "m": make_model({"L": make_option(3), "E": make_option(1), "X": make_option(2)}),
        "n": make_model({"L": make_option()}),
    }

    additions = {(kind.model, kind.option): count for kind, count in added_replicas(before, after).items()}

    assert additions == {("m", "L"): 3, ("m", "X"): 2, ("n", "L"): 1}
    assert added_replicas(after, before) == {}


def test_a_plan_of_before_reasons_is_read():
    old = b'{"epoch":3,"seed":0,"created":1.0,"models":{},"v":1}'

    assert decode_plan(old) == Plan(3, 0, 1.0, {})
    assert decode_plan(encode_plan(Plan(3, 0, 1.0, {}, reason="load", explain={"bound": 0.9}))).explain == {
        "bound": 0.9
    }
