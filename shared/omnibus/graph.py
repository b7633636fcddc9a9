"""What one request recorded: nodes, references between them, and the invocation that carries both.

An ``Invocation`` is one JSON document. It holds all that is needed to run the request again: the
graph with its literal inputs, the route, the plan epoch, the seed and the deadline.
"""

import re
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import msgspec

from omnibus.errors import ProtocolError

#: Version of the invocation document and of every message on the bus.
WIRE_VERSION = 1

REF = "$ref"
HANDLE = "$handle"


def ref(node: int, output: str) -> dict[str, Any]:
    """The JSON form of a reference to ``output`` of ``node``."""
    return {REF: [node, output]}


def as_ref(value: Any) -> tuple[int, str] | None:
    """``(node, output)`` if ``value`` is a reference, else None."""
    if type(value) is dict and len(value) == 1 and REF in value:
        node, output = value[REF]
        return node, output
    return None


def refs(value: Any) -> Iterator[tuple[int, str]]:
    """All references in an input: the value itself, or the elements of a list or dict."""
    found = as_ref(value)
    if found is not None:
        yield found
    elif type(value) is list:
        for element in value:
            yield from refs(element)
    elif type(value) is dict:
        for element in value.values():
            yield from refs(element)


class Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One call of a unit task. ``digest`` covers the task and its inputs.

    ``uses`` repeats the references among the inputs, so that nobody has to search for them again.
    """

    task: str
    component: str
    inputs: dict[str, Any]
    digest: str
    uses: tuple[tuple[int, str], ...] = ()


class Invocation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One request: recorded graph, route and everything needed to run it again.

    ``outputs`` are the node outputs that the gateway asked for; ``options`` and ``route`` name, per
    node, the deployment option and the executor. Times are Unix seconds.
    """

    v: int
    id: str
    app: str
    model: str
    type: str
    path: str
    epoch: int
    seed: int
    created: float
    deadline: float
    reply: str
    nodes: tuple[Node, ...]
    outputs: tuple[tuple[int, str], ...]
    options: tuple[str, ...]
    route: tuple[str, ...]
    attempt: int = 0
    replay_of: str = ""

    def consumers(self, node: int) -> dict[str, list[int]]:
        """For each output of ``node`` the nodes that read it."""
        found: dict[str, list[int]] = {}
        for index in range(node + 1, len(self.nodes)):
            for producer, output in self.nodes[index].uses:
                if producer == node and index not in found.setdefault(output, []):
                    found[output].append(index)
        return found


def digest(task: str, inputs: dict[str, Any]) -> str:
    """Digest of one call, 16 hex digits: equal calls have equal digests.

    A handle says where bytes lie today, so it does not count; the content hash beside it does.
    """
    stable = {name: _without_handles(value) for name, value in inputs.items()}
    return blake2b(_sorted.encode([task, stable]), digest_size=8).hexdigest()


def _without_handles(value: Any) -> Any:
    if type(value) is dict and HANDLE in value:
        return {key: entry for key, entry in value.items() if key != HANDLE}
    if type(value) is list:
        return [_without_handles(element) for element in value]
    return value


def with_inputs(node: Node, inputs: dict[str, Any]) -> Node:
    """``node`` with other inputs of the same meaning, for example media at new handles."""
    return msgspec.structs.replace(node, inputs=inputs)


_sorted = msgspec.json.Encoder(order="sorted")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Invocation).decode
_version = msgspec.json.Decoder(dict[str, msgspec.Raw])


def encode(invocation: Invocation) -> bytes:
    return _encode(invocation)


def decode(body: bytes) -> Invocation:
    """Read an invocation; raises ``ProtocolError`` for an unknown version or a broken document."""
    try:
        invocation = _decode(body)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"not an invocation of wire version {WIRE_VERSION}: {_explain(body, error)}") from error
    if invocation.v != WIRE_VERSION:
        raise ProtocolError(
            f"invocation of wire version {invocation.v}, this build reads {WIRE_VERSION}: update one side"
        )
    _check(invocation)
    return invocation


def _check(invocation: Invocation) -> None:
    """Documents also come from hands: one that cannot run must not take a place in an executor."""
    names = [invocation.id, invocation.reply, *invocation.route, *(node.task for node in invocation.nodes)]
    if not all(names) or not addressable("".join(names)):
        raise ProtocolError("the invocation's id, reply, route and tasks become subjects: no blanks, no wildcards")
    count = len(invocation.nodes)
    if not count or len(invocation.route) != count or len(invocation.options) != count:
        raise ProtocolError(f"invocation {invocation.id}: nodes, options and route must be of one length, at least 1")
    if not all(0 <= node < count for node, _ in invocation.outputs):
        raise ProtocolError(f"invocation {invocation.id}: outputs {invocation.outputs} name nodes that are not there")
    for index, node in enumerate(invocation.nodes):
        if not all(0 <= source < index for source, _ in node.uses):
            raise ProtocolError(f"invocation {invocation.id}: node {index} uses {node.uses}; only earlier nodes exist")


#: Printable ASCII but blank, ``*`` and ``>``: anything else would end a subject or widen it.
_ADDRESS = re.compile(r"[!-)+-=?-~]+")


def addressable(name: str) -> bool:
    """Whether ``name`` may stand in a subject of the bus."""
    return _ADDRESS.fullmatch(name) is not None


def _explain(body: bytes, error: Exception) -> str:
    """Name a foreign version before its unknown fields."""
    try:
        version = _version.decode(body).get("v")
    except msgspec.MsgspecError:
        return str(error)
    if version is not None and bytes(version) != str(WIRE_VERSION).encode():
        return f"it says version {bytes(version).decode()[:20]}"
    return str(error)
