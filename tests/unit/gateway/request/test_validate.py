"""Segments of apps are rejected unless ``record`` could have made them."""

from typing import Any

import pytest

from omnibus.errors import ProtocolError
from omnibus.graph import GraphNode, make_ref
from omnibus.task import Segment, record
from omnibus_gateway.request.inputs import validate_segment
from tests.unit.task.tasks import ADD, ONE, AddInput, NumberInput

REFERS = r"\(number\) must refer to outputs of earlier nodes as \[node, output\], and list these references in `uses`"


def make_node(*uses: tuple[int, str], **inputs: Any) -> GraphNode:
    return GraphNode("number", "number", inputs, "d", uses)


def test_what_record_makes_passes():
    validate_segment(
        Segment((make_node(x=1), make_node((0, "n"), x=make_ref(0, "n"))), ((1, "n"),), (1, 2), ("", "apart"))
    )
    validate_segment(record(lambda _: ADD.invoke(AddInput(items=[ONE.invoke(NumberInput(x=1)).y])).n, None))


@pytest.mark.parametrize(
    ("nodes", "more", "expected_text"),
    [
        ((), {}, "needs at least one call"),
        ((make_node(x=1),), {"work": (1, 2)}, "as many estimates and pins as calls, or none"),
        ((make_node(x=1),), {"pins": ("", "")}, "as many estimates and pins as calls"),
        ((make_node(x=1),), {"work": (-1,)}, "estimates must be tokens, not negative"),
        ((make_node(x=1),), {"work": (1 << 40,)}, "estimates must be tokens"),
        ((make_node(x=1),), {"outputs": ((1, "n"),)}, "outputs must belong to the graph's own calls"),
        ((make_node(x=1),), {"outputs": ((-1, "n"),)}, "outputs must belong to the graph's own calls"),
        ((make_node((0, "n"), x=make_ref(0, "n")),), {}, f"node 0 {REFERS}"),
        ((make_node(x=1), make_node(x=make_ref(0, "n"))), {}, f"node 1 {REFERS}"),
        ((make_node(x=1), make_node((0, "y"), x=make_ref(0, "n"))), {}, f"node 1 {REFERS}"),
        ((make_node(x=1), make_node((0, "n"), x=1)), {}, f"node 1 {REFERS}"),
        ((make_node(x=1), make_node((1, "n"), many=[{"deep": make_ref(1, "n")}])), {}, f"node 1 {REFERS}"),
        ((make_node(x=1), make_node((-1, "n"), x=make_ref(-1, "n"))), {}, f"node 1 {REFERS}"),
    ],
)
def test_what_record_would_not_make_is_refused(nodes: tuple[GraphNode, ...], more: dict[str, Any], expected_text: str):
    with pytest.raises(ProtocolError, match=expected_text):
        validate_segment(Segment(nodes, **{"outputs": (), **more}))
