"""Plans within the links between nodes: what is chosen, and what it serves in a simulation with these links."""

from collections.abc import Mapping
from typing import NamedTuple

import pytest

from omnibus.cli.format.plan import plan_lines
from omnibus.plan import Plan
from omnibus.profile import EdgeProfile, ModelProfile, TypeProfile
from omnibus_planner.declared.planned_spec import DeclaredNode, GpuType
from omnibus_planner.optimize.load import ModelLoad
from omnibus_planner.optimize.planner import Planner
from omnibus_planner.optimize.promise import PromiseChecker
from omnibus_planner.optimize.result import PlanningResult
from tests.unit.planner.optimize.testbed import (
    SEEN,
    count_replicas,
    make_option,
    make_planner,
    make_profile,
)

#: Embeddings of a video, and GB/s of a link that carries 1.3 of them per second.
VIDEO_BYTES, SLOW_LINK = 72e6, 0.1


def make_video_profile(fused: float = 0.0) -> ModelProfile:
    """Return a profile of an encoder, a language model, and both together in ``fused`` seconds; 0 is no such option."""
    options = {
        "E": make_option("vision", ("vision", 0.2, SEEN, 0.2), service="encoder", gpu="H100"),
        "L": make_option("thinker", ("thinker", 0.3, "", 0.3), service="llm", gpu="H100"),
    }
    if fused:
        options["EL"] = make_option(SEEN, (SEEN, fused, SEEN, fused), service="llm", gpu="H100")
    return make_profile(
        options,
        types={SEEN: TypeProfile(("vision", "thinker"), 1.0)},
        edges=(EdgeProfile("vision", "thinker", VIDEO_BYTES, SEEN),),
    )


def plan_on(profile: ModelProfile, sizes: tuple[int, ...], link: float | None, **asked: object) -> Planner:
    nodes = {f"n{at}": DeclaredNode(gpus, link_gb_s=link) for at, gpus in enumerate(sizes)}
    return make_planner(profile, {"H100": GpuType(sum(sizes))}, nodes, **asked)


class Served(NamedTuple):
    """The promise of a plan, and the req/s that it serves of half more than that in a simulation with links."""

    replicas: dict[str, int]
    promised: float
    saturated: float


def simulate_saturated(checker: PromiseChecker, result: PlanningResult) -> Served:
    """Simulate ``result`` with the links of the checker's planner."""
    rates = {"q": 1.5 * result.capacity["q"]}
    outcome = checker.simulate_models(result.models, rates, None, result.explain).outcome
    return Served(count_replicas(result.models["q"]), result.capacity["q"], outcome.throughput)


def compare_plans(profile: ModelProfile, sizes: tuple[int, ...]) -> tuple[Served, Served]:
    """Return plans made without and with the links; the links are slow in both simulations."""
    planner = plan_on(profile, sizes, SLOW_LINK)
    checker = PromiseChecker(planner)
    return (
        simulate_saturated(checker, plan_on(profile, sizes, None).plan()),
        simulate_saturated(checker, planner.plan()),
    )


@pytest.mark.parametrize("sizes", [(4, 4), (1, 1, 1, 1)])
def test_components_run_together_where_links_do_not_carry_what_they_send(sizes: tuple[int, ...]):
    before, after = compare_plans(make_video_profile(0.6), sizes)

    assert after.replicas.get("EL", 0) > before.replicas.get("EL", 0)
    assert after.saturated > 1.2 * before.saturated
    assert after.saturated == pytest.approx(after.promised, rel=0.05)
    assert before.saturated < 0.8 * before.promised


def test_nodes_get_equal_shares_of_executors_where_links_are_slow():
    before, after = compare_plans(make_video_profile(), (4, 4))

    assert (before.replicas, after.replicas) == ({"E": 3, "L": 5}, {"E": 4, "L": 4})
    assert after.saturated > 1.2 * before.saturated
    assert after.saturated >= after.promised


def test_a_plan_that_fits_its_links_is_the_one_without_links():
    fast, unknown = (plan_on(make_video_profile(0.6), (4, 4), link).plan() for link in (100.0, None))

    assert (fast.models, fast.capacity) == (unknown.models, unknown.capacity)
    assert "limiting_link" not in read_model(fast)


def test_the_fewest_gpus_are_those_of_a_plan_that_its_links_carry():
    def plan_rate(link: float) -> PlanningResult:
        return plan_on(make_video_profile(0.6), (4, 4), link, goal="gpus", rate=8.0, headroom=0.0).plan()

    fast, slow = plan_rate(100.0), plan_rate(0.03)

    assert fast.capacity["q"] >= 8.0
    assert slow.capacity["q"] >= 8.0
    assert sum(count_replicas(slow.models["q"]).values()) >= sum(count_replicas(fast.models["q"]).values())


def test_running_replicas_send_what_their_links_carry():
    planner = plan_on(make_video_profile(0.6), (4, 4), SLOW_LINK)
    result = planner.plan()

    again = planner.reroute_running(result.models, {"q": ModelLoad(6.0, {SEEN: 1.0})})

    assert again.capacity["q"] == pytest.approx(result.capacity["q"], rel=0.03)


def read_model(result: PlanningResult) -> Mapping[str, object]:
    return result.explain["planned"]["models"]["q"]


def test_the_plan_names_the_link_that_limits_it():
    result = plan_on(make_video_profile(), (4, 4), SLOW_LINK).plan()

    lines = plan_lines(Plan(7, 0, 0.0, result.models, explain=result.explain), None)

    link = read_model(result)["limiting_link"]
    assert link in ("n0 to n1", "n1 to n0")
    assert f"the link from {link} limits it" in " ".join(" ".join(lines).split())
