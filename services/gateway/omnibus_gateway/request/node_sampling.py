"""Sampling of language model calls by apps: the model's defaults complete each call."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from omnibus import graph
from omnibus.graph import HANDLE, GraphNode
from omnibus_gateway.routing.sampling_defaults import ModelSampling

#: Prefixes of unit tasks that sample text tokens.
_TEXT_TASKS = ("think-", "prefill-", "decode-")
_encode = msgspec.json.Encoder(order="sorted").encode


def complete_nodes(
    nodes: Sequence[GraphNode], model: str, sampling: Callable[[str], ModelSampling]
) -> tuple[GraphNode, ...]:
    """Return ``nodes`` with the ``sampling`` of their models; nodes without one use ``model``.

    The executor completes parameters that are in the arena.
    """
    return tuple([_complete_node(node, sampling(node.model or model)) for node in nodes])


def _complete_node(node: GraphNode, usual: ModelSampling) -> GraphNode:
    params = node.inputs.get("params")
    if not usual.values or not node.task.startswith(_TEXT_TASKS) or not isinstance(params, dict | msgspec.Raw):
        return node
    if isinstance(params, dict) and HANDLE in params:
        return node
    own_params: dict[str, Any] = msgspec.json.decode(params) if isinstance(params, msgspec.Raw) else dict(params)
    more = {name: value for name, value in usual.values.items() if not name.startswith("talker_")}
    if (bound := more.pop("max_tokens", None)) is not None and own_params.get("max_tokens") is None:
        more["usual_tokens"] = bound
    all_params = {**more, **own_params}
    encoded_params = msgspec.Raw(_encode(all_params)) if isinstance(params, msgspec.Raw) else all_params
    return graph.with_inputs(node, {**node.inputs, "params": encoded_params})
