"""Recorded graph of one request: nodes, references between them, and the invocation.

An ``Invocation`` is one JSON document with all that is needed to run the request again. It contains the graph with its
literal inputs, the route, the plan epoch, the seed and the deadline.
"""

import re
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import chain
from typing import Any

import msgspec

from omnibus.errors import ProtocolError

#: Version of the invocation document and of every message on the bus.
WIRE_VERSION = 1

#: Odd, so that the seeds of 2**63 repeated calls differ.
_STRIDE = 0x9E3779B97F4A7C15

REF = "$ref"
HANDLE = "$handle"
_CONTAINERS = (dict, list)
#: Parameters and parts of messages in which the client's order of keys counts: a model writes the properties of a
#: schema in their order, and reads tools and calls in their original form.
_IN_CLIENTS_ORDER = frozenset({"structured_outputs", "template", "tool_calls", "tools"})
_find_clients_order = re.compile(f'"(?:{"|".join(sorted(_IN_CLIENTS_ORDER))})":'.encode()).search
#: Key of the digest that replaces an input in a record without users' content.
DIGEST = "$digest"


def make_ref(node: int, output: str) -> dict[str, Any]:
    """Return the JSON form of a reference to ``output`` of ``node``."""
    return {REF: [node, output]}


def as_ref(value: Any) -> tuple[int, str] | None:
    """Return ``(node, output)`` if ``value`` is a reference, else None.

    With a text as its value, ``$ref`` belongs to a JSON schema.
    """
    if type(value) is dict and len(value) == 1 and REF in value and type(value[REF]) is not str:
        node, output = value[REF]
        return node, output
    return None


def find_refs(value: Any) -> Iterator[tuple[int, str]]:
    """Yield all references in an input: the value itself, or the elements of a list or dict."""
    reference = as_ref(value)
    if reference is not None:
        yield reference
    elif type(value) is list:
        for element in value:
            yield from find_refs(element)
    elif type(value) is dict:
        for element in value.values():
            yield from find_refs(element)


class GraphNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One call of a unit task. ``digest`` covers the task and its inputs.

    ``uses`` lists the references among the inputs, which saves a search. The plan of ``model`` runs the node; it is
    empty for the invocation's own model. ``salt`` counts equal calls before this one. It makes their random numbers
    differ, so that best-of-n gets n answers.
    """

    task: str
    component: str
    inputs: dict[str, Any]
    digest: str
    uses: tuple[tuple[int, str], ...] = ()
    model: str = ""
    salt: int = 0


class Invocation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One request: recorded graph, route and everything needed to run it again.

    ``outputs`` are the node outputs that the gateway requested. ``options`` and ``route`` name, per node, the
    deployment option and the executor. Times are Unix seconds. A request whose ``invoke`` awaits results runs as
    several segments, each a separate invocation. ``step`` counts them, and ``parent`` is the first one's id, empty in
    the first. ``choices`` are the decisions of ``choose``.
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
    nodes: tuple[GraphNode, ...]
    outputs: tuple[tuple[int, str], ...]
    options: tuple[str, ...]
    route: tuple[str, ...]
    attempt: int = 0
    replay_of: str = ""
    parent: str = ""
    step: int = 0
    choices: tuple[int, ...] = ()
    #: Outputs whose chunks the gateway records in transit, so that their readers can restart.
    retained: tuple[tuple[int, str], ...] = ()
    #: Per node the attempt that runs it: nodes of earlier attempts are done or still run. Empty: ``attempt`` for all.
    attempts: tuple[int, ...] = ()
    #: By node and output, the state left by an earlier attempt: see ``omnibus.executor.runner.Job.resume_state``.
    resumes: tuple[tuple[int, str, dict[str, Any]], ...] = ()
    #: The machine of each node, empty if unknown, and that of the gateway. Set for executors if there are several
    #: machines, and never recorded.
    places: tuple[str, ...] = ()
    home: str = ""
    #: When the gateway sent it, by the clock of ``deadline``; set if ``home`` is.
    sent: float = 0.0

    def starts_node(self, node: int) -> bool:
        """Return whether ``node`` begins in this attempt."""
        return not self.attempts or self.attempts[node] == self.attempt

    def by_own_clock(self, node: str, now: float) -> "Invocation":
        """Return the invocation with its deadline converted to the clock of ``node``.

        That clock may differ from the gateway's. ``now`` is the time of arrival. The time in transit is ignored: the
        gateway cancels late requests.
        """
        if self.home in ("", node):
            return self
        return msgspec.structs.replace(self, deadline=now + self.deadline - self.sent)

    def seed_of(self, node: int) -> int:
        """Return the seed of one node, 63 bits: the invocation's own, except for repeated equal calls."""
        return (self.seed + self.nodes[node].salt * _STRIDE) % 2**63

    def find_consumers(self, node: int) -> dict[str, list[int]]:
        """Return the nodes that read each output of ``node``."""
        consumers: dict[str, list[int]] = {}
        for index in range(node + 1, len(self.nodes)):
            for producer, output in self.nodes[index].uses:
                if producer == node and index not in consumers.setdefault(output, []):
                    consumers[output].append(index)
        return consumers


def call_digest(task: str, inputs: dict[str, Any]) -> str:
    """Return the digest of one call, 16 hex digits: equal calls have equal digests.

    A handle is excluded, because it is only the current location of bytes; its content hash is included. The order of
    keys, which ``encode_input`` may have preserved, does not count either.
    """
    stable = {
        name: _without_handles(value)
        if type(value) in _CONTAINERS and not (len(value) == 1 and REF in value)
        else (_in_one_order(value) if type(value) is msgspec.Raw and _find_clients_order(value) else value)
        for name, value in inputs.items()
    }
    return blake2b(_sorted.encode([task, stable]), digest_size=8).hexdigest()


def encode_input(value: dict[str, Any] | list[dict[str, Any]]) -> bytes:
    """Encode parameters or messages as JSON with sorted keys.

    Where the model sees the client's order of keys, it is kept.
    """
    names = value if type(value) is dict else chain.from_iterable(value)
    return _sorted.encode(value) if _IN_CLIENTS_ORDER.isdisjoint(names) else _encode(value)


def _in_one_order(value: msgspec.Raw) -> msgspec.Raw:
    return msgspec.Raw(_sorted.encode(msgspec.json.decode(value)))


def _without_handles(value: Any) -> Any:
    if type(value) is dict:
        return {key: _without_handles(entry) for key, entry in value.items() if key != HANDLE}
    if type(value) is list:
        return [_without_handles(element) for element in value]
    return value


def with_inputs(node: GraphNode, inputs: dict[str, Any]) -> GraphNode:
    """Return ``node`` with equivalent inputs, such as media at new handles."""
    return msgspec.structs.replace(node, inputs=inputs)


_sorted = msgspec.json.Encoder(order="sorted")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Invocation).decode
_version = msgspec.json.Decoder(dict[str, msgspec.Raw])


_HANDLE_KEY, _ESCAPE = f'"{HANDLE}"'.encode(), b"\\u00"


def may_hold_handles(body: bytes) -> bool:
    """Return whether an input in an encoded invocation may contain a handle.

    Users' text may look like one.
    """
    return _HANDLE_KEY in body or _ESCAPE in body  # hand-written keys may be escaped


def encode_invocation(invocation: Invocation) -> bytes:
    return _encode(invocation)


def decode_invocation(body: bytes) -> Invocation:
    """Read an invocation; raises ``ProtocolError`` for an unknown version or a broken document."""
    try:
        invocation = _decode(body)
    except UNREADABLE as error:
        raise _protocol_error(
            f"not an invocation of wire version {WIRE_VERSION}: {explain_unreadable(body, error)}"
        ) from error
    if invocation.v != WIRE_VERSION:
        raise _protocol_error(
            f"invocation of wire version {invocation.v}, this build reads {WIRE_VERSION}: update one side"
        )
    _check_invocation(invocation)
    return invocation


def _check_invocation(invocation: Invocation) -> None:
    """Check an invocation, which may be hand-written, before an executor runs it."""
    nodes = tuple([(node.task, node.uses) for node in invocation.nodes])
    outputs, attempts = (invocation.outputs, invocation.retained), len(invocation.attempts)
    shape = (invocation.reply, invocation.route, nodes, outputs, len(invocation.options), attempts)
    if shape in _checked_shapes and is_addressable(invocation.id):
        return
    _check_shape(invocation)
    if len(_checked_shapes) >= _MAX_CHECKED_SHAPES:
        _checked_shapes.clear()
    _checked_shapes.add(shape)


def _check_shape(invocation: Invocation) -> None:
    names = [invocation.id, invocation.reply, *invocation.route, *(node.task for node in invocation.nodes)]
    if not all(names) or not is_addressable("".join(names)):
        raise _protocol_error("the invocation's id, reply, route and tasks become subjects: no blanks, no wildcards")
    count = len(invocation.nodes)
    if not count or len(invocation.route) != count or len(invocation.options) != count:
        raise _protocol_error(f"invocation {invocation.id}: nodes, options and route must be of one length, at least 1")
    if not all(0 <= node < count for node, _ in (*invocation.outputs, *invocation.retained)):
        raise _protocol_error(f"invocation {invocation.id}: outputs {invocation.outputs} name unknown nodes")
    if len(invocation.attempts) not in (0, count):
        raise _protocol_error(f"invocation {invocation.id}: attempts must be empty, or one for each node")
    for index, node in enumerate(invocation.nodes):
        if not all(0 <= source < index for source, _ in node.uses):
            raise _protocol_error(
                f"invocation {invocation.id}: node {index} uses {node.uses}; only earlier nodes exist"
            )


#: Valid invocations without their ids and inputs: those of one route are all alike.
_checked_shapes: set[object] = set()
_MAX_CHECKED_SHAPES = 1024

#: Most characters of an error. It may quote the whole document, and must fit into a message.
_MAX_REFUSAL_CHARS = 400


def _protocol_error(text: str) -> ProtocolError:
    return ProtocolError(text if len(text) <= _MAX_REFUSAL_CHARS else f"{text[:_MAX_REFUSAL_CHARS]}…")


def verify_uses(nodes: Sequence[GraphNode]) -> None:
    """Raise ``ProtocolError`` unless each node's ``uses`` are the references among its inputs.

    They must refer to earlier nodes. The check is for graphs from users or apps, since an executor trusts ``uses``.
    """
    for index, node in enumerate(nodes):
        try:
            references = {reference for value in node.inputs.values() for reference in find_refs(value)}
            is_valid = all(type(source) is int and 0 <= source < index for source, _ in references)
        except (TypeError, ValueError):
            references, is_valid = set(), False
        if not is_valid or references != set(node.uses):
            raise ProtocolError(
                f"node {index} ({node.task}) must refer to outputs of earlier nodes as [node, output], and list these "
                f"references in `uses`, not {list(node.uses)}"
            )


#: Printable ASCII except blank, ``*`` and ``>``: anything else would end a subject or widen it.
_ADDRESS = re.compile(r"[!-)+-=?-~]+")


def is_addressable(name: str) -> bool:
    """Return whether ``name`` may stand in a subject of the bus."""
    return _ADDRESS.fullmatch(name) is not None


#: Errors of decoding external bytes: unexpected JSON, text that is not UTF-8, unlimited depth.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def explain_unreadable(body: bytes, error: Exception) -> str:
    """Return the reason why ``body`` cannot be read.

    A foreign version is reported before its unknown fields.
    """
    try:
        version = _version.decode(body).get("v")
    except UNREADABLE:
        return str(error)
    if version is None:
        return f"it says no version ({error})"
    if bytes(version) != str(WIRE_VERSION).encode():
        return f"it says version {bytes(version).decode(errors='replace')[:20]}"
    return str(error)
