"""Unit tasks of apps: one model each, shared if equal; an invalid one blocks no other."""

import logging
import re
from typing import Any

import msgspec
import pytest

from omnibus.app_record import AppRecord, TaskRecord
from omnibus.plan import DeploymentOption, ModelPlan, Path, Plan, decode_plan, encode_plan
from omnibus_planner.declared import app_models, declarations_file
from tests.unit.planner.apps import ROOT, make_app, make_task

SPELL, COUNT = make_task("spell"), make_task("count")


def plan_models(*apps: AppRecord, **declared: dict[str, Any]) -> dict[str, ModelPlan]:
    plans = declarations_file.build_static_plans(msgspec.convert(declared, dict[str, declarations_file.DeclaredModel]))
    return app_models.app_models({record.name: record for record in apps}, plans)


def read_records(plan: ModelPlan) -> list[TaskRecord]:
    return msgspec.json.decode(plan.checkpoint, type=list[TaskRecord])


def test_without_apps_there_are_no_models():
    assert plan_models() == {}


def test_an_own_task_becomes_a_model_with_one_option():
    plans = plan_models(make_app("poem", SPELL))

    assert plans == {
        "spell": ModelPlan(
            family="python",
            checkpoint=plans["spell"].checkpoint,
            components=("spell",),
            encoders={},
            options={"spell": DeploymentOption(("spell",), "generator", engine="omnibus.executor.python_task:engine")},
            types={"spell": (Path("spell", {"spell": "spell"}, 1.0),)},
            tasks={"spell": "spell"},
            apps=("poem",),
        )
    }
    assert read_records(plans["spell"]) == [SPELL]


def test_a_task_that_others_run_is_no_model():
    assert plan_models(make_app("chat", make_task("think", "qwen", "thinker", own=False))) == {}


def test_the_service_that_hosts_a_task_is_the_one_that_it_names():
    assert plan_models(make_app("poem", make_task("spell", service="llm")))["spell"].options["spell"].service == "llm"


def test_equal_tasks_of_several_apps_are_one_model_with_all_their_names():
    plans = plan_models(make_app("story", SPELL, COUNT), make_app("poem", SPELL))

    assert {name: plan.apps for name, plan in plans.items()} == {"spell": ("poem", "story"), "count": ("story",)}


def test_equal_tasks_may_have_come_with_their_fields_in_another_order():
    first, second = (make_task("spell", fields=fields) for fields in ({"a": 1, "b": 2}, {"b": 2, "a": 1}))

    assert plan_models(make_app("poem", first)) == plan_models(make_app("poem", second))
    assert plan_models(make_app("poem", first), make_app("story", second))["spell"].apps == ("poem", "story")


def test_tasks_of_one_model_are_its_components():
    plans = plan_models(make_app("poem", make_task("spell", "words"), make_task("count", "words", "counter")))

    assert list(plans) == ["words"]
    assert plans["words"].components == ("counter", "spell")
    assert plans["words"].tasks == {"spell": "spell-words", "counter": "count-words-counter"}
    assert plans["words"].types == {
        "counter+spell": (Path("counter>spell", {"counter": "counter", "spell": "spell"}, 1.0),)
    }
    assert [option.components for option in plans["words"].options.values()] == [("counter",), ("spell",)]


def test_a_request_that_uses_one_of_a_models_tasks_has_a_path():
    plan = plan_models(make_app("poem", make_task("spell", "words"), make_task("count", "words")))["words"]

    assert plan.paths_for(frozenset(["spell"])) == (Path("spell", {"spell": "spell"}, 1.0),)


def test_two_settings_of_a_task_in_one_model_are_two_models():
    plain = make_task("spell", "words")
    upper = make_task("spell", "words", name="spell-words-upper_true", fields={"model": "words", "upper": True})

    plans = plan_models(make_app("poem", plain, upper))

    assert {name: plan.tasks for name, plan in plans.items()} == {
        "words": {"spell": "spell-words"},
        "spell-words-upper_true": {"spell": "spell-words-upper_true"},
    }


def test_an_app_that_comes_later_changes_nothing_of_what_runs():
    poem = make_app("poem", make_task("spell", "words"))
    story = make_app("story", make_task("spell", "words"), make_task("count", "words"), timestamp=2000.0)

    before, after = plan_models(poem), plan_models(story, poem)

    assert after["words"] == msgspec.structs.replace(before["words"], apps=("poem", "story"))
    assert after["count-words"].tasks == {"count": "count-words"}


def test_the_same_apps_make_the_same_models_in_any_order():
    apps = [
        make_app("poem", SPELL, make_task("rhyme", "words")),
        make_app("story", COUNT, SPELL, make_task("rhyme", "words")),
    ]

    assert plan_models(*apps) == plan_models(*reversed(apps))


def test_a_model_that_is_declared_is_left_alone():
    vl = {"family": "qwen2_5_vl", "checkpoint": "/m"}

    plans = plan_models(make_app("poem", make_task("spell", "qwen")), qwen=vl)

    assert {name: plan.tasks for name, plan in plans.items()} == {"spell-qwen": {"spell": "spell-qwen"}}


def test_the_plan_can_be_written_and_read():
    plan = Plan(1, 0, 0.0, plan_models(make_app("poem", SPELL, make_task("count", "words", fields={"to": 3}))))

    assert decode_plan(encode_plan(plan)) == plan


REFUSED: dict[str, tuple[TaskRecord, str]] = {
    "service": (make_task("rhyme", service="gpu"), "no service 'gpu'"),
    "service that would be a path": (make_task("rhyme", service="../tmp/x"), "no service"),
    "name": (make_task("rhyme", name="rhyme.all"), "must consist of letters"),
    "component": (make_task("rhyme", component="a>b", name="rhyme"), "must consist of letters"),
    "class": (make_task("rhyme", cls="words"), "'words' names no module:Class"),
    "another of that name": (make_task("spell", cls="other:Spell"), r"poem brings another .*words:Spell in /apps, not other:Spell"),
    "another directory": (make_task("spell", root="/elsewhere"), r"words:Spell in /apps, not words:Spell in /elsewhere"),
    "a declared model's": (make_task("think", "qwen", "thinker"), "'think-qwen-thinker'"),
}  # fmt: skip


@pytest.mark.parametrize(("faulty", "fault"), REFUSED.values(), ids=REFUSED.keys())
def test_a_task_that_cannot_be_served_is_logged_and_the_others_are(
    faulty: TaskRecord, fault: str, caplog: pytest.LogCaptureFixture
):
    vl = {"family": "qwen2_5_vl", "checkpoint": "/m"}

    with caplog.at_level(logging.ERROR):
        plans = plan_models(make_app("poem", SPELL), make_app("story", faulty, COUNT, timestamp=2000.0), qwen=vl)

    assert {name: plan.apps for name, plan in plans.items()} == {"spell": ("poem",), "count": ("story",)}
    [entry] = caplog.messages
    assert "story" in entry
    assert re.search(fault, entry)


def test_an_uploaded_app_brings_no_code_for_executors(caplog: pytest.LogCaptureFixture):
    assert plan_models(make_app("poem", SPELL, kind="upload")) == {}

    assert "an uploaded app cannot contain code for executors" in caplog.text


def test_what_a_refused_app_says_does_not_count_for_others():
    plans = plan_models(make_app("evil", SPELL, kind="upload"), make_app("poem", SPELL, timestamp=2000.0))

    assert plans["spell"].apps == ("poem",)


def test_names_that_meet_on_the_bus_are_kept_apart(caplog: pytest.LogCaptureFixture):
    one, other = make_task("spell", "a-b", "c", name="spell-1"), make_task("spell", "a", "b-c", name="spell-2")

    plans = plan_models(make_app("poem", one), make_app("story", other, timestamp=2000.0))

    assert list(plans) == ["a-b"]
    assert "c of model a-b and b-c of model a have the same executor name" in caplog.text


def test_a_task_whose_every_name_is_taken_is_logged(caplog: pytest.LogCaptureFixture):
    vl = {"family": "qwen2_5_vl", "checkpoint": "/m"}

    assert plan_models(make_app("poem", make_task("qwen")), qwen=vl) == {}

    assert "unit task 'qwen' of poem is not served: a model has its name" in caplog.text


def test_records_say_where_the_code_is():
    [record] = read_records(plan_models(make_app("poem", SPELL))["spell"])

    assert (record.cls, record.root) == ("words:Spell", ROOT)


def test_models_that_share_a_component_do_not_collide():
    vl = {"family": "qwen2_5_vl", "checkpoint": "/m"}
    twin = {
        **vl, "shares": {"vision": "a"}, "options": {"L": {"components": ["thinker"], "service": "llm"}},
        "paths": [{"options": ["a/E", "L"]}],
    }  # fmt: skip

    assert list(plan_models(make_app("poem", SPELL), a=vl, b=twin)) == ["spell"]
