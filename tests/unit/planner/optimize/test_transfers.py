"""Transfers between nodes: their size, and their effect on placement, rates and latencies."""

import json
import math
import random
from typing import Any

import pytest

from omnibus.cli.format.plan import plan_lines
from omnibus.errors import BadRequest
from omnibus.plan import Plan
from omnibus.profile import EdgeProfile, ModelProfile, Point, TypeProfile
from omnibus_planner.declared.planned_spec import DeclaredNode, GpuType
from omnibus_planner.optimize.latency import link_wait
from omnibus_planner.optimize.links import PAYLOAD_FRACTION, PULL_GB_S
from omnibus_planner.optimize.load import ModelLoad
from omnibus_planner.optimize.model_inputs import ModelInputs
from omnibus_planner.optimize.planner import Planner
from omnibus_planner.optimize.result import PlanningResult
from omnibus_planner.optimize.simulated import planned_links
from omnibus_planner.simulate.agenda import Agenda
from omnibus_planner.simulate.links import Links, NodeNetwork
from omnibus_planner.solve.problem import Infeasible
from omnibus_planner.solve.traffic import crossing_shares
from tests.unit.planner.optimize.simulated_nodes import SimulatedPath, Stop, find_percentile
from tests.unit.planner.optimize.testbed import (
    EIGHT,
    SEEN,
    SPLIT,
    TEXT,
    count_replicas,
    make_goals,
    make_model,
    make_option,
    make_planner,
    make_profile,
    make_split_profile,
)

TEN_GBIT = 1.25
CARRIED = TEN_GBIT * PAYLOAD_FRACTION  # of tensors
#: Embeddings of 10,000 tokens of 3,584 bfloat16 numbers, and of 15.
LARGE, SMALL = 10_000 * 3584 * 2, 15 * 3584 * 2
ENCODE, THINK = 0.1, 0.15
GPUS = {"L4": GpuType(2), "H100": GpuType(4)}
AGREE = 0.1


def make_apart_profile(nbytes: float, **fields: Any) -> ModelProfile:
    """Return a profile of requests with images; encoders and thinkers use different types of GPU."""
    return make_profile(
        {
            "E": make_option("vision", ("vision", ENCODE), service="encoder", gpu="L4", **fields),
            "L": make_option("thinker", ("thinker", THINK), service="llm", gpu="H100", **fields),
        },
        types={SEEN: TypeProfile(("vision", "thinker"), 1.0)},
        edges=(EdgeProfile("vision", "thinker", nbytes, SEEN),),
    )


def two_nodes(link: float | None = TEN_GBIT) -> dict[str, DeclaredNode]:
    return {"n1": DeclaredNode(2, "L4", link), "n2": DeclaredNode(4, "H100", link)}


def read_planned(result: PlanningResult) -> dict[str, Any]:
    return result.explain["planned"]


def simulate_path(result: PlanningResult, nbytes: float) -> SimulatedPath:
    places: dict[str, dict[str, int]] = {}
    for name, count in read_planned(result)["deployments"][0]["nodes"].items():
        replica, node = name.removeprefix("q/").split("@")
        places.setdefault(replica, {})[node] = count
    return SimulatedPath([Stop(places["E"], ENCODE), Stop(places["L"], THINK, nbytes / 1e9)], CARRIED)


@pytest.mark.parametrize(("nbytes", "rate"), [(LARGE, CARRIED / (LARGE / 1e9)), (SMALL, 2 / ENCODE)])
def test_what_can_be_served_is_what_executors_and_links_carry(nbytes: float, rate: float):
    result = make_planner(make_apart_profile(nbytes), GPUS, two_nodes()).plan()

    capacity = read_planned(result)["models"]["q"]["capacity"]

    assert capacity == pytest.approx(rate)
    assert capacity == pytest.approx(simulate_path(result, nbytes).run_closed(60, 20_000), rel=AGREE)


@pytest.mark.parametrize(("busy", "spread"), [(0.5, 0.0), (0.7, 0.6), (0.85, 0.0)])
def test_transfers_delay_each_other_as_in_a_simulation_of_the_link(busy: float, spread: float):
    dice, agenda, transfer_seconds = random.Random(3), Agenda(), list[float]()
    network, at = NodeNetwork(agenda, Links(0.0, lambda start, end: 1.0)), 0.0
    sizes = (1 - spread, 1 + spread)
    for _ in range(20_000):
        at += dice.expovariate(busy)
        gb, sent_at = dice.choice(sizes), at
        add_transfer = lambda when, sent=sent_at, gb=gb: transfer_seconds.append(when - sent - gb)  # noqa: E731
        agenda.add(at, lambda now, gb=gb, arrived=add_transfer: network.send("a", "b", gb, now, arrived))
    agenda.run_until(math.inf)

    mean, squares, cubes = (sum(gb**power for gb in sizes) / 2 for power in (1, 2, 3))
    wait = link_wait(busy, mean, squares, cubes)
    second = wait.part * (wait.variance + wait.seconds**2)
    assert wait.mean == pytest.approx(sum(transfer_seconds) / len(transfer_seconds), rel=0.1)
    assert second == pytest.approx(sum(each**2 for each in transfer_seconds) / len(transfer_seconds), rel=0.2)


def test_links_of_a_plan_are_those_that_its_nodes_declare():
    links = planned_links(make_planner(make_apart_profile(LARGE), GPUS, two_nodes()).plan().explain)

    assert (links.gb_s("n1", "n2"), links.gb_s("n2", "n3")) == (CARRIED, PULL_GB_S)


@pytest.mark.parametrize("nbytes", [LARGE, SMALL])
def test_latencies_are_those_of_a_simulation_with_transfers(nbytes: float):
    result = make_planner(make_apart_profile(nbytes), GPUS, two_nodes(), goal="gpus", rate=9.0).plan()
    path = simulate_path(result, nbytes)

    path.run_open(9.0, 40_000)

    assert path.crossed == 40_000
    estimate = read_planned(result)["models"]["q"]["types"][SEEN]
    assert estimate["alone"] == pytest.approx(ENCODE + THINK + nbytes / 1e9 / CARRIED + 0.0005)
    assert estimate["latency"] == pytest.approx(sum(path.latencies) / 40_000, rel=AGREE)
    assert estimate["p99"] == pytest.approx(find_percentile(path.latencies, 0.99), rel=AGREE)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.9])
def test_gateways_that_prefer_the_node_of_the_bytes_send_about_as_much_as_is_reckoned(load: float):
    for encoders, thinkers in (((1, 1), (1, 3)), ((2, 2), (1, 5)), ((2, 2), (3, 3)), ((3, 1), (3, 3))):
        giving, taking = dict(zip("ab", encoders, strict=True)), dict(zip("ab", thinkers, strict=True))
        path = SimulatedPath([Stop(giving, ENCODE), Stop(taking, THINK, 1e-3)], 100.0)

        rate = load * min(sum(encoders) / ENCODE, sum(thinkers) / THINK)
        path.run_open(rate, 5000)

        crossing_share = sum(crossing_shares(giving, taking, rate * THINK / sum(thinkers)).values())
        assert path.crossed / 5000 == pytest.approx(crossing_share, abs=0.1 if load > 0.5 else 0.2)
        assert path.crossed / 5000 < 0.45  # by chance it would be half


def test_large_transfers_change_the_simulation_by_more_than_it_may_miss():
    """Without transfers, the prediction would not agree with the simulation."""
    small, large = (
        make_planner(make_apart_profile(nbytes), GPUS, two_nodes(), goal="gpus", rate=9.0).plan()
        for nbytes in (SMALL, LARGE)
    )

    before, after = (read_planned(result)["models"]["q"]["types"][SEEN] for result in (small, large))

    assert after["latency"] > before["latency"] * (1 + AGREE)


# Explanation of links


def render_lines(result: PlanningResult) -> str:
    return "\n".join(plan_lines(Plan(7, 0, 0.0, result.models, explain=result.explain), None))


def test_links_show_what_crosses_them_and_warn_when_it_is_too_much():
    result = make_planner(make_apart_profile(LARGE), GPUS, two_nodes(), goal="gpus", rate=18.0, headroom=0.0).plan()

    [link] = read_planned(result)["links"]
    assert link == {
        "from": "n1",
        "to": "n2",
        "gb_s": pytest.approx(18 * LARGE / 1e9),
        "capacity": CARRIED,
        "utilisation": pytest.approx(18 * LARGE / 1e9 / CARRIED),
    }
    assert read_planned(result)["warnings"] == ["n1 would send 1.29 GB/s to n2; their link carries 1.19 GB/s"]
    assert read_planned(result)["models"]["q"]["types"][SEEN]["p99"] is None
    text = render_lines(result)
    assert "n1         n2       1.29  1.188      109%" in text
    assert "warning: n1 would send 1.29 GB/s to n2" in text


def test_an_unknown_link_has_traffic_but_neither_capacity_nor_queue():
    result = make_planner(make_apart_profile(LARGE), GPUS, two_nodes(None), goal="gpus", rate=9.0).plan()

    [link] = read_planned(result)["links"]
    assert link == {"from": "n1", "to": "n2", "gb_s": pytest.approx(9 * LARGE / 1e9)}
    assert "warnings" not in read_planned(result)
    assert read_planned(result)["models"]["q"]["types"][SEEN]["latency"] > ENCODE + THINK + LARGE / 1.2e9


def test_a_node_that_sends_too_much_to_several_is_said():
    nodes = {"n1": DeclaredNode(2, "L4", 1.0), **{f"n{at}": DeclaredNode(1, "H100", 1.0) for at in (2, 3, 4)}}

    result = make_planner(
        make_apart_profile(LARGE), {**GPUS, "H100": GpuType(3)}, nodes, goal="gpus", rate=16.0, headroom=0.0
    ).plan()

    assert len(read_planned(result)["links"]) == 3
    assert read_planned(result)["warnings"] == ["n1 would send 1.15 GB/s in all; its link carries 0.95 GB/s"]
    assert [each["utilisation"] for each in read_planned(result)["links"]] == [
        pytest.approx(16 * LARGE / 1e9 / PAYLOAD_FRACTION)
    ] * 3


def test_nothing_is_said_of_links_where_nothing_crosses():
    one = make_planner(make_apart_profile(LARGE), GPUS).plan()
    there = make_planner(make_split_profile(), {"H100": GpuType(8)}, {"n1": DeclaredNode(8)}, declaration=SPLIT).plan()

    assert not {"links", "warnings"} & (read_planned(one).keys() | read_planned(there).keys())


def test_traffic_of_a_type_that_was_not_measured_is_the_mean_of_those_that_were():
    sizes = make_profile(
        edges=(EdgeProfile("vision", "thinker", 4e9, SEEN), EdgeProfile("thinker", "vision", 1e9, TEXT))
    )
    hops = ModelInputs(make_model(), sizes, EIGHT).edges

    assert hops.edge_gb(SEEN, "vision", "thinker") == 4
    assert hops.edge_gb("others", "vision", "thinker") == 4
    assert hops.edge_gb(SEEN, "thinker", "other") == 0


@pytest.mark.parametrize("size", [0.0, -1.0, float("nan"), float("inf")])
def test_a_link_without_a_bandwidth_is_refused(size: float):
    with pytest.raises(BadRequest, match="link_gb_s of n1"):
        make_planner(make_apart_profile(LARGE), GPUS, two_nodes(size))


def test_models_of_several_groups_share_the_links():
    """One model gets a rate, the other the rest; both send from n1 to n2."""
    models = {"a": make_model("a", goal="gpus", rate=4.0, headroom=0.0), "b": make_model("b")}
    gpus = {"L4": GpuType(2), "H100": GpuType(4)}

    result = Planner(models, dict.fromkeys(models, make_apart_profile(LARGE)), gpus, two_nodes()).plan()

    rates = {name: read_planned(result)["models"][name]["rate"] for name in models}
    assert rates["a"] == 4
    assert rates["b"] == pytest.approx(10.0)
    [link] = read_planned(result)["links"]
    assert link["gb_s"] == pytest.approx(14 * LARGE / 1e9)


def test_new_rates_for_the_replicas_that_run_are_on_links_as_well():
    model_planner = make_planner(make_apart_profile(LARGE), GPUS, two_nodes(), goal="gpus", rate=9.0)
    result = model_planner.plan()

    again = model_planner.reroute_running(result.models, {"q": ModelLoad(6.0, {SEEN: 1.0})})

    assert read_planned(again)["deployments"][0]["nodes"] == read_planned(result)["deployments"][0]["nodes"]
    assert read_planned(again)["links"][0]["gb_s"] == pytest.approx(6 * LARGE / 1e9)


def test_without_any_replica_nothing_is_reckoned():
    model_planner = make_planner(make_apart_profile(LARGE), GPUS, two_nodes(), goal="gpus", rate=9.0)

    explanation = read_planned(model_planner.reroute_running({}))

    assert json.loads(json.dumps(explanation, allow_nan=False)) == explanation
    assert "links" not in explanation


# Placement


def prefill_apart(nbytes: float) -> ModelProfile:
    """Return a profile of prefill and decode in separate executors. They exchange a cache."""
    parts = ("vision", "prefill", "decode")
    split_profile = make_split_profile(EP=9.0, ED=9.0, PD=9.0, EPD=9.0)
    edges = (EdgeProfile(*parts[:2], 1e6, "+".join(parts)), EdgeProfile(*parts[1:], nbytes, "+".join(parts)))
    return make_profile(
        dict(split_profile.options), components=parts, types=split_profile.types, order=split_profile.order, edges=edges
    )


def test_executors_that_exchange_a_cache_are_on_one_node_where_the_rate_is_the_same():
    nodes = {"n1": DeclaredNode(7), "n2": DeclaredNode(7)}
    gpus = {"H100": GpuType(14)}

    near = make_planner(prefill_apart(5e8), gpus, nodes, declaration=SPLIT).plan()
    without = make_planner(prefill_apart(0.0), gpus, nodes, declaration=SPLIT).plan()

    assert count_replicas(near.models["q"]) == count_replicas(without.models["q"]) == {"E": 4, "P": 2, "D": 8}
    assert near.capacity == without.capacity
    assert read_planned(near)["deployments"][0]["nodes"] == {
        f"q/{name}@{node}": count for name, count in (("E", 2), ("P", 1), ("D", 4)) for node in nodes
    }
    # With executors that are busy all of the time, 0.6 of the tensors go to any of them, half of these to the other node.
    assert sum(link["gb_s"] for link in read_planned(near)["links"]) == pytest.approx(0.3 * near.capacity["q"] * 0.501)


def test_cells_are_whole_on_their_node():
    nodes = {"n1": DeclaredNode(4), "n2": DeclaredNode(4)}

    result = make_planner(prefill_apart(5e8), {"H100": GpuType(8)}, nodes, declaration=SPLIT, cells=4).plan()

    assert read_planned(result)["models"]["q"]["cells"] == {"4": 2}
    there = read_planned(result)["deployments"][0]["nodes"]
    assert {name.split("@")[1] for name in there} == set(nodes)
    assert all(count * 2 == count_replicas(result.models["q"])[name[2:].split("@")[0]] for name, count in there.items())


# Goals


def make_curve(rate: float, done_seconds: float) -> tuple[Point, ...]:
    return (Point(at_once=1, rate=rate, done=done_seconds, first_token=done_seconds),)


def test_a_transfer_that_nothing_avoids_is_taken_off_the_goal():
    """A goal of 200 ms allows 100 ms of work and a transfer. The transfer must be small."""
    gpus, goal_fields = {**GPUS, "L4": GpuType(8)}, {"goals": make_goals(first_token=0.2)}
    nodes = {"n1": DeclaredNode(8, "L4", TEN_GBIT), "n2": DeclaredNode(4, "H100", TEN_GBIT)}
    fast = make_curve(10.0, 0.05)

    few = make_planner(make_apart_profile(SMALL, curve=fast), gpus, nodes, **goal_fields).plan()

    assert few.capacity["q"] > 0
    assert make_planner(make_apart_profile(2 * LARGE, curve=fast), gpus, **goal_fields).plan().capacity == few.capacity
    with pytest.raises(Infeasible, match="vision within the planned goals"):
        make_planner(make_apart_profile(2 * LARGE, curve=fast), gpus, nodes, **goal_fields).plan()


def test_a_transfer_that_a_placement_avoids_is_not_taken_off_the_goal():
    one_type = make_profile(
        {
            "E": make_option("vision", ("vision", ENCODE), gpu="H100", curve=make_curve(10.0, 0.05)),
            "L": make_option("thinker", ("thinker", THINK), gpu="H100", curve=make_curve(10.0, 0.05)),
        },
        types={SEEN: TypeProfile(("vision", "thinker"), 1.0)},
        edges=(EdgeProfile("vision", "thinker", 1e9, SEEN),),
    )
    nodes = {"n1": DeclaredNode(4, link_gb_s=TEN_GBIT), "n2": DeclaredNode(4, link_gb_s=TEN_GBIT)}

    assert make_planner(one_type, nodes=nodes, goals=make_goals(first_token=0.2)).plan().capacity["q"] > 0
