"""Language model calls of apps get their models' recommended sampling."""

from typing import Any

import msgspec

from omnibus.graph import HANDLE, GraphNode
from omnibus_gateway.request.inputs import complete_nodes
from omnibus_gateway.routing.assignment import ModelSampling

USUAL = {
    "m": ModelSampling({"temperature": 0.6, "top_k": 20, "max_tokens": 50, "talker_top_k": 5}),
    "other": ModelSampling({"temperature": 0.1}),
    "silent": ModelSampling(),
}


def make_node(params: Any, task: str = "think-m-thinker", model: str = "") -> GraphNode:
    return GraphNode(task, "thinker", {"messages": [], "params": params}, "", model=model)


def complete_params(*nodes: GraphNode) -> list[Any]:
    return [each.inputs["params"] for each in complete_nodes(nodes, "m", USUAL.__getitem__)]


def test_what_a_call_names_stays():
    assert complete_params(
        make_node({}), make_node({"temperature": 0, "max_tokens": 9}), make_node({}, model="other")
    ) == [
        {"temperature": 0.6, "top_k": 20, "usual_tokens": 50},
        {"temperature": 0, "top_k": 20, "max_tokens": 9},
        {"temperature": 0.1},
    ]


def test_encoded_parameters_stay_encoded():
    [params] = complete_params(make_node(msgspec.Raw(b'{"top_k": 1}')))

    assert isinstance(params, msgspec.Raw)
    assert msgspec.json.decode(params) == {"temperature": 0.6, "top_k": 1, "usual_tokens": 50}


def test_other_calls_are_left_alone():
    nodes = [make_node({}, "talk-m-talker"), make_node({HANDLE: "x"}, model="silent"), make_node(None)]

    assert complete_nodes(nodes, "m", USUAL.__getitem__) == tuple(nodes)
