"""Marks in later segments are replaced by the outputs of earlier ones."""

from typing import Any

import numpy as np
import pytest

from omnibus.errors import ProtocolError, StageFailed
from omnibus.graph import HANDLE, GraphNode, call_digest
from omnibus.tensors.handle import Item
from omnibus_gateway.dispatch.streams import ResultStream
from omnibus_gateway.request.inputs import Place, fill_references, has_references


class CountingPlacer:
    """A placer that stores no tensors and records their reader counts."""

    def __init__(self) -> None:
        self.readers: list[int] = []

    async def put(self, item: Item, nodes: int) -> dict[str, Any]:
        self.readers.append(nodes)
        return {HANDLE: {"id": len(self.readers)}, "sha256": "ab"}


def make_stream(*items: Item) -> ResultStream:
    result_stream = ResultStream(0, "y", lambda _: np.ones(1))
    for item in items:
        result_stream.add_item(item)
    result_stream.end()
    return result_stream


EARLIER = {
    (0, 0, "y"): make_stream(Item({}, np.ones(2))),
    (0, 1, "n"): make_stream(Item({"value": 7})),
    (0, 2, "box"): make_stream(Item({"name": "a"})),
    (1, 0, "n"): make_stream(Item({"value": {"value": 1}})),
    (2, 0, "n"): make_stream(),
}


def make_reference(*place: Any) -> dict[str, Any]:
    return {"$from": list(place)}


def make_node(**inputs: Any) -> GraphNode:
    return GraphNode("add", "add", inputs, "old", (), "m", 3)


async def fill_nodes(
    *nodes: GraphNode, shelf: CountingPlacer | None = None, earlier: Any = EARLIER
) -> list[dict[str, Any]]:
    def find_earlier(place: Place) -> Any:
        return earlier.get(place)

    return [each.inputs for each in await fill_references(nodes, find_earlier, shelf or CountingPlacer())]  # type: ignore[arg-type]


def test_nodes_without_marks_need_nothing():
    assert not has_references([make_node(x=1)])
    assert has_references([make_node(x=1), make_node(many=[{"deep": make_reference(0, 0, "y")}])])


async def test_marks_are_filled_wherever_they_are():
    [inputs] = await fill_nodes(
        make_node(
            x=make_reference(0, 1, "n"),
            many=[1, {"deep": make_reference(0, 2, "box")}],
            text="$from",
            more=make_reference(1, 0, "n"),
        )
    )

    assert inputs == {"x": 7, "many": [1, {"deep": {"name": "a"}}], "text": "$from", "more": {"value": 1}}


async def test_a_tensor_is_placed_once_for_all_its_readers():
    shelf = CountingPlacer()

    first, second = await fill_nodes(
        make_node(one=make_reference(0, 0, "y")),
        make_node(items=[make_reference(0, 0, "y"), make_reference(0, 0, "y")]),
        shelf=shelf,
    )

    assert shelf.readers == [3]
    assert first["one"] == second["items"][0] == second["items"][1] == {HANDLE: {"id": 1}, "sha256": "ab"}


async def test_a_filled_node_is_the_same_call_with_its_own_digest():
    def find_earlier(place: Place) -> Any:
        return EARLIER.get(place)

    [filled_node, same] = await fill_references(
        [make_node(x=make_reference(0, 1, "n")), make_node(x=1)], find_earlier, CountingPlacer()
    )  # type: ignore[arg-type]

    assert (filled_node.task, filled_node.component, filled_node.model, filled_node.salt) == ("add", "add", "m", 3)
    assert filled_node.digest == call_digest("add", {"x": 7})
    assert same.digest == "old"


@pytest.mark.parametrize("place", [(0, 0, "n"), (3, 0, "y"), (0, 9, "y")])
async def test_a_mark_of_what_there_is_not_is_refused(place: Any):
    with pytest.raises(ProtocolError, match=f"a graph refers to .{place[0]}, {place[1]}, .*, which no earlier segment"):
        await fill_nodes(make_node(x=make_reference(*place)))


@pytest.mark.parametrize("wrong", [None, 3, [0, 0], [0, 0, "y", 1], ["0", 0, "y"], [0, 0, 1], {"a": "b" * 1000}])
async def test_a_mark_that_is_none_is_refused(wrong: Any):
    with pytest.raises(ProtocolError, match="but a result must be .step, node, output.") as caught:
        await fill_nodes(make_node(x={"$from": wrong}))

    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("key", ["$ref", "$from", "$handle"])
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: {"a": [value]}, lambda value: {"value": value}])
async def test_what_a_task_said_does_not_become_a_reference_or_a_handle(key: str, wrap: Any):
    earlier_streams = {(0, 0, "n"): make_stream(Item(wrap({key: [0, "y"]})))}

    with pytest.raises(ProtocolError, match=r"a result contains one of the reserved keys \$ref, \$from, \$handle"):
        await fill_nodes(make_node(x=make_reference(0, 0, "n")), earlier=earlier_streams)


async def test_a_failure_of_an_earlier_segment_is_the_later_ones():
    empty_stream = make_stream()
    failed_stream = ResultStream(0, "y", lambda _: np.ones(1))
    failed_stream.fail(StageFailed("no more"))

    with pytest.raises(StageFailed, match="no more"):
        await fill_nodes(make_node(x=make_reference(0, 0, "y")), earlier={(0, 0, "y"): failed_stream})
    with pytest.raises(StageFailed, match="ended without a value"):
        await fill_nodes(make_node(x=make_reference(0, 0, "y")), earlier={(0, 0, "y"): empty_stream})
