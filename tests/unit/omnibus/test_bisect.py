"""Finding the stage and executors with which a recorded invocation differs."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random

import msgspec
import pytest

from omnibus.errors import StageUnavailable
from omnibus.graph import GraphNode, Invocation
from omnibus.recording.bisect import FAILURE, RunRoute, StageComparison, compare_stages
from omnibus.recording.records import EndRecord, KeptOutput
from tests.unit.cli.documents import make_end, make_invocation

STAGES = ("vision", "thinker")


def make_request() -> Invocation:
    nodes = (GraphNode("see", "vision", {}, "0"), GraphNode("think", "thinker", {}, "1", uses=((0, "embedding"),)))
    return msgspec.structs.replace(make_invocation(), nodes=nodes, route=("v0", "t0"))


def make_runs(bad: Mapping[str, str]) -> object:
    """Return runs of a graph of two stages; ``bad`` maps an executor to its change of a stage's outputs."""

    async def run_route(route: tuple[str, ...]) -> Mapping[str, str]:
        embedding = bad.get(route[0], "good")
        text = f"{embedding} {bad.get(route[1], 'good')}"
        if FAILURE in (embedding, bad.get(route[1])):
            return {FAILURE: "stage_failed: out of memory"}
        return {"0.embedding": embedding, "1.text": text}

    return run_route


async def bisect_stages(
    bad: Mapping[str, str], able: Sequence[Sequence[str]], over: EndRecord | None = None
) -> list[StageComparison]:
    return await compare_stages(make_request(), over, able, make_runs(bad))  # type: ignore[arg-type]


def make_record(embedding: str, text: str) -> EndRecord:
    kept_outputs = (KeptOutput(0, "embedding", "", 0, 1, embedding),)
    return msgspec.structs.replace(make_end(), kept=kept_outputs, outputs={"1.text": text}, route=("v0", "t0"))


async def test_the_executor_whose_outputs_differ_is_named_with_its_stage():
    comparisons = await bisect_stages(
        {"t2": "bad"}, [["v0", "v1"], ["t0", "t1", "t2"]], make_record("good", "good good")
    )

    assert [stage.differs for stage in comparisons] == [False, True]
    assert comparisons[-1].find_responsible(wrong=False) == ["t2"]
    assert comparisons[-1].reference == "the record"


async def test_what_an_earlier_stage_does_is_not_held_against_a_later_one():
    comparisons = await bisect_stages({"v1": "bad"}, [["v0", "v1"], ["t0", "t1"]])

    assert [(stage.component, stage.find_responsible(wrong=False)) for stage in comparisons] == [(STAGES[0], ["v1"])]


async def test_where_the_record_is_wrong_those_that_give_the_same_are_responsible():
    comparisons = await bisect_stages({"v0": "bad"}, [["v0", "v1"], ["t0", "t1"]], make_record("bad", "bad good"))

    assert comparisons[-1].find_responsible(wrong=True) == ["v0"]


async def test_a_version_that_nobody_runs_any_more_shows_by_all_others_being_unlike_the_record():
    comparisons = await bisect_stages({}, [["v1", "v2"], ["t0"]], make_record("old", "old good"))

    assert comparisons[-1].find_responsible(wrong=False) == ["v1", "v2"]


async def test_an_executor_that_fails_is_different():
    comparisons = await bisect_stages({"t1": FAILURE}, [["v0"], ["t0", "t1"]], make_record("good", "good good"))

    assert comparisons[-1].find_responsible(wrong=False) == ["t1"]
    assert comparisons[-1].outputs[1].failure == "stage_failed: out of memory"


async def test_equal_executors_are_no_difference():
    assert not any(stage.differs for stage in await bisect_stages({}, [["v0", "v1"], ["t0", "t1"]]))


async def test_what_is_not_the_same_in_two_runs_is_said():
    times = 0

    async def run_route(route: tuple[str, ...]) -> Mapping[str, str]:
        nonlocal times
        times += route[1] == "t1"
        return {"0.embedding": "good", "1.text": f"good {times if route[1] == 't1' else 'good'}"}

    comparisons = await compare_stages(make_request(), None, [["v0"], ["t0", "t1"]], run_route)

    assert [(each.executor, each.steady) for each in comparisons[-1].outputs] == [("t0", True), ("t1", False)]


def count_runs(executor: str, digest: Callable[[int], str]) -> RunRoute:
    """Return runs in which the n-th text of ``executor`` is ``digest(n)``. All else is good."""
    times = 0

    async def run_route(route: tuple[str, ...]) -> Mapping[str, str]:
        nonlocal times
        times += route[1] == executor
        text = digest(times) if route[1] == executor else "good"
        return {FAILURE: text} if text == FAILURE else {"0.embedding": "good", "1.text": text}

    return run_route


@pytest.mark.parametrize("bad", ["bad", FAILURE])
async def test_what_differs_now_and_then_is_named_after_enough_runs(bad: str):
    def every_third(times: int) -> str:
        return "good" if times % 3 else bad

    able = [["v0"], ["t0", "t1", "t2"]]
    comparisons = await compare_stages(make_request(), None, able, count_runs("t1", every_third), 3)

    assert comparisons[-1].find_responsible(wrong=False) == ["t1"]
    assert not (await compare_stages(make_request(), None, able, count_runs("t1", every_third)))[-1].differs


async def test_the_result_of_the_request_before_is_a_difference_although_a_second_run_is_equal():
    comparisons = await compare_stages(
        make_request(), None, [["v0"], ["t0", "t1"]], count_runs("t1", lambda times: "bad" if times == 1 else "good")
    )

    assert comparisons[-1].find_responsible(wrong=False) == ["t1"]


async def test_where_no_executor_gives_the_same_twice_none_is_to_blame():
    times = Counter[str]()

    async def run_route(route: tuple[str, ...]) -> Mapping[str, str]:
        times[route[1]] += 1
        return {"0.embedding": "good", "1.text": "good" if times[route[1]] % 2 else "other"}

    comparisons = await compare_stages(make_request(), None, [["v0"], ["t0", "t1"]], run_route, 4)

    assert [each.steady for each in comparisons[-1].outputs] == [False, False]
    assert not comparisons[-1].differs


async def test_a_stage_that_nobody_runs_is_named():
    with pytest.raises(StageUnavailable, match="no live executor can run stage 'thinker'"):
        await bisect_stages({}, [["v0"], []])


@pytest.mark.parametrize("seed", range(20))
async def test_of_twenty_bad_executors_each_is_named(seed: int):
    dice = Random(seed)
    able = [[f"{stage}{number}" for number in range(dice.randint(2, 4))] for stage in "vt"]
    bad = dice.choice([each for each in able[0] + able[1] if each not in ("v0", "t0")])

    comparisons = await bisect_stages({bad: "bad"}, able, make_record("good", "good good"))

    assert comparisons[-1].find_responsible(wrong=False) == [bad]


@pytest.mark.parametrize(
    ("able", "over", "runs", "compared_counts"),
    [
        ([["v0"], ["t0"]], None, 1, [[0], [0]]),  # an executor is not compared with itself
        ([["v0"], ["t0"]], None, 2, [[1], [1]]),  # but with itself in another run
        ([["v0", "v1"], ["t0"]], None, 1, [[0, 1], [0]]),
        ([["v0"], ["t0"]], make_record("good", "good good"), 1, [[1], [1]]),
        ([["v0"], ["t0"]], make_record("", "good good"), 1, [[0], [1]]),  # an unrecorded output
    ],
)
async def test_what_was_compared_is_counted(
    able: list[list[str]], over: EndRecord | None, runs: int, compared_counts: list[list[int]]
):
    comparisons = await compare_stages(make_request(), over, able, make_runs({}), runs)  # type: ignore[arg-type]

    assert [[each.compared for each in stage.outputs] for stage in comparisons] == compared_counts
    assert [stage.is_compared for stage in comparisons] == [any(each) for each in compared_counts]


async def test_empty_outputs_are_no_comparison():
    async def run_route(route: tuple[str, ...]) -> Mapping[str, str]:
        return {"0.embedding": "", "1.text": ""}

    comparisons = await compare_stages(make_request(), None, [["v0", "v1"], ["t0", "t1"]], run_route)

    assert not any(stage.is_compared or stage.differs for stage in comparisons)


async def test_an_output_that_the_record_lacks_is_compared_with_the_recorded_executor():
    async def run_route(route: tuple[str, ...]) -> Mapping[str, str]:
        return {"0.embedding": "good", "1.text": "good", "1.tokens": "7" if route[1] == "t0" else "8"}

    over = msgspec.structs.replace(make_record("good", "good"), kept=())
    comparisons = await compare_stages(make_request(), over, [["v0"], ["t0", "t1"]], run_route)

    assert comparisons[-1].find_responsible(wrong=False) == ["t1"]
