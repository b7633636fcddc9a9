"""Forks of recorded invocations: the same graph and seed with one input changed, to run as a replay."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from omnibus import graph
from omnibus.errors import BadRequest
from omnibus.graph import DIGEST, HANDLE, Invocation, find_refs
from omnibus.recording.records import EndRecord

#: Prefix of the name for executors of stages whose recorded outputs are replayed.
PLAYER_PREFIX = "record-of-"


def parse_change(text: str) -> tuple[str, Any]:
    """Parse ``params.temperature=0.2`` into path and value, which is JSON or else text. Raises ``BadRequest``."""
    where, separator, value = text.partition("=")
    if not separator or not where.strip():
        raise BadRequest(f"a change is INPUT=VALUE or INPUT.KEY=VALUE, as params.temperature=0.2, not {text[:80]!r}")
    try:
        return where.strip(), json.loads(value)
    except ValueError:
        return where.strip(), value


def find_node(invocation: Invocation, stage: str) -> int:
    """Return the number of the node ``stage``, a number or a component. Raises ``BadRequest``."""
    components = [node.component for node in invocation.nodes]
    if stage in components:
        return components.index(stage)
    if stage.isascii() and stage.isdigit() and int(stage) < len(components):
        return int(stage)
    stage_names = ", ".join(f"{index} ({component})" for index, component in enumerate(components))
    raise BadRequest(f"unknown stage {stage[:40]!r}; there is {stage_names}", param="stage")


def fork_invocation(invocation: Invocation, node: int, changes: Mapping[str, Any], seed: int | None) -> Invocation:
    """Return ``invocation`` with ``changes`` to ``node``, and ``seed`` if given.

    Raises ``BadRequest`` for inputs that are not literals of the node: outputs of other nodes, and media.
    """
    if not changes and seed is None:
        raise BadRequest("a fork changes something: give an input, as params.temperature=0.2, or a seed")
    inputs = dict(invocation.nodes[node].inputs)
    for where, value in changes.items():
        name, *keys = where.split(".")
        if name not in inputs:
            raise BadRequest(
                f"{invocation.nodes[node].component} has no input {name[:40]!r}; it has {', '.join(inputs)}"
            )
        inputs[name] = _replace_value(where, inputs[name], keys, value)
    nodes = list(invocation.nodes)
    nodes[node] = graph.with_inputs(nodes[node], inputs)
    return msgspec.structs.replace(
        invocation, nodes=tuple(nodes), seed=invocation.seed if seed is None else seed, resumes=()
    )


def can_begin_at(invocation: Invocation, end: EndRecord | None, node: int) -> bool:
    """Return whether everything a replay from ``node`` reads was kept."""
    kept_outputs = {(one.node, one.output) for one in (end.kept if end is not None else ())}
    return all(use in kept_outputs for later in invocation.nodes[node:] for use in later.uses if use[0] < node)


def start_headers(invocation: Invocation, end: EndRecord | None, node: int) -> dict[str, str]:
    """Return the headers to start a replay at ``node``; none if it must start at the beginning."""
    return {"Omnibus-From": str(node)} if node and can_begin_at(invocation, end, node) else {}


def _replace_value(where: str, old: Any, keys: list[str], value: Any) -> Any:
    if any(find_refs(old)):
        raise BadRequest(f"{where[:80]} is an output of another node: change an input of that node", param=where[:80])
    if isinstance(old, dict) and (HANDLE in old or DIGEST in old):
        if keys or DIGEST in old or old.get("modality", "text") != "text":
            raise BadRequest(
                f"{where[:80]} is not in the record itself: media cannot be changed, and a long text only as a whole",
                param=where[:80],
            )
        return value
    if not keys:
        return value
    key, *rest = keys
    if isinstance(old, dict):
        return {**old, key: _replace_value(where, old.get(key), rest, value)}
    if isinstance(old, list) and key.isdigit() and int(key) < len(old):
        return [_replace_value(where, each, rest, value) if at == int(key) else each for at, each in enumerate(old)]
    if old is None:
        return {key: _replace_value(where, None, rest, value)}
    raise BadRequest(f"{where[:80]} has no key {key[:40]!r}", param=where[:80])
