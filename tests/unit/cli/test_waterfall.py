"""The waterfall as text: waiting, working and output times, to the column."""

import re
from itertools import groupby
from typing import Any

import pytest

from omnibus.cli.waterfall import BAR_COLUMNS, MARKS, graph_lines, usage_lines, waterfall_lines
from omnibus.pricing import StageRate, stage_usage, sum_stages
from omnibus.recording.waterfall import build_waterfall
from tests.unit.cli.documents import make_end, make_hop, make_invocation


def draw_waterfall(**changes: Any) -> list[str]:
    return list(waterfall_lines(build_waterfall(make_invocation(), make_end(**changes))))


def test_the_graph_names_components_executors_and_what_they_wait_for():
    assert list(graph_lines(make_invocation())) == [
        "graph   type vision+thinker, path E>L, plan epoch 3",
        "  [0] vision   on e-0",
        "  [1] vision   on e-0",
        "  [2] thinker  on l-1                              ← 0.embedding, 1.embedding",
    ]


def test_the_waterfall_is_drawn_to_scale():
    assert draw_waterfall() == [
        "times   1000 ms in all, first output to the client after 500 ms",
        "               |0 ms                                 1000 ms| · dispatch   ╌ inputs    ░ queue      ▒ run"
        "   █ output        end",
        "  [0] vision   |▒▒▒▒▒▒▒▒▒▒▒                                 |          -          -          -        250"
        "          -        250",
        "  [1] vision   |····╌╌╌╌╌░░▒▒                               |        100        100         50         50"
        "          -        300",
        "  [2] thinker  |··╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌▒▒▒▒██████████████████████|         50        350          -        100"
        "        500       1000",
        "edge    [1].embedding → [2]  100 ms from its first output",
    ]


def test_what_crossed_between_nodes_is_listed_with_its_cost():
    hops = [
        make_hop(0, 0, 0, 0.25, 0.25, pulls=[[-1, "", "n1", "n2", 2048, 0.0045]]),
        make_hop(2, 0.05, 0.4, 0.5, 1.0, pulls=[[0, "embedding", "n2", "n3", 7 << 20, 0.012]]),
    ]

    lines = draw_waterfall(hops=hops, pulls=[[2, "audio", "n3", "n1", 100, 0.001]])

    assert [line for line in lines if line.startswith("pulled")] == [
        "pulled  input → [0]  2 KiB from n1 to n2 in 4.5 ms",
        "pulled  [0].embedding → [2]  7 MiB from n2 to n3 in 12 ms",
        "pulled  [2].audio → gateway  100 B from n3 to n1 in 1.0 ms",
    ]


@pytest.mark.parametrize(
    "one",
    [
        make_hop(0, 0, 0, 0, 0),
        make_hop(0, -1, -1, -1, -1),
        make_hop(0, 5, 6, 7, 8),
        make_hop(0, 0.5, 0.2, 0.9, 0.6),
        make_hop(0, 0, 0, 0, 1),
        make_hop(0, 0.999, 0.999, 0.999, 1.0),
    ],
    ids=["instant", "before", "after", "crossed", "whole", "late"],
)
@pytest.mark.parametrize("finish_time", [1000.0, 1001.0])
def test_any_times_fit_into_the_bar(one: dict[str, Any], finish_time: float):
    row = draw_waterfall(hops=[one], finished=finish_time)[2]

    assert len(row.split("|")[1]) == BAR_COLUMNS
    assert set(row.split("|")[1]) <= {" ", *MARKS.values()}


def test_work_of_any_time_leaves_a_mark():
    assert "█" in draw_waterfall(hops=[make_hop(0, 0.1, 0.1, 0.1, 0.1001)])[2]


@pytest.mark.parametrize("at", [0.0, 0.4, 0.999])
def test_phases_that_are_shorter_than_a_column_hide_none_of_the_others(at: float):
    taken_at, ready, began, first, end = (at + 0.0001 * step for step in range(1, 6))

    (bar,) = re.findall(
        r"\|(.*)\|", draw_waterfall(hops=[make_hop(0, taken_at, ready, first, end, began=1000 + began)])[2]
    )

    assert [mark for mark, _ in groupby(bar.strip())] == list(MARKS.values())


def test_a_node_that_never_told_its_times_says_how_it_stands():
    assert [line.rpartition("|")[2] for line in draw_waterfall(hops=[], status="failed", node=1)[2:]] == [
        " stopped",
        " failed",
        " stopped",
    ]


def test_an_answer_without_output_has_no_first_moment():
    assert draw_waterfall(first=0.0)[0].endswith("after -")


def test_what_runs_has_no_times_yet():
    assert list(waterfall_lines(build_waterfall(make_invocation(), None))) == []


def test_a_move_is_told_with_its_reason():
    moves = [{"attempt": 0, "at": 1000.3, "reason": "gone", "executor": "e-0", "message": "it is gone"}]

    assert draw_waterfall(moves=moves)[-1] == "moved   attempt 0 ended after 300 ms: gone e-0"


def test_a_move_says_which_stages_began_again_and_what_that_saved():
    moves = [{"attempt": 0, "at": 1000.3, "reason": "gone", "executor": "l-0", "again": [2], "resumed": {"2.text": 9}}]

    assert draw_waterfall(moves=moves)[-2:] == [
        "again   [2] thinker; all others continued, or were done",
        "resumed 2.text after 9 items, which were not computed again",
    ]


def test_usage_has_joules_where_a_meter_was_read():
    rate = StageRate("H100", 1, None)
    stages = [stage_usage(0, "vision", "E", rate, 0.5), stage_usage(1, "thinker", "L", rate, 2.0, 1234.5)]

    assert [line.count(" J") for line in usage_lines(sum_stages(stages, ""))] == [0, 0, 1]
    assert next(usage_lines(sum_stages(stages[1:], ""))).endswith("2 GPU-seconds, 1234.5 J")


def test_usage_names_the_cpu_where_no_gpu_computed():
    on_cpu, on_gpu = StageRate("cpu", 1, None), StageRate("", 1, None)
    stages = [stage_usage(0, "vision", "E", on_cpu, 0.5), stage_usage(1, "thinker", "L", on_gpu, 2.0)]

    assert list(usage_lines(sum_stages(stages[:1], ""))) == ["usage   0.5 CPU-seconds", "  [0] vision   0.5 s on CPU"]
    assert next(usage_lines(sum_stages(stages, ""))) == "usage   2.5 GPU-seconds"


@pytest.mark.parametrize("width", [72, 80, 100, 200])
def test_a_waterfall_fits_the_screen_and_loses_no_number(width: int):
    waterfall = build_waterfall(make_invocation(), make_end())

    narrow, full = list(waterfall_lines(waterfall, width)), list(waterfall_lines(waterfall, 0))

    assert max(map(len, narrow)) <= width
    assert (narrow == full) is (width == 200)
    numbers = [sorted(re.findall(r"(?<=  )\d+\b", "\n".join(lines))) for lines in (narrow, full)]
    assert numbers[0] == numbers[1]
