"""Short reasons for a new plan."""

import pytest

from omnibus_planner.rollout.transition_plan import describe_app_changes
from tests.unit.planner.apps import make_app, make_task

POEM, STORY = make_app("poem", make_task("spell")), make_app("story")
NEWER = make_app("poem", make_task("count"), version=2)


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ([], [POEM], "app poem registered"),
        ([POEM], [NEWER], "app poem updated"),
        ([POEM], [], "app poem unregistered"),
        ([], [make_app("poem@1-ab")], "app poem registered"),
        ([POEM], [POEM, make_app("poem@2-ab")], "app poem updated"),
        ([POEM], [make_app("poem@1-ab")], "app poem updated"),
        ([STORY], [POEM], "app poem registered, app story unregistered"),
        ([], [make_app(name) for name in "abcd"], "4 apps changed"),
    ],
)
def test_what_happened_to_apps_is_said(before: list, after: list, reason: str):
    assert describe_app_changes({each.name: each for each in before}, {each.name: each for each in after}) == reason
