"""Short reasons for a new plan."""

import pytest

from omnibus_planner.rollout.reasons import describe_app_changes
from tests.unit.planner.apps import app, task

POEM, STORY = app("poem", task("spell")), app("story")
NEWER = app("poem", task("count"), version=2)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ([], [POEM], "app poem registered"),
        ([POEM], [NEWER], "app poem updated"),
        ([POEM], [], "app poem unregistered"),
        ([], [app("poem@1-ab")], "app poem registered"),
        ([POEM], [POEM, app("poem@2-ab")], "app poem updated"),
        ([POEM], [app("poem@1-ab")], "app poem updated"),
        ([STORY], [POEM], "app poem registered, app story unregistered"),
        ([], [app(name) for name in "abcd"], "4 apps changed"),
    ],
)
def test_what_happened_to_apps_is_said(before: list, after: list, said: str):
    assert describe_app_changes({each.name: each for each in before}, {each.name: each for each in after}) == said
