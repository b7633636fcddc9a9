"""Generated pages contain all definitions unchanged."""

import re

import msgspec
import pytest

from omnibus.reference import fields, settings
from omnibus.reference import fields as comments
from omnibus.settings import Settings
from tests import pages
from tests.pages import errors, tasks

SHAPE = re.compile(r"\[[^\]]+\]|As (?:those of )?``")


@pytest.mark.parametrize("name", pages.PAGES)
def test_a_page_is_what_the_definitions_make_of_it(name: str):
    assert (pages.DOCS / name).read_text() == pages.PAGES[name](), "run make pages"


def test_no_area_of_settings_is_left_out():
    assert set(Settings.__subclasses__()) == set(settings.AREAS)


@pytest.mark.parametrize("area", settings.AREAS, ids=lambda area: area.area)
def test_every_setting_is_described(area: type[Settings]):
    groups = list(fields.described(area))

    assert [field.name for each in groups for field in each.fields] == [
        field.name for field in msgspec.structs.fields(area)
    ]
    assert all(each.comment for each in groups)


def test_every_error_that_clients_may_see_has_a_meaning():
    error_names = {each.__name__ for root in errors.GROUPS for each in errors.subclasses_of(root)}

    assert {name for name, text in errors.read_meanings().items() if text} >= error_names


@pytest.mark.parametrize("task", tasks.unit_tasks(), ids=lambda task: task.__name__)
def test_a_unit_task_says_its_errors_and_all_about_its_inputs_and_outputs(task):
    assert tasks.raised_errors(task)
    for model in (task.inputs_type, task.outputs_type):
        descriptions = described_fields(model)
        assert all(descriptions.values())
        tensors = {name for name, (kind, *_) in model.fields.items() if kind == "tensor"}
        assert {name for name in tensors if not SHAPE.search(descriptions[name])} == set()


@pytest.mark.parametrize("task", tasks.composite_tasks(), ids=lambda task: task.__name__)
def test_a_composite_task_says_all_about_its_fields_its_request_and_its_answer(task):
    for model in (task, *tasks.request_and_answer(task)):
        assert all(described_fields(model).values())


@pytest.mark.parametrize("part", tasks.stream_parts(), ids=lambda part: part.__name__)
def test_a_part_says_all_about_its_fields(part):
    assert all(described_fields(part).values())


def described_fields(model) -> dict[str, str]:
    """Yield each field with its comment, or the previous field's."""
    own, descriptions, comment = comments.field_comments(model), {}, ""
    for name in model.model_fields:
        descriptions[name] = comment = own.get(name) or comment
    return descriptions
