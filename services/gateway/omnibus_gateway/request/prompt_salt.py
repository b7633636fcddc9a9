"""Salts of prompts: an engine reuses a cached prompt only for requests with the same salt.

Without a salt, the time to the first token would reveal to a tenant how much of its prompt another tenant has sent.
"""

from typing import Any

import msgspec

from omnibus import graph
from omnibus.graph import HANDLE, GraphNode, encode_input

#: Prefixes of unit tasks that read a prompt.
_PROMPT_TASKS = ("think-", "prefill-")


def salt_prompt(node: GraphNode, salt: str, *, in_conversation: bool = True) -> GraphNode:
    """Return ``node`` with ``salt`` for its prompt, if it reads one.

    Parameters in the arena got the salt when they were placed. Unless ``in_conversation``, the prompt is not cached for
    the next turn of its conversation.
    """
    params = node.inputs.get("params")
    if not node.task.startswith(_PROMPT_TASKS) or not isinstance(params, dict | msgspec.Raw):
        return node
    if isinstance(params, dict) and HANDLE in params:
        return node
    decoded_params: dict[str, Any] = msgspec.json.decode(params) if isinstance(params, msgspec.Raw) else dict(params)
    if not in_conversation:
        decoded_params.pop("cache_key", None)
    decoded_params["cache_salt"] = salt
    salted_params = msgspec.Raw(encode_input(decoded_params)) if isinstance(params, msgspec.Raw) else decoded_params
    return graph.with_inputs(node, {**node.inputs, "params": salted_params})


def salt_params(body: bytes, salt: str) -> bytes:
    """Return the JSON ``body`` of ``TextParams`` with ``salt``, if there is one."""
    if not salt:
        return body
    return encode_input({**msgspec.json.decode(body), "cache_salt": salt})
