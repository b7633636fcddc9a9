"""Unit tasks: equality, names, typed inputs."""

import re

import pytest
from pydantic import ValidationError

from omnibus.bus import subjects
from omnibus.task import CompositeTask, Encode, Think
from omnibus.task.library import ThinkInput
from tests.unit.task.tasks import ONE, Step, StepInput


def test_equal_fields_make_equal_tasks():
    assert Step(model="m", component="one") == ONE
    assert hash(Step(model="m", component="one")) == hash(ONE)
    assert Step(model="m", component="one", width=2) != ONE
    assert Encode(model="m", component="vision") != Think(model="m", component="vision")


def test_a_task_whose_name_was_asked_for_stays_equal():
    named = Step(model="m", component="one")
    assert named.name == "step-m-one-1"

    assert named == Step(model="m", component="one")
    assert len({named, Step(model="m", component="one")}) == 1


def test_a_name_holds_every_field():
    assert {Step(model=m, component=c, width=w).name for m in "ab" for c in "xy" for w in (1, 2)} == {
        f"step-{m}-{c}-{w}" for m in "ab" for c in "xy" for w in (1, 2)
    }


@pytest.mark.parametrize("model", ["qwen2.5-vl", "org/model", "two words", "a*b>c", "ünï", "line\nbreak", "…"])
def test_a_name_is_one_safe_token_of_a_subject(model: str):
    name = Think(model=model, component="thinker").name

    assert re.fullmatch(r"[A-Za-z0-9_-]+", name)
    assert subjects.task(name, "x").split(".") == ["omnibus", "task", name, "x"]


def test_a_task_does_not_change():
    with pytest.raises(ValidationError):
        ONE.width = 3


def test_a_field_that_no_task_has_is_refused():
    with pytest.raises(ValidationError):
        Step(model="m", component="one", hue=1)  # type: ignore[call-arg]


def test_inputs_are_checked():
    with pytest.raises(ValidationError):
        StepInput(text=3)  # type: ignore[arg-type]
    with pytest.raises(ValidationError):
        StepInput(colour=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        ThinkInput(messages=[], items=[], params={}, colour=1)  # type: ignore[call-arg]


def test_a_composite_without_invoke_says_so():
    class Empty(CompositeTask):
        pass

    with pytest.raises(TypeError, match="Empty has no invoke"):
        Empty().invoke(None)
