"""Placement of executors on the machines of agents. Pure, no I/O."""

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from omnibus.cluster.agents import READY, AgentStatus
from omnibus.cluster.presence import CELL, DesiredExecutors, ExecutorKind
from omnibus.errors import Retryable


class NoRoom(Retryable):
    """No machine has room for ``missing`` of ``executors``."""

    code = "no_room"

    def __init__(self, executors: DesiredExecutors, missing: int, nodes: Collection[str]) -> None:
        need = f"{executors.gpus} GPUs of type {executors.gpu or 'any'}" if executors.gpus else "a slot without a GPU"
        machines = f"none of {', '.join(sorted(nodes))} has it" if nodes else "no machine is up"
        super().__init__(
            f"no room for {missing} of {executors.replicas} executors of {executors.kind}: each needs {need}, and "
            f"{machines}. Add a machine with `omnibus node`, or end a drain"
        )
        self.executors, self.missing = executors, missing


class PlacedExecutor(NamedTuple):
    """An executor on a machine. A leaving one runs until its kind is ready elsewhere."""

    id: str
    node: str
    kind: ExecutorKind
    mark: str
    gpus: int
    leaving: bool = False


class Room:
    """GPUs and slots of machines that ``executors`` leave. Draining machines have none."""

    def __init__(self, agents: Mapping[str, AgentStatus], executors: Collection[PlacedExecutor]) -> None:
        self._agents = {node: agent for node, agent in agents.items() if agent.state == READY}
        self._executors = executors
        self._gpus = {node: agent.gpus for node, agent in self._agents.items()}
        self._slots = {node: agent.slots for node, agent in self._agents.items()}
        for each in executors:
            self._take(each.gpus, each.node)

    def choose_nodes(self, executors: DesiredExecutors, own: Iterable[PlacedExecutor]) -> Iterator[str]:
        """Yield the node for each further one of ``executors`` until no room is left. Each one takes its place.

        ``own`` are those that exist. Nodes of the plan come first, then those with others of its cell, then the one
        with the most room.
        """
        counts, model = Counter(count_by_node(own)), executors.kind.model
        with_cell = executors.env.get(CELL)
        cell = {each.node for each in self._executors if each.kind.model == model} if with_cell else set()

        def rank(node: str) -> tuple[bool, bool, float, str]:
            lacks = counts[node] < executors.nodes.get(node, 0)
            return not lacks, node not in cell, -self._free_share(executors, node), node

        heap = [rank(node) for node in self._agents if self._fits(executors, node)]
        heapq.heapify(heap)
        while heap:
            node = heapq.heappop(heap)[-1]
            counts[node] += 1
            self._take(executors.gpus, node)
            if self._fits(executors, node):
                heapq.heappush(heap, rank(node))
            yield node

    def _take(self, gpus: int, node: str) -> None:
        if node in self._agents:
            free = self._gpus if gpus else self._slots
            free[node] -= gpus or 1

    def _fits(self, executors: DesiredExecutors, node: str) -> bool:
        if not executors.gpus:
            return self._slots[node] > 0
        return executors.gpu in ("", self._agents[node].gpu) and self._gpus[node] >= executors.gpus

    def _free_share(self, executors: DesiredExecutors, node: str) -> float:
        agent = self._agents[node]
        return self._gpus[node] / agent.gpus if executors.gpus else self._slots[node] / agent.slots


def surplus_executors(executors: DesiredExecutors, own: Iterable[PlacedExecutor]) -> list[PlacedExecutor]:
    """Return those of ``own`` beyond the plan's number for their nodes; none if the plan names no nodes."""
    counts, surplus = Counter[str](), []
    for each in own if executors.nodes else ():
        counts[each.node] += 1
        if counts[each.node] > executors.nodes.get(each.node, 0):
            surplus.append(each)
    return surplus


def count_by_node(executors: Iterable[PlacedExecutor]) -> dict[str, int]:
    """Return the number of executors by node."""
    return Counter(each.node for each in executors)
