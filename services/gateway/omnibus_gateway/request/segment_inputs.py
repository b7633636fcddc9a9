"""Results of a request's earlier segments as inputs of later ones."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from omnibus.errors import ProtocolError
from omnibus.graph import HANDLE, REF, GraphNode, call_digest
from omnibus.task.item_codec import unwrap_value
from omnibus.task.record import FROM
from omnibus.tensors.item import Item
from omnibus_gateway.dispatch.inflight import InflightInvocation
from omnibus_gateway.dispatch.streams import ResultStream
from omnibus_gateway.request.arena_inputs import TensorPlacer

_RESERVED_KEYS = (REF, FROM, HANDLE)
#: A result of an earlier segment: step, node, output.
Place = tuple[int, int, str]


def has_references(nodes: Sequence[GraphNode]) -> bool:
    """Return True if ``nodes`` may read results of earlier segments."""
    return any(FROM in str(node.inputs) for node in nodes)


def find_earlier(segments: Sequence[InflightInvocation], place: Place) -> ResultStream | None:
    """Return the result at ``place`` of the sent segments; None without one."""
    step, node, output = place
    running = next((each for each in segments if each.invocation.step == step), None)
    return running.streams.get((node, output)) if running is not None else None


async def fill_references(
    nodes: Sequence[GraphNode], earlier: Callable[[Place], ResultStream | None], tensors: TensorPlacer
) -> tuple[GraphNode, ...]:
    """Return ``nodes`` with results instead of references; each tensor is placed once for all readers.

    Raises ``ProtocolError`` for a reference to an unknown result, and the error of a failed one.
    """
    reader_counts = Counter(
        place for node in nodes for value in node.inputs.values() for place in _iterate_references(value)
    )
    literals = {}
    for place, readers in reader_counts.items():
        stream = earlier(place)
        if stream is None:
            raise ProtocolError(f"a graph refers to {list(place)}, which no earlier segment of its request made")
        item = await stream.wait_first()
        literals[place] = _to_literal(item) if item.array is None else await tensors.put(item, readers)
    return tuple(
        [
            _replace_inputs(node, {name: _fill_value(value, literals) for name, value in node.inputs.items()})
            for node in nodes
        ]
    )


def _to_literal(item: Item) -> Any:
    """Return a value as an input. A client's JSON must not become an edge, or open memory."""
    value = unwrap_value(item.data)
    if _has_reserved_key(value):
        raise ProtocolError(f"a result contains one of the reserved keys {', '.join(_RESERVED_KEYS)}: rename the key")
    return value


def _has_reserved_key(value: Any) -> bool:
    if type(value) is dict:
        marks = [mark for mark in _RESERVED_KEYS if mark in value]
        if marks == [REF] and type(value[REF]) is str:  # the one of a JSON schema
            marks = []
        return bool(marks) or any(map(_has_reserved_key, value.values()))
    return type(value) is list and any(map(_has_reserved_key, value))


def _iterate_references(value: Any) -> Iterator[Place]:
    if type(value) is dict:
        if FROM in value:
            yield _parse_reference(value[FROM])
            return
        value = list(value.values())
    if type(value) is list:
        for element in value:
            yield from _iterate_references(element)


def _parse_reference(mark: Any) -> Place:
    match mark:
        case [int(step), int(node), str(output)]:
            return step, node, output
    raise ProtocolError(f"a graph refers to {str(mark)[:80]}, but a result must be [step, node, output]")


def _fill_value(value: Any, literals: dict[Place, Any]) -> Any:
    if type(value) is list:
        return [_fill_value(element, literals) for element in value]
    if type(value) is not dict:
        return value
    return (
        literals[_parse_reference(value[FROM])]
        if FROM in value
        else {key: _fill_value(each, literals) for key, each in value.items()}
    )


def _replace_inputs(node: GraphNode, inputs: dict[str, Any]) -> GraphNode:
    if inputs == node.inputs:
        return node
    return msgspec.structs.replace(node, inputs=inputs, digest=call_digest(node.task, inputs))
