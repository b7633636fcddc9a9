"""Placement on many nodes by patterns: valid, never worse than a known one, and close to the best of all."""

import random

import pytest

from omnibus_planner.solve import placement
from omnibus_planner.solve.constraints import Places, SolverNode
from omnibus_planner.solve.highs import Deadline
from omnibus_planner.solve.node_patterns import NodePatterns
from omnibus_planner.solve.problem import SolverOption
from tests.unit.planner.solve.test_placement import OPTIONS, every_placement, sum_crossing

TYPED = {
    **{f"h{size}": SolverOption(("x",), size, "h") for size in (1, 2, 4)},
    **{f"l{size}": SolverOption(("x",), size, "l") for size in (1, 3)},
}


def check_placement(places: Places, replicas: dict[str, int], nodes: dict[str, SolverNode]) -> None:
    """Check counts, GPU types and capacities."""
    assert {name: sum(there.values()) for name, there in places.items()} == {n: c for n, c in replicas.items() if c}
    used = dict.fromkeys(nodes, 0)
    for name, there in places.items():
        for node, count in there.items():
            assert count > 0
            assert TYPED[name].gpu == nodes[node].gpu
            used[node] += count * TYPED[name].gpus
    assert all(count <= nodes[node].gpus for node, count in used.items())


def draw_typed_nodes(seed: int) -> tuple[dict[str, SolverNode], dict[str, int], dict[tuple[str, str], float]]:
    """Return nodes of two types and sizes, replicas that fill most of them, and traffic."""
    dice = random.Random(f"patterns {seed}")
    nodes = {f"n{at}": SolverNode(dice.choice((6, 8)), dice.choice("hl")) for at in range(dice.randint(9, 40))}
    replicas = dict.fromkeys(TYPED, 0)
    for node in nodes.values():
        left = node.gpus
        while fitting := [name for name, option in TYPED.items() if option.gpu == node.gpu and option.gpus <= left]:
            name = dice.choice(fitting)
            replicas[name] += 1
            left -= TYPED[name].gpus
            if dice.random() < 0.1:
                break
    pairs = [(one, other) for one in TYPED for other in TYPED if dice.random() < 0.4]
    return nodes, replicas, {pair: dice.choice((0.1, 1.0, 5.0)) for pair in pairs}


@pytest.mark.parametrize("seed", range(20))
def test_placements_on_many_nodes_are_valid_and_no_worse_than_even_ones(seed: int):
    nodes, replicas, traffic = draw_typed_nodes(seed)
    plain = placement.place_replicas(replicas, TYPED, nodes)
    even = placement._balanced_fit(replicas, TYPED, nodes, {})

    places = placement.place_replicas(replicas, TYPED, nodes, traffic=traffic)

    assert places is not None
    check_placement(places, replicas, nodes)
    for other in filter(None, (plain, even)):
        assert sum_crossing(places, traffic) <= sum_crossing(other, traffic) + 1e-9


@pytest.mark.parametrize("seed", range(10))
def test_running_replicas_stay_on_their_nodes_among_many(seed: int):
    nodes, replicas, traffic = draw_typed_nodes(seed)
    running = placement.place_replicas(replicas, TYPED, nodes)
    assert running is not None
    fewer = {name: count // 2 for name, count in replicas.items()}
    kept = placement._keep_running(fewer, nodes, running)

    places = placement.place_replicas(replicas, TYPED, nodes, kept, traffic=traffic)

    assert places is not None
    check_placement(places, replicas, nodes)
    for name, there in kept.items():
        assert all(places[name].get(node, 0) >= count for node, count in there.items())


def test_patterns_find_the_best_of_all_placements_on_few_nodes():
    best_count = 0
    for seed in range(25):
        dice = random.Random(seed)
        nodes = {f"h{at}": SolverNode(4) for at in range(3)}
        replicas = {name: dice.randint(1, 3) for name in OPTIONS}
        traffic = {("a", "b"): dice.choice((0.1, 1.0)), ("b", "c"): dice.choice((0.1, 5.0)), ("c", "a"): 1.0}
        first = placement._first_fit(replicas, OPTIONS, nodes, {})
        if first is None:
            continue
        best = min(sum_crossing(each, traffic) for each in every_placement(replicas, OPTIONS, nodes))

        places = NodePatterns(replicas, OPTIONS, nodes, {}, traffic).find_places([first], Deadline(60.0))

        assert {name: sum(there.values()) for name, there in places.items()} == replicas
        assert sum_crossing(places, traffic) >= best - 1e-9
        best_count += sum_crossing(places, traffic) <= best + 1e-9
    assert best_count >= 20
