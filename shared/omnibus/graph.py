"""Recorded graph of one request: nodes, references between them, and the invocation that carries both.

An ``Invocation`` is one JSON document. It holds all that is needed to run the request again: the
graph with its literal inputs, the route, the plan epoch, the seed and the deadline.
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
#: Parameters and parts of messages in which a client chose the order of keys: a model writes the properties of a schema
#: in their order, and reads tools and calls as they are written.
_IN_CLIENTS_ORDER = frozenset({"structured_outputs", "template", "tool_calls", "tools"})
_find_clients_order = re.compile(f'"(?:{"|".join(sorted(_IN_CLIENTS_ORDER))})":'.encode()).search
#: Key of what stands for an input in a record that has no users' content.
DIGEST = "$digest"


def make_ref(node: int, output: str) -> dict[str, Any]:
    """The JSON form of a reference to ``output`` of ``node``."""
    return {REF: [node, output]}


def as_ref(value: Any) -> tuple[int, str] | None:
    """``(node, output)`` if ``value`` is a reference, else None: a text is that of a JSON schema."""
    if type(value) is dict and len(value) == 1 and REF in value and type(value[REF]) is not str:
        node, output = value[REF]
        return node, output
    return None


def find_refs(value: Any) -> Iterator[tuple[int, str]]:
    """All references in an input: the value itself, or the elements of a list or dict."""
    found = as_ref(value)
    if found is not None:
        yield found
    elif type(value) is list:
        for element in value:
            yield from find_refs(element)
    elif type(value) is dict:
        for element in value.values():
            yield from find_refs(element)


class GraphNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One call of a unit task. ``digest`` covers the task and its inputs.

    ``uses`` repeats the references among the inputs, so that nobody has to search for them again.
    ``model`` is whose plan runs the node, empty for the invocation's own. ``salt`` counts equal calls
    before this one: it tells their random numbers apart, so that best-of-n gets n answers.
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

    ``outputs`` are the node outputs that the gateway asked for; ``options`` and ``route`` name, per
    node, the deployment option and the executor. Times are Unix seconds. A request whose ``invoke``
    awaits results runs as several segments, each an invocation of its own: ``step`` counts them, and
    ``parent`` is the first one's id, empty in the first. ``choices`` are what ``choose`` decided.
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
    #: Outputs whose chunks the gateway records while they travel, so that their readers can begin again.
    retained: tuple[tuple[int, str], ...] = ()
    #: Per node the attempt that runs it: nodes of earlier attempts are done or go on. Empty: all are of ``attempt``.
    attempts: tuple[int, ...] = ()
    #: By node and output, what an earlier attempt left of it: see ``omnibus.executor.runner.Job.resume_state``.
    resumes: tuple[tuple[int, str, dict[str, Any]], ...] = ()
    #: The machine of each node, empty where it is not known, and that of the gateway: set for the executors where they
    #: are several, and never recorded.
    places: tuple[str, ...] = ()
    home: str = ""
    #: When the gateway sent it, by the clock that ``deadline`` is of; set where ``home`` is.
    sent: float = 0.0

    def starts_node(self, node: int) -> bool:
        """Return whether ``node`` begins in this attempt."""
        return not self.attempts or self.attempts[node] == self.attempt

    def by_own_clock(self, node: str, now: float) -> "Invocation":
        """Return the invocation with its deadline by the clock of ``node``, which may differ from the gateway's.

        ``now`` is when it arrived. Time on its way counts for nothing: the gateway ends what lasts too long.
        """
        if self.home in ("", node):
            return self
        return msgspec.structs.replace(self, deadline=now + self.deadline - self.sent)

    def seed_of(self, node: int) -> int:
        """Seed of one node, 63 bits: the invocation's own, but for repeated equal calls."""
        return (self.seed + self.nodes[node].salt * _STRIDE) % 2**63

    def find_consumers(self, node: int) -> dict[str, list[int]]:
        """For each output of ``node`` the nodes that read it."""
        found: dict[str, list[int]] = {}
        for index in range(node + 1, len(self.nodes)):
            for producer, output in self.nodes[index].uses:
                if producer == node and index not in found.setdefault(output, []):
                    found[output].append(index)
        return found


def call_digest(task: str, inputs: dict[str, Any]) -> str:
    """Digest of one call, 16 hex digits: equal calls have equal digests.

    A handle says where bytes lie today, so it does not count; the content hash beside it does. Nor does the order of
    keys, which ``encode_input`` may have kept.
    """
    stable = {
        name: _without_handles(value)
        if type(value) in _CONTAINERS and not (len(value) == 1 and REF in value)
        else (_in_one_order(value) if type(value) is msgspec.Raw and _find_clients_order(value) else value)
        for name, value in inputs.items()
    }
    return blake2b(_sorted.encode([task, stable]), digest_size=8).hexdigest()


def encode_input(value: dict[str, Any] | list[dict[str, Any]]) -> bytes:
    """The JSON of parameters or messages, in one order of keys unless models see the order that a client chose."""
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
    """``node`` with other inputs of the same meaning, for example media at new handles."""
    return msgspec.structs.replace(node, inputs=inputs)


_sorted = msgspec.json.Encoder(order="sorted")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Invocation).decode
_version = msgspec.json.Decoder(dict[str, msgspec.Raw])


_HANDLE_KEY, _ESCAPE = f'"{HANDLE}"'.encode(), b"\\u00"


def may_hold_handles(body: bytes) -> bool:
    """Return whether an input in an encoded invocation may hold a handle: words of users may look like one."""
    return _HANDLE_KEY in body or _ESCAPE in body  # keys that were written by hand may be escaped


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
    """Documents also come from hands: one that cannot run must not take a place in an executor."""
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
        raise _protocol_error(f"invocation {invocation.id}: outputs {invocation.outputs} name nodes that are not there")
    if len(invocation.attempts) not in (0, count):
        raise _protocol_error(f"invocation {invocation.id}: attempts must be empty, or one for each node")
    for index, node in enumerate(invocation.nodes):
        if not all(0 <= source < index for source, _ in node.uses):
            raise _protocol_error(
                f"invocation {invocation.id}: node {index} uses {node.uses}; only earlier nodes exist"
            )


#: Invocations without their ids and inputs that were found to be right: those of one route are all alike.
_checked_shapes: set[object] = set()
_MAX_CHECKED_SHAPES = 1024

#: Characters of a refusal. What it quotes may be as long as the document, and it travels as a message itself.
_MAX_REFUSAL_CHARS = 400


def _protocol_error(text: str) -> ProtocolError:
    return ProtocolError(text if len(text) <= _MAX_REFUSAL_CHARS else f"{text[:_MAX_REFUSAL_CHARS]}…")


def verify_uses(nodes: Sequence[GraphNode]) -> None:
    """Raise ``ProtocolError`` unless each node declares just the references among its inputs, to earlier nodes.

    For graphs that come from hands or apps: an executor trusts ``uses``.
    """
    for index, node in enumerate(nodes):
        try:
            found = {reference for value in node.inputs.values() for reference in find_refs(value)}
            known = all(type(source) is int and 0 <= source < index for source, _ in found)
        except (TypeError, ValueError):
            found, known = set(), False
        if not known or found != set(node.uses):
            raise ProtocolError(
                f"node {index} ({node.task}) must refer to outputs of earlier nodes as [node, output], and list these "
                f"references in `uses`, which says {list(node.uses)}"
            )


#: Printable ASCII but blank, ``*`` and ``>``: anything else would end a subject or widen it.
_ADDRESS = re.compile(r"[!-)+-=?-~]+")


def is_addressable(name: str) -> bool:
    """Return whether ``name`` may stand in a subject of the bus."""
    return _ADDRESS.fullmatch(name) is not None


#: What bytes from outside raise: other JSON than was promised, text that is no UTF-8, depth without end.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def explain_unreadable(body: bytes, error: Exception) -> str:
    """Return the reason why ``body`` cannot be read: a foreign version is named before its unknown fields."""
    try:
        version = _version.decode(body).get("v")
    except UNREADABLE:
        return str(error)
    if version is None:
        return f"it says no version ({error})"
    if bytes(version) != str(WIRE_VERSION).encode():
        return f"it says version {bytes(version).decode(errors='replace')[:20]}"
    return str(error)
