"""The waterfall: who waited, who worked, who gave output, to the column."""

from typing import Any

import pytest

from omnibus.cli.waterfall import WIDTH, graph, waterfall
from tests.unit.cli.documents import ENDED, INVOCATION, hop

COMPONENTS = ["vision", "vision", "thinker"]


def test_the_graph_names_components_executors_and_what_they_wait_for():
    assert list(graph(INVOCATION)) == [
        "graph   type vision+thinker, path E>L, plan epoch 3",
        "  [0] vision   on e-0",
        "  [1] vision   on e-0",
        "  [2] thinker  on l-1                              ← 0.embedding, 1.embedding",
    ]


def test_the_waterfall_is_drawn_to_scale():
    assert list(waterfall(ENDED, COMPONENTS)) == [
        "times   1000 ms in all, first output to the client after 500 ms",
        "  [0] vision   |───────────█                                | inputs     0 ms  first   250 ms  end   250 ms",
        "  [1] vision   |    ·····────█                              | inputs   200 ms  first   300 ms  end   300 ms",
        "  [2] thinker  |  ···········─────────██████████████████████| inputs   300 ms  first   500 ms  end  1000 ms",
    ]


def bar(one: dict[str, Any], finished: float = 1001.0) -> str:
    [_, line] = waterfall({"created": 1000.0, "finished": finished, "hops": [one]}, ["x"])
    return line.split("|")[1]


@pytest.mark.parametrize(
    "one",
    [
        hop(0, 0, 0, 0, 0),
        hop(0, -1, -1, -1, -1),
        hop(0, 5, 6, 7, 8),
        hop(0, 0.5, 0.2, 0.9, 0.6),
        hop(0, 0, 0, 0, 1),
        hop(0, 0.999, 0.999, 0.999, 1.0),
    ],
    ids=["instant", "before", "after", "crossed", "whole", "late"],
)
def test_any_times_fit_into_the_bar(one: dict[str, Any]):
    assert len(bar(one)) == WIDTH


def test_work_of_no_time_at_all_is_drawn_without_dividing_by_zero():
    assert len(bar(hop(0, 0, 0, 0, 0), finished=1000.0)) == WIDTH


def test_a_node_that_was_seen_working_leaves_a_mark():
    assert "█" in bar(hop(0, 0.1, 0.1, 0.1, 0.14))


def test_an_answer_without_output_has_no_first_moment():
    assert next(waterfall({**ENDED, "first": 0.0}, COMPONENTS)).endswith("after -")


def test_an_end_without_times_is_one_line():
    assert len(list(waterfall({**ENDED, "hops": []}, COMPONENTS))) == 1
