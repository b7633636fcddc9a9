"""Comparing the outputs of two runs."""

from typing import Any

import numpy as np
import pytest

from omnibus.canary.candidate import GateRules
from omnibus.graph import GraphNode
from omnibus_gateway.dispatch.retention import RecordedChunk
from omnibus_gateway.rerun.differences import describe_difference, find_differences

EXACT = GateRules(tolerance=0.0)


def make_rows(*parts: Any) -> list[RecordedChunk]:
    return [RecordedChunk({}, np.asarray(part, np.float32)) for part in parts]


def make_words(*parts: str, **closing: Any) -> list[RecordedChunk]:
    return [*(RecordedChunk({"text": part, "ids": [len(part)]}) for part in parts), RecordedChunk(closing, last=True)]


def test_how_an_output_is_cut_into_chunks_does_not_matter():
    assert describe_difference(make_rows([[1, 2], [3, 4]]), make_rows([[1, 2]], [[3, 4]]), EXACT) == ""
    assert (
        describe_difference(
            [RecordedChunk({"text": "ab"})], [RecordedChunk({"text": "a"}), RecordedChunk({"text": "b"})], EXACT
        )
        == ""
    )


def test_tensors_are_equal_up_to_the_tolerance():
    one, other = make_rows([[1.0, 0.0]]), make_rows([[1.0, 0.01]])

    assert describe_difference(one, other, GateRules(tolerance=0.011)) == ""
    assert describe_difference(one, other, GateRules(tolerance=0.009)) == (
        "relative error 0.01, at most 0.009 is expected"
    )
    assert "relative error 0.01" in describe_difference(one, other, EXACT)


@pytest.mark.parametrize("other", [[[np.nan, 0.0]], [[np.inf, 0.0]]])
def test_what_is_no_number_differs_from_one_whatever_is_tolerated(other: Any):
    assert "relative error inf" in describe_difference(
        make_rows([[1.0, 0.0]]), make_rows(other), GateRules(tolerance=1e9)
    )
    assert describe_difference(make_rows(other), make_rows(other), EXACT) == ""


@pytest.mark.parametrize(("one", "other"), [(np.inf, -np.inf), (np.nan, np.inf), (-np.inf, np.nan)])
def test_what_is_no_number_equals_itself_alone(one: float, other: float):
    difference = describe_difference(make_rows([[1.0, one]]), make_rows([[1.0, other]]), GateRules(tolerance=1e9))

    assert "relative error inf" in difference


def test_equal_samples_at_another_rate_are_another_sound():
    one, other = ([RecordedChunk({"rate": rate}, np.ones(4, np.float32))] for rate in (24000, 16000))

    assert describe_difference(one, other, EXACT) == "[16000] samples/s, [24000] is expected"


def test_another_shape_is_a_difference():
    difference = describe_difference(make_rows([[1, 2]]), make_rows([[1, 2], [3, 4]]), GateRules(tolerance=1.0))

    assert difference == "a tensor of 2 rows of [2], 1 rows of [2] is expected"
    assert "no rows" in describe_difference(make_rows(), make_rows([[1, 2]]), GateRules())


def test_texts_are_equal_or_similar_enough():
    one, other = make_words("a ", "red ", "cat "), make_words("a ", "red ", "dog ")

    assert describe_difference(one, other, GateRules(score=0.6)) == ""
    assert describe_difference(one, other, GateRules(score=0.7)) == "text is similar by 0.67, 0.70 is expected"
    assert "is similar by 0.67" in describe_difference(one, other, GateRules())
    assert describe_difference(make_words("a  b"), make_words("a b"), GateRules()).startswith("text is similar by 1.00")


def test_other_values_count_where_the_texts_are_equal():
    assert (
        describe_difference(make_words("a", usage={"n": 1}), make_words("a", usage={"n": 2}), GateRules())
        == "other values"
    )


def test_differences_come_in_the_order_of_the_graph_so_that_the_first_is_the_cause():
    nodes = [GraphNode("t", "vision", {}, "d"), GraphNode("t", "thinker", {}, "d")]
    control = {(1, "text"): make_words("a"), (0, "embedding"): make_rows([[1.0]]), (0, "lost"): make_rows([[1.0]])}
    candidate = {(1, "text"): make_words("b"), (0, "embedding"): make_rows([[2.0]])}

    differences = find_differences(nodes, control, candidate, GateRules())

    assert [(each.node, each.component, each.output) for each in differences] == [
        (0, "vision", "embedding"), (1, "thinker", "text"),
    ]  # fmt: skip
