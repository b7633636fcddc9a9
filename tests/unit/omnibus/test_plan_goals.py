"""Goals of a model: those of request types replace single figures of all requests'."""

from omnibus.plan_goals import ModelGoals

GOALS = ModelGoals(
    {"first_token": 0.5, "token": 0.1},
    {"vision+talker": {"first_token": 4.0}, "vision": {"first_token": 2.0, "done": 30.0}},
)


def test_a_type_has_the_goals_of_its_components_and_else_those_of_all():
    assert GOALS.of_type("thinker") == {"first_token": 0.5, "token": 0.1}
    assert GOALS.of_type("vision+thinker") == {"first_token": 2.0, "token": 0.1, "done": 30.0}


def test_the_goals_of_more_components_count():
    assert GOALS.of_type("vision+thinker+talker") == {"first_token": 4.0, "token": 0.1, "done": 30.0}


def test_the_tightest_and_the_loosest_goal_of_a_figure_are_over_all_types():
    assert GOALS.tightest("first_token") == 0.5
    assert GOALS.tightest("real_time") == 0.0
    assert GOALS.loosest() == {"first_token": 4.0, "token": 0.1, "done": 30.0}


def test_a_model_without_goals_has_none_in_any_type():
    assert not ModelGoals()
    assert ModelGoals().of_type("vision+thinker") == {}
