"""Tensors between nodes at the expected rates: GB/s per pair, utilisation of links, and waits.

A node's link has equal capacity in each direction. Gateways are excluded: profiles do not contain where media come
from.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from omnibus_planner.declared.planned_spec import DeclaredNode
from omnibus_planner.optimize.joint import PlanningOutcome
from omnibus_planner.optimize.latency import NO_WAIT, Wait, link_wait
from omnibus_planner.optimize.links import declared_gb_s, payload_gb_s, transfer_seconds
from omnibus_planner.solve.solution import Flow
from omnibus_planner.solve.traffic import crossing_shares


class Transfer(NamedTuple):
    """The ``share`` of requests that moves ``gb`` between two nodes."""

    nodes: tuple[str, str]
    share: float
    gb: float


class _LinkLoad(NamedTuple):
    """Load between a pair of nodes.

    It contains GB/s, transfers per second, and the sums of their seconds, and of the squares and cubes of these.
    """

    gb_s: float = 0.0
    rate: float = 0.0
    busy: float = 0.0
    squares: float = 0.0
    cubes: float = 0.0


class TransferLoads:
    """Traffic of all ``outcomes`` together between ``nodes``."""

    def __init__(self, outcomes: Sequence[PlanningOutcome], nodes: Mapping[str, DeclaredNode]) -> None:
        self._nodes = nodes
        self._loads: dict[tuple[str, str], _LinkLoad] = {}
        self._busy = {
            option: work / outcome.solution.replicas[option]
            for outcome in outcomes
            for option, work in outcome.expected_work().items()
            if outcome.solution.replicas.get(option)
        }
        for outcome in outcomes:
            for flow in outcome.solution.flows:
                for moved in (each for hop in self.flow_transfers(outcome, flow) for each in hop):
                    self._add_transfer(moved, outcome.expected_flow_rate(flow) * moved.share)

    def _add_transfer(self, moved: Transfer, rate: float) -> None:
        before = self._loads.get(moved.nodes, _LinkLoad())
        seconds = moved.gb / (declared_gb_s(self._nodes, *moved.nodes) or math.inf)
        self._loads[moved.nodes] = _LinkLoad(
            before.gb_s + rate * moved.gb, *(total + rate * seconds**power for power, total in enumerate(before[1:]))
        )

    def flow_transfers(self, outcome: PlanningOutcome, flow: Flow) -> Iterator[list[Transfer]]:
        """Yield each tensor's pairs of nodes between executors of a path."""
        if not outcome.places:
            return
        for hop in outcome.flow_hops(flow):
            source, target = flow.options[hop.source], flow.options[hop.target]
            ends = outcome.places.get(source, {}), outcome.places.get(target, {})
            shares = crossing_shares(*ends, self._busy.get(target, 0.0))
            yield [Transfer(nodes, share, hop.gb) for nodes, share in shares.items()]

    def unloaded_seconds(self, moved: Transfer) -> float:
        """Return the seconds of a transfer that does not share its link."""
        return transfer_seconds(moved.gb, declared_gb_s(self._nodes, *moved.nodes))

    def wait(self, nodes: tuple[str, str]) -> Wait:
        """Return the delay of a transfer by others on the same link.

        Each direction of a link is separate.
        """
        load = self._loads.get(nodes)
        if load is None or not load.rate:
            return NO_WAIT
        means = (total / load.rate for total in (load.busy, load.squares, load.cubes))
        return link_wait(self.utilisation(nodes) or 0.0, *means)

    def utilisation(self, nodes: tuple[str, str]) -> float | None:
        """Return the utilisation of a pair's link, by all its traffic.

        It is None if it is unknown.
        """
        found = []
        for side, node in enumerate(nodes):
            size = payload_gb_s(self._nodes[node])
            if size:
                found.append(sum(load.gb_s for pair, load in self._loads.items() if pair[side] == node) / size)
        return max(found, default=None)

    def busiest_link(self) -> tuple[tuple[str, str], float]:
        """Return the pair of nodes whose link has the highest utilisation, and that utilisation; 0 if none is known."""
        busy = [((self.utilisation(pair) or 0.0), pair) for pair in sorted(self._loads)]
        utilisation, pair = max(busy, key=lambda each: each[0], default=(0.0, ("", "")))
        return pair, utilisation

    def describe_links(self) -> list[dict[str, Any]]:
        """Return the traffic between pairs of nodes.

        It is in GB/s; declared links also have a capacity and a utilisation.
        """
        rows = []
        for (start, end), load in sorted(self._loads.items()):
            row = {"from": start, "to": end, "gb_s": load.gb_s, "capacity": declared_gb_s(self._nodes, start, end)}
            row["utilisation"] = self.utilisation((start, end))
            rows.append({name: value for name, value in row.items() if value is not None})
        return rows

    def find_overloads(self) -> list[str]:
        """Return warnings about nodes whose traffic exceeds their links.

        It checks pairs of nodes, and the total of each node.
        """
        found = []
        for (start, end), load in sorted(self._loads.items()):
            size = declared_gb_s(self._nodes, start, end)
            if size and load.gb_s > size:
                found.append(f"{start} would send {load.gb_s:.3g} GB/s to {end}; their link carries {size:.3g} GB/s")
        for side, verb in enumerate(("send", "receive")):
            for name, node in self._nodes.items():
                size = payload_gb_s(node)
                sizes = [load.gb_s for pair, load in self._loads.items() if pair[side] == name]
                if size and len(sizes) > 1 and sum(sizes) > size:
                    found.append(f"{name} would {verb} {sum(sizes):.3g} GB/s in all; its link carries {size:.3g} GB/s")
        return found
