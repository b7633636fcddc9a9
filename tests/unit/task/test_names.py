"""Unit tasks: equality, names, and all tasks of a composite."""

import re
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel, Field, ValidationError

from omnibus.bus import subjects
from omnibus.errors import BadRequest
from omnibus.task import CompositeTask, Encode, Think, UnitTask, tasks_of
from tests.unit.task.tasks import ADD, ONE, SPELL, TWO, Letters, Number, Spell, WordsInput


class PaintStyle(BaseModel):
    name: str = "plain"
    depth: int = 0


class Paint(UnitTask[WordsInput, Letters]):
    service: ClassVar[str] = "encoder"

    hue: str = "red"
    bright: bool = False
    depth: float = 1.0
    style: PaintStyle = PaintStyle()
    layers: tuple[int, ...] = ()
    options: dict[str, int] = Field(default_factory=dict)


def test_equal_fields_make_equal_tasks():
    assert Number(model="m") == Number(model="m")
    assert hash(Number(model="m")) == hash(Number(model="m"))
    assert Number(model="m", scale=2) != Number(model="m")
    assert Encode(model="m", component="x") != Think(model="m", component="x")


def test_a_task_whose_name_was_asked_for_stays_equal():
    model_task = Number(model="m")
    assert model_task.name == "number-m"

    assert model_task == Number(model="m")
    assert len({model_task, Number(model="m")}) == 1


def test_a_copy_with_other_fields_has_another_name():
    assert ONE.name == "number"

    assert ONE.model_copy(update={"scale": 3}).name == "number-scale_3"


@pytest.mark.parametrize(
    ("task", "name"),
    [
        (Paint(), "paint"),
        (Paint(model="m"), "paint-m"),
        (Paint(model="m", component="brush"), "paint-m-brush"),
        (Paint(hue="blue"), "paint-hue_blue"),
        (Paint(hue="red", bright=True), "paint-bright_true"),
        (Think(model="org/model.2", component="thinker"), "think-org_model_2-thinker"),
    ],
)
def test_a_name_shows_what_is_not_usual(task: UnitTask, name: str):
    assert task.name == name


def test_a_part_is_called_after_its_component_or_its_kind():
    assert (Paint().component_name, Paint(component="brush").component_name) == ("paint", "brush")
    assert (Paint.kind, Paint.service, Paint.own, Number.own) == ("paint", "encoder", False, True)


def test_a_class_gives_its_kind_its_name():
    class TextToSQL(UnitTask[WordsInput, Letters]):
        pass

    class LoudSpell(Spell):
        kind: ClassVar[str] = "shout"

    assert (TextToSQL.kind, LoudSpell.kind, LoudSpell.inputs_type, LoudSpell.own) == (
        "text-to-sql",
        "shout",
        WordsInput,
        True,
    )
    assert LoudSpell.outputs == {"letters": "stream", "count": "value"}


@pytest.mark.parametrize(
    "odd",
    [
        {"hue": "a" * 25}, {"hue": "two words"}, {"hue": "a.b"}, {"hue": ""}, {"depth": 0.5}, {"style": PaintStyle(depth=1)},
        {"layers": (1, 2)}, {"options": {"b": 1, "a": 2}},
    ],
)  # fmt: skip
def test_a_long_or_odd_value_is_digested(odd: dict[str, Any]):
    [field] = odd

    assert re.fullmatch(rf"paint-{field}_[0-9a-f]{{10}}", Paint(**odd).name)
    assert Paint(**odd).name == Paint(**odd).name


def test_digests_tell_values_apart_and_forget_their_order():
    names = {Paint(**odd).name for odd in ({"hue": "a.b"}, {"hue": "a_b"}, {"hue": "a b"}, {"layers": (1,)})}

    assert len(names) == 4
    assert Paint(options={"a": 1, "b": 2}).name == Paint(options={"b": 2, "a": 1}).name


def test_a_field_that_is_no_json_has_no_place_in_a_name():
    class Odd(UnitTask[WordsInput, Letters]):
        by: Any = None

    with pytest.raises(BadRequest, match="Odd.by is a function: fields are part of a task's name"):
        _ = Odd(by=lambda: 1).name


@pytest.mark.parametrize("model", ["qwen2.5-vl", "org/model", "two words", "a*b>c", "ünï", "line\nbreak", "…"])
def test_a_name_is_one_safe_token_of_a_subject(model: str):
    name = Think(model=model, component="thinker").name

    assert re.fullmatch(r"[A-Za-z0-9_-]+", name)
    assert subjects.task_subject(name, "x").split(".") == ["omnibus", "task", name, "x"]


def test_a_task_does_not_change():
    with pytest.raises(ValidationError):
        ONE.scale = 3


def test_a_field_that_no_task_has_is_refused():
    with pytest.raises(ValidationError):
        Number(hue=1)  # type: ignore[call-arg]


# All tasks of something


class Poem(CompositeTask):
    spell: Spell = SPELL
    others: list[UnitTask] = [ONE, SPELL]


class Book(CompositeTask):
    poems: dict[str, Poem] = {"a": Poem(), "b": Poem(spell=Spell(upper=True))}
    last: Any = (ADD, [TWO])
    title: str = "no task"


def test_every_task_of_a_composite_is_found_once_and_in_order():
    assert [task.name for task in tasks_of(Book())] == ["spell", "number", "spell-upper_true", "add", "number-scale_2"]


def test_tasks_of_a_task_a_list_and_nothing():
    assert tasks_of(ONE) == [ONE]
    assert tasks_of([[ONE], {"x": Number()}]) == [ONE]
    assert tasks_of("nothing") == []


def test_two_tasks_of_one_name_are_refused_with_their_classes():
    class Number(UnitTask[WordsInput, Letters]):
        pass

    with pytest.raises(
        BadRequest, match="two different unit tasks are named 'number' .*Number.*Number.*another `kind`"
    ):
        tasks_of([ONE, Number()])


def test_names_that_only_run_together_are_refused():
    apart = [Spell(model="a-b"), Spell(model="a", component="b")]

    with pytest.raises(BadRequest, match="two different unit tasks are named 'spell-a-b'"):
        tasks_of(apart)
