"""Limits of the GB/s between executors, compared with equal problems in which the links are one more executor."""

import random
from dataclasses import replace

import pytest

from omnibus_planner.solve.constraints import Terms
from omnibus_planner.solve.flow_network import Arc, Network, Use
from omnibus_planner.solve.problem import SolverOption
from omnibus_planner.solve.solver import Solver
from tests.unit.planner.solve.worlds import build_arcs, make_world, omni_network

LINKS, GPUS = "links", 9


def draw_arc_gb(network: Network, seed: int) -> list[float]:
    """Return GB for each arc; requests receive none at their first stop."""
    dice = random.Random(seed)
    return [dice.choice((0.0, 0.01, 0.1)) if arc.tail else 0.0 for arc in network.arcs]


def with_link_executor(network: Network, arc_gb: list[float], most_gb_s: float) -> Network:
    """Return ``network`` with an option that works for each GB, on a GPU of its own type."""
    number = len(network.options)
    arcs = tuple(
        Arc(arc.kind, arc.tail, arc.head, (*arc.uses, *([Use(number, gb / most_gb_s, ())] if gb else [])))
        for arc, gb in zip(network.arcs, arc_gb, strict=True)
    )
    return replace(network, options={**network.options, LINKS: SolverOption((), gpus=1, gpu=LINKS)}, arcs=arcs)


@pytest.mark.parametrize("seed", range(24))
def test_a_limit_is_one_more_executor_that_all_traffic_passes(seed: int):
    network = build_arcs(make_world(seed))
    arc_gb = draw_arc_gb(network, seed)
    free = Solver(network).solve_most(Terms(gpus={"": GPUS}, within=60.0)).rate
    most_gb_s = random.Random(seed).uniform(0.2, 0.8) * 0.1 * free

    limited = Solver(network, arc_gb, most_gb_s).solve_most(Terms(gpus={"": GPUS}, within=60.0))
    expected = Solver(with_link_executor(network, arc_gb, most_gb_s)).solve_most(
        Terms(gpus={"": GPUS, LINKS: 1}, within=60.0)
    )

    assert limited.rate == pytest.approx(expected.rate, rel=1e-5)
    assert limited.rate <= free * (1 + 1e-6)
    assert sum(flow.rate for flow in limited.flows) == pytest.approx(limited.rate)


def test_without_any_traffic_each_request_stays_on_its_first_executor():
    network = omni_network(1)
    arc_gb = [1.0 if arc.tail else 0.0 for arc in network.arcs]

    found = Solver(network, arc_gb, 0.0).solve_most(Terms(gpus={"": GPUS}, within=60.0))

    assert found.rate > 0
    assert {len(flow.options) for flow in found.flows} == {1}
