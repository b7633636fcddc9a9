"""Connections of a node's outputs, cached by an invocation's shape and route."""

from collections.abc import Sequence
from typing import NamedTuple

from omnibus.bus import subjects
from omnibus.executor.outputs import OutputReaders
from omnibus.graph import Invocation

#: Number of cached shapes.
MAX_SHAPES = 1024

_known: dict[object, tuple["OutputConnection", ...]] = {}


class OutputConnection(NamedTuple):
    """One output of a node: its readers in this process, and all others.

    ``requested`` is whether the gateway requests it, ``retained`` whether it retains it, and ``consumed`` whether any
    node reads it.
    """

    output: str
    local: tuple[int, ...]
    readers: OutputReaders
    requested: bool
    retained: bool
    consumed: bool


def find_connections(invocation: Invocation, index: int, executor: str, machine: str) -> tuple[OutputConnection, ...]:
    """Return the connections of node ``index``, which runs in ``executor`` on ``machine``."""
    places = (invocation.places, invocation.home, invocation.reply) if invocation.places else ()
    attempt = (invocation.attempts, invocation.attempt) if invocation.attempts else ()
    shape = tuple([(node.component, node.uses) for node in invocation.nodes])
    key = (index, executor, machine, invocation.route, shape, invocation.outputs, invocation.retained, places, attempt)
    connections = _known.get(key)
    if connections is None:
        if len(_known) >= MAX_SHAPES:
            _known.clear()
        connections = _known[key] = tuple(_connect_node(invocation, index, executor, machine))
    return connections


def _connect_node(invocation: Invocation, index: int, executor: str, machine: str) -> list[OutputConnection]:
    requested_outputs = {output for node, output in invocation.outputs if node == index}
    retained_outputs = {output for node, output in invocation.retained if node == index}
    consumers = invocation.find_consumers(index)
    connections = []
    for output in dict.fromkeys([*requested_outputs, *retained_outputs, *consumers]):
        nodes = [node for node in consumers.get(output, ()) if invocation.starts_node(node)]
        local = tuple(node for node in nodes if invocation.route[node] == executor)
        remote_nodes = [node for node in nodes if node not in local]
        readers = _find_readers(
            invocation, remote_nodes, machine, output in requested_outputs, output in retained_outputs
        )
        connections.append(
            OutputConnection(
                output, local, readers, output in requested_outputs, output in retained_outputs, bool(nodes)
            )
        )
    return connections


def _find_readers(
    invocation: Invocation, nodes: Sequence[int], machine: str, requested: bool, retained: bool
) -> OutputReaders:
    """Return the readers of an output: ``nodes`` in other processes, and the gateway if it reads it."""
    edges = [subjects.edge_subject(invocation.route[node]) for node in nodes]
    count = len(edges) + requested + retained
    components = dict.fromkeys(invocation.nodes[node].component for node in nodes)
    targets = (*components, "gateway") if requested else tuple(components)
    if not invocation.places:
        return OutputReaders(tuple(dict.fromkeys(edges)), count, requested, targets)
    far = [edge for node, edge in zip(nodes, edges, strict=True) if invocation.places[node] not in ("", machine)]
    if invocation.home != machine:
        far += [invocation.reply] * (requested + retained)
    return OutputReaders(tuple(dict.fromkeys(edges)), count, requested, targets, frozenset(far), len(far))
