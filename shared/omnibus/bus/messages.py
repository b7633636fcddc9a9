"""All small messages on the bus: tagged, frozen, without unknown fields.

Messages for one receiver that are ready in one turn of the event loop share a ``frame``, ``{"v": 1,
"msgs": [...]}``: one publish, one delivery.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from omnibus.errors import ProblemDetails, ProtocolError
from omnibus.graph import UNREADABLE, WIRE_VERSION, explain_unreadable, is_addressable
from omnibus.tensors.handle import Handle, InlineTensor

#: Header of an invocation in a system with tenants: the weight, a space, and the tenant's name. Executors share their
#: work by it; executors of earlier builds ignore it.
TENANT_HEADER = "Omnibus-Tenant"


class BusMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="t"):
    """Base of the tagged unions below; ``t`` is the tag."""


class Chunk(BusMessage, frozen=True, tag="chunk"):
    """One piece of an output. ``seq`` counts from 0 without gaps; ``last`` closes the output.

    ``rows`` are the rows [from, to) of the handle's tensor that this chunk adds. ``inline`` is this chunk's own tensor,
    in place of a handle, for a reader on another node. ``empty`` marks a closing chunk without a value. ``cuts`` are
    the numbers of characters of the pieces in ``data["text"]``; empty for a single piece.
    """

    inv: str
    node: int
    output: str
    seq: int
    attempt: int = 0
    data: dict[str, Any] = {}
    handle: Handle | None = None
    rows: tuple[int, int] | None = None
    last: bool = False
    empty: bool = False
    inline: InlineTensor | None = None
    cuts: tuple[int, ...] = ()


class Accepted(BusMessage, frozen=True, tag="accepted"):
    """The executor has accepted the invocation and works on it."""

    inv: str
    executor: str
    attempt: int = 0


class BusyReply(BusMessage, frozen=True, tag="busy"):
    """No credit left, or draining: try the next executor."""

    inv: str
    executor: str
    attempt: int = 0
    retry_after: float = 1.0


class PullCost(msgspec.Struct, frozen=True, array_like=True):
    """Cost of one reader's pulls of one output, from node to node.

    ``source`` is the graph node of the ``output``. It is -1, without an output, for an input of the request, from the
    gateway's node. ``seconds`` is the waiting time. Readers on one node share a pull, and each counts its bytes.
    """

    source: int
    output: str
    from_node: str
    to_node: str
    nbytes: int
    seconds: float


class Hop(BusMessage, frozen=True, tag="done"):
    """A node is finished. Times are Unix seconds: taken, inputs complete, first output, end.

    ``began`` is the start of its engine's computation, 0 if the engine does not report it. ``arrived`` are the arrivals
    of the first chunk of each of ``Node.uses``. ``nbytes`` is the size of the tensors that it put into the arena, and
    ``pulls`` its reads from other nodes. ``computed`` are its seconds of the engine; a batch is divided among its
    members. ``joules`` are its device's energy for them, -1 without a meter. The message is sent with the node's last
    output, and consumers forward it with their own.

    A negative attempt, ``~attempt``, marks a node that failed or was stopped. That message is sent only to the gateway,
    and contains the computation until then. Gateways of earlier builds ignore it as one of an unknown attempt.
    """

    inv: str
    node: int
    executor: str
    taken: float
    ready: float
    first: float
    end: float
    attempt: int = 0
    began: float = 0.0
    arrived: tuple[float, ...] = ()
    nbytes: int = 0
    pulls: tuple[PullCost, ...] = ()
    computed: float = 0.0
    joules: float = -1.0


class NodeFailed(BusMessage, frozen=True, tag="failed"):
    """A node failed; the invocation cannot finish on this route."""

    inv: str
    node: int
    problem: ProblemDetails
    attempt: int = 0


class InvocationEnd(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="t", tag="end"):
    """The invocation is over: executors stop its work and release its memory. ``attempt`` and older ones end.

    Published on ``omnibus.end.<invocation>``, and sent to the executors that may still work on it, so that a request
    does not wake the whole cluster. With ``nodes``, only these end there, and other nodes of the invocation continue.
    """

    inv: str
    status: str  # done | cancelled | expired | failed | moved
    attempt: int = 0
    v: int = WIRE_VERSION
    nodes: tuple[int, ...] = ()


class BatchCounts(msgspec.Struct, frozen=True, array_like=True):
    """Batches of a component since its start.

    ``passes`` over inputs or prompts had ``tokens`` in total, and ``steps`` had ``rows``, one for each sequence of a
    step. All are 0 if its engine does not report them.
    """

    passes: int = 0
    tokens: int = 0
    steps: int = 0
    rows: int = 0


#: Parameter of calls that only executors with a prompt cache accept: for others the computation would be useless.
PREFILL_ONLY = "prefill_only"


class ExecutorStatus(msgspec.Struct, frozen=True):
    """Status of an executor, sent at start, on census and as heartbeat."""

    id: str
    model: str
    option: str
    components: tuple[str, ...]
    tasks: tuple[str, ...]
    node: str
    state: str  # ready | loading | draining | gone
    credits: int
    inflight: int = 0
    steps: int = 0
    pid: int = 0
    v: int = WIRE_VERSION
    #: ``ModelPlan.origin`` of the plan that it was started by; empty when none was.
    origin: str = ""
    #: Of each of ``components``: seconds that its engine has computed since the start, and jobs that it finished.
    busy: tuple[float, ...] = ()
    done: tuple[int, ...] = ()
    #: Whether what it has computed lately costs it little when it is asked for again.
    keeps: bool = False
    #: Invocations that it works on side by side before others wait inside it; 0: it does not say.
    slots: int = 0
    #: Times that its connection to the bus came back: what it had sent before may be lost.
    reconnects: int = 0
    #: ``cpu`` or the GPU that it computes on; empty: it does not say.
    device: str = ""
    #: Bytes of main memory that its process occupies, and of GPU memory that its engines have reserved at most.
    memory_bytes: int = 0
    gpu_bytes: int = 0
    #: Of each of ``components``: what it has computed in its ``busy`` seconds.
    batches: tuple[BatchCounts, ...] = ()
    #: Cell that it belongs to, of a model in cells; empty: none.
    cell: str = ""
    #: Parameters of calls that it takes, of those that executors of some earlier build refuse.
    takes: tuple[str, ...] = ()
    #: Sampling that the checkpoints of its language model and talker recommend, see
    #: ``omnibus.checkpoints.generation_config``; None: it does not say.
    sampling: dict[str, int | float] | None = None
    #: Error that ended it before it was ready; empty: none.
    fault: str = ""
    #: Grows with each status of an id: a later one replaces an earlier one, on whatever way they come.
    beat: int = 0


class GatewayStatus(msgspec.Struct, frozen=True):
    """Plan of a gateway, sent on change, on census and finally."""

    id: str
    epoch: int
    created: float  # of the plan, in Unix seconds
    state: str = "ready"  # ready | gone
    v: int = WIRE_VERSION
    node: str = ""  # whose sidecar it uses
    digests: bool = False  # it reads digests of heartbeats, see ``omnibus.bus.relays``


class NodeStatus(msgspec.Struct, frozen=True):
    """Status of a node's sidecar, if nodes pull from each other; sent at start, on census and as a heartbeat.

    ``unreachable`` are nodes from which it could not pull lately. ``pulled`` are the bytes that it has pulled from each
    node since its start, and ``seconds`` the time for that.
    """

    node: str
    host: str
    port: int
    boot: int
    state: str = "ready"  # ready | draining | gone
    transport: str = "tcp"  # tcp | tls | ucx
    unreachable: tuple[str, ...] = ()
    pulled: dict[str, int] = {}
    seconds: dict[str, float] = {}
    used: int = 0  # bytes of its arena
    size: int = 0
    now: float = 0.0  # its clock, Unix seconds
    v: int = WIRE_VERSION


class LoadCounts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Requests of one type at one gateway since its last report: arrived, succeeded, failed.

    ``quantities`` are sums of ``omnibus.profile.QUANTITIES`` over the successful ones. ``first`` and ``total`` are sums
    of their seconds until the first output and until the end. ``refused`` had no room here and are not in ``came``. A
    request that every executor rejects after it was counted is subtracted, so ``came`` may be negative.

    ``estimated`` are sums of quantities as estimated on arrival, over those in ``came`` or ``refused``.
    ``estimated_done`` are the same over the successful ones. Their difference shows the load in flight before it has
    ended. ``waiting`` is the number of requests that now wait at the gateway for room. ``figures`` count the successful
    ones by figure (``omnibus.cluster.latency_histogram.FIGURES``) and bucket. If the model has goals, ``met`` ended
    within all of them. ``missed`` did not, or were refused, or failed.
    """

    came: int = 0
    done: int = 0
    failed: int = 0
    refused: int = 0
    quantities: dict[str, float] = {}
    first: float = 0.0
    total: float = 0.0
    estimated: dict[str, float] = {}
    estimated_done: dict[str, float] = {}
    waiting: int = 0
    figures: dict[str, dict[int, int]] = {}
    met: int = 0
    missed: int = 0


class LoadEvent(msgspec.Struct, frozen=True):
    """Load of a gateway by model and request type in ``seconds``.

    The type is empty for requests that were refused before it was known. Sent while there is load to report. Then it is
    sent once without models and requests in flight, and no more.
    """

    gateway: str
    epoch: int
    seconds: float
    inflight: int
    models: dict[str, dict[str, LoadCounts]] = {}
    v: int = WIRE_VERSION


class ModelGrowth(msgspec.Struct, frozen=True):
    """Possible growth: ``factor`` times as much of a model can run, ``seconds`` after the need."""

    factor: float
    seconds: float


class PlanEvent(msgspec.Struct, frozen=True):
    """A plan epoch is current. ``growth`` contains the models to which the planner can add executors.

    If it is not empty, it is repeated every few seconds.
    """

    epoch: int
    growth: dict[str, ModelGrowth] = {}
    v: int = WIRE_VERSION


Reply = Chunk | Accepted | BusyReply | Hop | NodeFailed
Edge = Chunk | Hop | InvocationEnd

encode = msgspec.json.Encoder().encode


class _Replies(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    v: int
    msgs: list[Reply]


class _Edges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    v: int
    msgs: list[Edge]


_replies = msgspec.json.Decoder(_Replies).decode
_edges = msgspec.json.Decoder(_Edges).decode
_end = msgspec.json.Decoder(InvocationEnd).decode
_status = msgspec.json.Decoder(ExecutorStatus).decode
_gateway = msgspec.json.Decoder(GatewayStatus).decode
_load = msgspec.json.Decoder(LoadEvent).decode
_node = msgspec.json.Decoder(NodeStatus).decode
_plan = msgspec.json.Decoder(PlanEvent).decode

_HEAD = b'{"v":%d,"msgs":[' % WIRE_VERSION
_TAIL = b"]}"
FRAME_OVERHEAD_BYTES = len(_HEAD) + len(_TAIL)


def check_message_size(message: bytes, limit: int) -> None:
    """Raise ``ProtocolError`` for a message that does not fit into a frame.

    That is a defect: large data must be sent by handle.
    """
    if len(message) + FRAME_OVERHEAD_BYTES > limit:
        raise ProtocolError(f"a message of {len(message)} bytes is over the bus limit of {limit}: send it by handle")


def join_frames(messages: list[bytes], limit: int) -> Iterator[bytes]:
    """Join encoded messages into frames of at most ``limit`` bytes. Raises as ``check_message_size`` does."""
    if messages and FRAME_OVERHEAD_BYTES + sum(map(len, messages)) + len(messages) <= limit:
        yield _HEAD + b",".join(messages) + _TAIL
        return
    batch: list[bytes] = []
    size = FRAME_OVERHEAD_BYTES
    for message in messages:
        check_message_size(message, limit)
        if batch and size + len(message) + 1 > limit:
            yield _HEAD + b",".join(batch) + _TAIL
            batch, size = [], FRAME_OVERHEAD_BYTES
        batch.append(message)
        size += len(message) + 1
    if batch:
        yield _HEAD + b",".join(batch) + _TAIL


def decode_message(decode: Any, body: bytes, kind: str) -> Any:
    """Decode the message in ``body``. Raises ``ProtocolError``, which calls it ``kind``."""
    try:
        message = decode(body)
    except UNREADABLE as error:
        raise ProtocolError(
            f"not a {kind} of wire version {WIRE_VERSION}: {explain_unreadable(body, error)}"
        ) from error
    if message.v != WIRE_VERSION:
        raise ProtocolError(f"{kind} of wire version {message.v}, this build reads {WIRE_VERSION}: update one side")
    return message


def decode_replies(body: bytes) -> list[Reply]:
    return decode_message(_replies, body, "reply frame").msgs


def decode_edges(body: bytes) -> list[Edge]:
    return decode_message(_edges, body, "edge frame").msgs


def decode_end(body: bytes) -> InvocationEnd:
    return decode_message(_end, body, "end")


def decode_status(body: bytes) -> ExecutorStatus:
    status = decode_message(_status, body, "executor status")
    if not is_addressable(status.id):
        raise ProtocolError(f"executor {status.id[:80]!r} cannot be addressed: ids must not have blanks or wildcards")
    return status


def decode_gateway(body: bytes) -> GatewayStatus:
    return decode_message(_gateway, body, "gateway status")


def decode_node(body: bytes) -> NodeStatus:
    return decode_message(_node, body, "node status")


def decode_load(body: bytes) -> LoadEvent:
    return decode_message(_load, body, "load event")


def decode_plan_event(body: bytes) -> PlanEvent:
    return decode_message(_plan, body, "plan event")


def to_handle(value: object) -> Handle:
    """Convert plain JSON values to a handle. Raises ``ProtocolError``."""
    try:
        return msgspec.convert(value, Handle).validate()
    except msgspec.ValidationError as error:
        raise ProtocolError(f"not a handle: {error}") from error
