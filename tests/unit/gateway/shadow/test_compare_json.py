"""Comparing JSON answers under a gate's rules, and locating differences."""

from typing import Any

import pytest

from omnibus.canary.candidate import GateRules
from omnibus_gateway.rerun.differences import describe_json_difference

EXACT, LOOSE = GateRules(tolerance=0.0), GateRules(tolerance=0.1, score=0.5)


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [
        ({"a": [1, 2.0, None, True]}, {"a": [1, 2.0, None, True]}, ""),
        (1, 1.0, ""),
        (100, 100.5, "answer: relative error 0.005, at most 0 is expected"),
        ({"a": [{"b": "x y"}]}, {"a": [{"b": "x z"}]}, "answer.a[0].b is similar by 0.50, 1.00 is expected"),
        ([1, 2], [1, 2, 3], "answer is a list of 3, a list of 2 is expected"),
        ({"a": 1}, {"b": 1}, "answer is an object with b, an object with a is expected"),
        (True, 1, "answer is 1, True is expected"),
        (None, "", "answer is '', None is expected"),
    ],
)
def test_values_are_compared_one_by_one(one: Any, other: Any, difference: str):
    assert describe_json_difference("answer", one, other, EXACT) == difference


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (100, 109, True),
        (100, 111, False),
        (0, 0.05, True),
        ("one two", "one 2", True),
        ("one two", "1 2", False),
        ([["one two", 1.0]], [["one 2", 1.05]], True),
    ],
)
def test_rules_say_how_much_numbers_and_texts_may_differ(one: Any, other: Any, same: bool):
    assert (describe_json_difference("answer", one, other, LOOSE) == "") is same


def test_what_is_nested_without_end_is_compared_as_a_whole():
    one: Any = 1.0
    other: Any = 1.01
    for _ in range(200):
        one, other = [one], [other]

    assert describe_json_difference("answer", one, other, LOOSE).endswith("a list of 1 is expected")
