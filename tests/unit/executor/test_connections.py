"""Connections are cached by shape and route, and recomputed after changes."""

from typing import Any

import msgspec
import pytest

from omnibus.executor import job as connections
from omnibus.executor.job import find_connections
from omnibus.graph import GraphNode, Invocation

ROUTE = ("e1", "e2", "e2", "e3")


def make_node(component: str, *uses: tuple[int, str]) -> GraphNode:
    return GraphNode(f"task-{component}", component, {}, "", uses)


def make_invocation(id: str = "i", **changes: Any) -> Invocation:
    """Return an encoder and a thinker with a local and a remote reader."""
    nodes = (
        make_node("vision"),
        make_node("thinker", (0, "embedding")),
        make_node("talker", (1, "rows")),
        make_node("vocoder", (1, "rows"), (2, "codes")),
    )
    base = Invocation(
        1, id, "chat", "m", "t", "p", 1, 0, 0.0, 1.0, "omnibus.reply.g", nodes, ((1, "text"), (3, "audio")),
        ("E", "L", "L", "V"), ROUTE,
    )  # fmt: skip
    return msgspec.structs.replace(base, **changes)


def by_output(invocation: Invocation, index: int, machine: str = "here") -> dict[str, connections.OutputConnection]:
    return {
        connection.output: connection
        for connection in find_connections(invocation, index, invocation.route[index], machine)
    }


def test_readers_in_this_process_elsewhere_and_the_gateway_are_told_apart():
    outputs = by_output(make_invocation(), 1)

    rows, text = outputs["rows"], outputs["text"]
    assert (rows.local, rows.readers.edges, rows.readers.reads) == ((2,), ("omnibus.edge.e3",), 1)
    assert rows.readers.targets == ("vocoder",)
    assert (rows.consumed, rows.requested, rows.retained) == (True, False, False)
    assert (text.local, text.readers.edges, text.readers.gateway, text.readers.reads) == ((), (), True, 1)


def test_another_request_of_the_same_shape_has_the_same_connections():
    assert find_connections(make_invocation("a"), 1, "e2", "here") is find_connections(
        make_invocation("b"), 1, "e2", "here"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"route": ("e1", "e2", "e9", "e3")},
        {"outputs": ((1, "rows"), (3, "audio"))},
        {"retained": ((1, "rows"),)},
        {"attempts": (0, 1, 0, 1), "attempt": 1},
        {"places": ("here", "here", "here", "there"), "home": "here"},
        {"places": ("here", "here", "here", "here"), "home": "there", "retained": ((1, "rows"),)},
    ],
    ids="+".join,
)
def test_what_changes_them_is_seen(changes: dict[str, Any]):
    usual = by_output(make_invocation(), 1)

    changed_outputs = by_output(make_invocation(**changes), 1)

    assert changed_outputs != usual
    connections._known.clear()
    assert by_output(make_invocation(**changes), 1) == changed_outputs  # also with an empty cache


def test_readers_on_other_machines_are_known_by_where_one_runs():
    placed_invocation = make_invocation(places=("a", "a", "a", "b"), home="a")

    assert by_output(placed_invocation, 1, "a")["rows"].readers.far == {"omnibus.edge.e3"}
    assert by_output(placed_invocation, 1, "b")["rows"].readers.far == frozenset()
