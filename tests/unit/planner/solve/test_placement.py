"""Placement by traffic: the minimum over all placements, and no worse one if traffic cannot be reduced."""

import itertools
import random

import pytest

from omnibus_planner.solve import placement
from omnibus_planner.solve.constraints import SolverNode
from omnibus_planner.solve.problem import SolverOption
from omnibus_planner.solve.traffic import crossing_shares, least_crossing_share

OPTIONS = {"a": SolverOption(("a",), 1), "b": SolverOption(("b",), 1), "c": SolverOption(("c",), 2)}
CHAIN = {("a", "b"): 1.0, ("b", "c"): 3.0}


def sum_crossing(places, traffic):
    """Return the GB/s between nodes."""
    return sum(
        rate * sum(crossing_shares(places.get(source, {}), places.get(target, {})).values())
        for (source, target), rate in traffic.items()
    )


def every_placement(replicas, options, nodes):
    """Yield all ways to divide replicas among the nodes that fit."""
    names = list(nodes)
    ways = [
        [split for split in itertools.product(range(count + 1), repeat=len(names)) if sum(split) == count]
        for count in replicas.values()
    ]
    for splits in itertools.product(*ways):
        places = {
            option: {node: count for node, count in zip(names, split, strict=True) if count}
            for option, split in zip(replicas, splits, strict=True)
        }
        if all(
            sum(options[name].gpus * there.get(node, 0) for name, there in places.items()) <= room.gpus
            for node, room in nodes.items()
        ):
            yield places


def test_what_both_ends_can_keep_on_a_node_stays_there():
    assert crossing_shares({"h0": 1}, {"h0": 3}) == {}
    assert crossing_shares({"h0": 1}, {"h1": 3}) == {("h0", "h1"): 1.0}
    assert crossing_shares({"h0": 1, "h1": 1}, {"h0": 1, "h1": 3}) == {("h0", "h1"): 0.25}
    assert crossing_shares({"h0": 2, "h1": 2}, {"h1": 2, "h2": 2, "h3": 4}) == {
        ("h0", "h2"): pytest.approx(0.5 * 0.25 / 0.75),
        ("h0", "h3"): pytest.approx(0.5 * 0.5 / 0.75),
        ("h1", "h2"): pytest.approx(0.25 * 0.25 / 0.75),
        ("h1", "h3"): pytest.approx(0.25 * 0.5 / 0.75),
    }


def test_the_least_crossing_share_is_the_sum_over_pairs_of_nodes():
    for seed in range(50):
        dice = random.Random(seed)
        giving, taking = ({f"h{at}": dice.randint(0, 4) for at in range(5)} for _ in range(2))

        share = least_crossing_share(giving, taking)

        assert share == pytest.approx(sum(crossing_shares(giving, taking).values()))
    assert least_crossing_share({"h0": 1}, {}) == 0


def test_busy_takers_get_a_part_of_what_another_node_could_keep():
    assert crossing_shares({"h0": 1, "h1": 1}, {"h0": 1, "h1": 1}, 0.5) == {
        ("h0", "h1"): pytest.approx(0.3 * 0.25),
        ("h1", "h0"): pytest.approx(0.3 * 0.25),
    }
    assert crossing_shares({"h0": 1}, {"h1": 1, "h2": 1}, 0.9) == {
        ("h0", "h1"): pytest.approx(0.5),
        ("h0", "h2"): pytest.approx(0.5),
    }


def test_the_least_traffic_crosses_nodes():
    gain_count = 0
    for seed in range(25):
        dice = random.Random(seed)
        nodes = {f"h{at}": SolverNode(dice.randint(2, 5)) for at in range(dice.randint(2, 3))}
        replicas = {name: dice.randint(1, 3) for name in OPTIONS}
        traffic = {ends: dice.choice((0.0, 0.1, 1.0, 5.0)) for ends in itertools.permutations(OPTIONS, 2)}
        best = min((sum_crossing(each, traffic) for each in every_placement(replicas, OPTIONS, nodes)), default=None)

        places = placement.place_replicas(replicas, OPTIONS, nodes, traffic=traffic)
        plain = placement.place_replicas(replicas, OPTIONS, nodes)

        assert (places is None) == (best is None) == (plain is None), seed
        if places is not None:
            assert {name: sum(there.values()) for name, there in places.items()} == replicas
            assert sum_crossing(places, traffic) == pytest.approx(best, abs=1e-6), seed
            gain_count += sum_crossing(plain, traffic) > best + 1e-6
    assert gain_count > 5


def test_a_chain_that_fits_on_one_node_is_not_split_by_first_fit():
    # Largest first: both c fill h0, and their sources go to h1.
    nodes, replicas = {"h0": SolverNode(4), "h1": SolverNode(4)}, {"a": 1, "b": 1, "c": 1}
    fill = {"other": SolverOption(("x",), 3)}

    plain = placement.place_replicas({**replicas, "other": 1}, OPTIONS | fill, nodes)
    places = placement.place_replicas({**replicas, "other": 1}, OPTIONS | fill, nodes, traffic=CHAIN)

    assert sum_crossing(plain, CHAIN) > 0
    assert sum_crossing(places, CHAIN) == 0
    assert len({node for name in replicas for node in places[name]}) == 1


def test_a_running_replica_stays_even_where_its_move_would_save_traffic():
    nodes = {"h0": SolverNode(4), "h1": SolverNode(4)}

    places = placement.place_replicas(
        {"a": 1, "b": 1}, OPTIONS, nodes, {"a": {"h0": 1}, "b": {"h1": 1}}, traffic={("a", "b"): 5.0}
    )

    assert places == {"a": {"h0": 1}, "b": {"h1": 1}}


def test_a_new_replica_goes_to_the_running_ones_that_it_exchanges_bytes_with():
    nodes = {"h0": SolverNode(4), "h1": SolverNode(4)}

    places = placement.place_replicas({"a": 1, "b": 1}, OPTIONS, nodes, {"b": {"h1": 1}}, traffic={("a", "b"): 5.0})

    assert places == {"a": {"h1": 1}, "b": {"h1": 1}}


def test_without_traffic_and_on_one_node_replicas_go_where_they_went():
    replicas = {"a": 2, "b": 1, "c": 1}
    for nodes in ({"h0": SolverNode(9)}, {"h0": SolverNode(3), "h1": SolverNode(3)}):
        plain = placement.place_replicas(replicas, OPTIONS, nodes)
        assert placement.place_replicas(replicas, OPTIONS, nodes, traffic=dict.fromkeys(CHAIN, 0.0)) == plain
        assert len(nodes) > 1 or placement.place_replicas(replicas, OPTIONS, nodes, traffic=CHAIN) == plain


def test_many_nodes_are_filled_alike_where_the_program_would_take_long():
    nodes, replicas = {f"h{at}": SolverNode(8) for at in range(32)}, {"a": 64, "b": 96, "c": 48}

    plain = placement.place_replicas(replicas, OPTIONS, nodes)
    places = placement.place_replicas(replicas, OPTIONS, nodes, traffic=CHAIN)

    # No node holds three halves of a c, so that not all can be equal.
    assert sum_crossing(plain, CHAIN) > 0.8 * sum(CHAIN.values())
    assert sum_crossing(places, CHAIN) < 0.2 * sum(CHAIN.values())
