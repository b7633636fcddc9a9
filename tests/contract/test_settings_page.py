"""docs/settings.md has every setting, as it is defined."""

import msgspec
import pytest

from omnibus.settings import Settings
from tests import settings_page


def test_the_page_is_what_the_definitions_make_of_it():
    assert settings_page.PAGE.read_text() == settings_page.page(), "run python -m tests.settings_page"


def test_no_area_is_left_out():
    assert set(Settings.__subclasses__()) == set(settings_page.AREAS)


@pytest.mark.parametrize("area", settings_page.AREAS, ids=lambda area: area.area)
def test_every_setting_is_described(area: type[Settings]):
    found = list(settings_page.described(area))

    assert [field.name for each in found for field in each.fields] == [
        field.name for field in msgspec.structs.fields(area)
    ]
    assert all(each.comment for each in found)
