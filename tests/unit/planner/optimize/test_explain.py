"""A plan's explanation: numbers that can be checked, and readable text."""

import itertools
import json
import random
from typing import Any

import msgspec
import pytest

from omnibus.cli.format.plan import plan_lines
from omnibus.plan import Plan, decode_plan, encode_plan
from omnibus_planner.declared.planned_spec import GpuType
from omnibus_planner.optimize.latency import queue_wait
from omnibus_planner.optimize.load import ModelLoad
from omnibus_planner.optimize.result import PlanningResult
from tests.unit.planner.optimize.testbed import (
    EL,
    SEEN,
    SPLIT,
    TEXT,
    E,
    L,
    make_goals,
    make_planner,
    make_profile,
    make_split_profile,
)


def read_explanation(result: PlanningResult) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the explanation of the model q, and of its deployment."""
    return result.explain["planned"]["models"]["q"], result.explain["planned"]["deployments"][0]


def render_text(result: PlanningResult) -> str:
    return "\n".join(plan_lines(Plan(7, 0, 0.0, result.models, explain=result.explain), None))


def test_it_can_be_written_and_read():
    result = make_planner(goal="gpus", rate=5.0).plan()
    plan = Plan(1, 0, 0.0, result.models, explain=result.explain)

    assert decode_plan(encode_plan(plan)).explain == json.loads(json.dumps(result.explain))


def test_options_are_as_busy_as_the_rate_makes_them():
    model, _ = read_explanation(
        make_planner(make_profile({"E": E, "L": L}), goal="gpus", rate=4.0, headroom=0.5).plan()
    )

    # 4 req/s: .6 * .2 s of an encoder and .3 s of a thinker for each.
    assert model["rate"] == 4
    assert model["options"]["E"]["utilisation"] == pytest.approx(4 * 0.6 * 0.2)
    assert model["options"]["L"]["utilisation"] == pytest.approx(4 * 0.3 / model["options"]["L"]["replicas"])


def test_latency_is_that_of_the_stops_and_the_waits_before_them():
    model, _ = read_explanation(
        make_planner(make_profile({"E": E, "L": L}), goal="gpus", rate=4.0, headroom=0.5).plan()
    )
    waits = {name: each["wait"] for name, each in model["options"].items()}

    assert model["types"][TEXT]["alone"] == 1.0
    assert model["types"][SEEN]["alone"] == 1.25
    assert model["types"][TEXT]["latency"] == pytest.approx(1.0 + waits["L"])
    assert model["types"][SEEN]["latency"] == pytest.approx(1.25 + waits["E"] + waits["L"])
    assert model["types"][SEEN]["rate"] == pytest.approx(2.4)


def test_at_the_capacity_nobody_can_say_how_long_requests_wait():
    model, _ = read_explanation(make_planner().plan())

    assert model["types"][TEXT]["latency"] is None
    assert "bottlenecks" in model


def test_waits_are_those_of_a_simulated_queue():
    dice = random.Random(3)
    free = [0.0] * 3
    now = wait_seconds = 0.0
    for _ in range(200_000):
        now += dice.expovariate(2.4)
        first = min(free)
        wait_seconds += max(0.0, first - now)
        free[free.index(first)] = max(first, now) + dice.expovariate(1.0)

    assert queue_wait(1.0, 3, 0.8).mean == pytest.approx(wait_seconds / 200_000, rel=0.05)


def test_more_work_waits_longer_and_more_replicas_less():
    for busy, more in itertools.pairwise((0.1, 0.5, 0.9, 0.99, 0.999)):
        assert queue_wait(1.0, 4, busy).mean < queue_wait(1.0, 4, more).mean
    assert queue_wait(1.0, 1, 0.8).mean == pytest.approx(4.0)  # M/M/1
    assert queue_wait(1.0, 8, 0.8).mean < queue_wait(1.0, 2, 0.8).mean


def test_the_next_best_deployments_are_those_without_an_option():
    model, deployment = read_explanation(make_planner().plan())
    alternatives = {each["without"]: each for each in deployment["alternatives"]}

    assert set(alternatives) == {"q/E", "q/L", "q/EL"}
    for name, other in alternatives.items():
        left = tuple(option for option in ("E", "L", "EL") if f"q/{option}" != name)
        assert other["rates"]["q"] == pytest.approx(make_planner(options=left).plan().capacity["q"])
        assert other["rates"]["q"] <= model["capacity"]


def test_the_distance_is_that_to_fractional_replicas():
    model, deployment = read_explanation(make_planner().plan())
    bound = 8 / (0.6 * 0.2 + 0.3)

    assert deployment["distance"] == pytest.approx(bound / model["capacity"] - 1)
    assert deployment["gap"] == 0
    assert deployment["gpus"] == {"H100": {"used": 8, "of": 8}}


def test_it_says_why():
    most, _ = read_explanation(make_planner().plan())
    few, _ = read_explanation(make_planner(goal="gpus", rate=5.0, headroom=0.2).plan())
    load, _ = read_explanation(make_planner(goal="gpus", rate=5.0).plan({"q": ModelLoad(3.0, {TEXT: 1.0})}))

    assert most["reason"].startswith("most requests within the GPUs, in one deployment")
    assert few["reason"].startswith("fewest GPUs for the declared 5 req/s and 20% spare, in one deployment")
    assert load["reason"].startswith("fewest GPUs for the measured 3 req/s")


def test_it_is_made_for_people():
    result = make_planner(
        make_profile({"E": E, "L": L, "EL": EL}), goal="gpus", rate=5.0, goals=make_goals(done=5.0)
    ).plan()
    lines = render_text(result)

    assert "q: fewest GPUs for the declared 5 req/s and 20% spare" in lines
    assert "5 req/s expected" in lines
    for word in (
        "BUSY",
        "WAIT",
        "REQUEST TYPE",
        "LATENCY",
        "GPUs: H100 ",
        " of 8; price ",
        "proven to be the best",
        "WITHOUT",
    ):
        assert word in lines
    for raw in ("{", "planned:", "None", "inf"):
        assert raw not in lines


def test_cells_are_told_by_size():
    lines = render_text(make_planner(cells=4).plan())

    assert "in cells" in lines
    assert "cells: " in lines


def test_what_others_say_of_a_plan_is_told_as_well():
    result = make_planner().plan()
    more = msgspec.structs.replace(result, explain={**result.explain, "load": {"q": {"rate": 3.5}}})

    assert "load:\n  q:\n    rate: 3.5" in render_text(more)


def test_alternatives_of_many_options_do_not_hold_up_a_plan():
    result = make_planner(
        make_split_profile(ED=1.5, PD=1.2, EPD=1.3, EP=1.1), {"H100": GpuType(64)}, declaration=SPLIT
    ).plan()

    assert len(read_explanation(result)[1]["alternatives"]) <= 3


def test_a_plan_that_is_not_proven_best_shows_its_gap():
    result = make_planner().plan()
    _, deployment = read_explanation(result)

    deployment["gap"] = 0.0123

    assert "; at most 1.2% from the best" in render_text(result)


def test_a_plan_without_a_load_expects_none():
    fresh, known = make_planner().plan(), make_planner().plan({"q": ModelLoad(3.0, {TEXT: 1.0})})

    (fresh_lines, known_lines) = (render_text(result) for result in (fresh, known))

    assert "no lower load is known" in fresh_lines
    assert "expected" not in fresh_lines
    assert "100% when full" in fresh_lines
    assert "grows" not in fresh_lines
    assert "3 req/s expected" in known_lines
    assert "when full" not in known_lines
