"""Every small message on the bus: fields only, tagged, frozen, unknown fields forbidden.

Messages for one receiver that are ready in the same turn of the event loop travel as one ``frame``,
``{"v": 1, "msgs": [...]}``: one publish, one delivery.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from omnibus.errors import ProblemDetails, ProtocolError
from omnibus.graph import UNREADABLE, WIRE_VERSION, explain_unreadable, is_addressable
from omnibus.tensors.handle import Handle, InlineTensor

#: Header of an invocation where there are tenants: the weight, a space, and the name of its tenant. Executors share
#: their work out by it; those of earlier builds do not read it.
TENANT_HEADER = "Omnibus-Tenant"


class BusMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="t"):
    """Base of the tagged unions below; ``t`` is the tag."""


class Chunk(BusMessage, frozen=True, tag="chunk"):
    """One piece of an output. ``seq`` counts from 0 without gaps; ``last`` closes the output.

    ``rows`` are the rows [from, to) of the handle's tensor that this chunk adds. ``inline`` is what the chunk adds
    itself, in place of a handle, for a reader on another node. ``empty`` marks a closing chunk that carries no value of
    its own. ``cuts`` are the characters of each piece that ``data["text"]`` was joined of; empty for a single one.
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
    """The executor holds the invocation and works on it."""

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

    ``source`` is the graph node whose ``output`` it was; -1 with no output: an input of the request, from the
    gateway's node. ``seconds`` is how long the reader waited. Readers of one node share a pull, and each has its bytes.
    """

    source: int
    output: str
    from_node: str
    to_node: str
    nbytes: int
    seconds: float


class Hop(BusMessage, frozen=True, tag="done"):
    """A node is finished. Times are Unix seconds: taken, inputs complete, first output, end.

    ``began`` is when its engine began to compute, 0 from one that does not tell. ``arrived`` is when the first of
    each of ``Node.uses`` came, ``nbytes`` the size of the tensors that it put into the arena, ``pulls`` what it read
    from other nodes. ``computed`` are the seconds of its engine that fall to it; a batch is divided among its members.
    ``joules`` are those of its device for them, -1 where no meter was read.
    It travels with the node's last output, so a consumer passes it on with its own.

    One with the attempt ``~attempt``, which is negative, is of a node that failed or was stopped: it goes to the
    gateway alone and says what was computed until then. Gateways of earlier builds take it for one of no attempt.
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
    """The invocation is over: every holder stops and releases. ``attempt`` and older ones end.

    Published for all to see on ``omnibus.end.<invocation>``, and sent to the executors that may still hold
    something, so that a cluster is not woken for each request. With ``nodes`` only these end there, and others of
    the same invocation go on.
    """

    inv: str
    status: str  # done | cancelled | expired | failed | moved
    attempt: int = 0
    v: int = WIRE_VERSION
    nodes: tuple[int, ...] = ()


class BatchCounts(msgspec.Struct, frozen=True, array_like=True):
    """Batches of a component since its start: ``passes`` over inputs or prompts with so many ``tokens`` together, and
    ``steps`` with so many ``rows``, one for each sequence of a step. All 0: its engine does not say."""

    passes: int = 0
    tokens: int = 0
    steps: int = 0
    rows: int = 0


#: The parameter of calls that only executors take which keep prompts: others would compute for nobody.
PREFILL_ONLY = "prefill_only"


class ExecutorStatus(msgspec.Struct, frozen=True):
    """Status of an executor, sent at start, on census and as a heartbeat."""

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


class GatewayStatus(msgspec.Struct, frozen=True):
    """Plan that a gateway follows, sent when it changes, on census, and at the gateway's end."""

    id: str
    epoch: int
    created: float  # of the plan, in Unix seconds
    state: str = "ready"  # ready | gone
    v: int = WIRE_VERSION
    node: str = ""  # whose sidecar it uses


class NodeStatus(msgspec.Struct, frozen=True):
    """Status of a node's sidecar, where nodes pull from each other; sent at start, on census and as a heartbeat.

    ``unreachable`` are nodes from which it could not pull lately. ``pulled`` is how many bytes it has pulled from each
    node since its start, and ``seconds`` how long that took.
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
    """Requests of one type at one gateway since its last word: how many came, ended well, and ended otherwise.

    ``quantities`` are sums of ``omnibus.profile.QUANTITIES`` over those that ended well; ``first`` and ``total``
    sums of the seconds until their first output and until their end. ``refused`` had no room here and did not come:
    one that every executor turns away after it was counted is taken back, so that ``came`` may be negative.
    ``estimated`` are sums of quantities as they were estimated on arrival, over those that came or were refused, and
    ``estimated_done`` the same over those that ended well: both together say what is on its way before it has ended.
    ``waiting`` is how many of those that came wait at the gateway for room, now. ``figures`` count those that ended
    well by figure (``omnibus.cluster.latency_histogram.FIGURES``) and bucket. Where the model has goals, ``met`` ended
    within all of them, and ``missed`` did not, or were refused, or failed.
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
    """Load of a gateway in the last ``seconds``, by model and request type (empty: refused before it was known).

    Sent while there is something to report; after that once with no models and nothing in flight, then no more.
    """

    gateway: str
    epoch: int
    seconds: float
    inflight: int
    models: dict[str, dict[str, LoadCounts]] = {}
    v: int = WIRE_VERSION


class ModelGrowth(msgspec.Struct, frozen=True):
    """Growth that is left: ``factor`` times as much of a model can run, ``seconds`` after it is needed."""

    factor: float
    seconds: float


class PlanEvent(msgspec.Struct, frozen=True):
    """A plan epoch is current. ``growth`` names the models to which the planner can add executors; it is said again
    every few seconds while there are any."""

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
    """Raise ``ProtocolError`` for a message that fits into no frame: that is a defect, bulk goes by handle."""
    if len(message) + FRAME_OVERHEAD_BYTES > limit:
        raise ProtocolError(f"a message of {len(message)} bytes is over the bus limit of {limit}: send it by handle")


def join_frames(messages: list[bytes], limit: int) -> Iterator[bytes]:
    """Join encoded messages into frames of at most ``limit`` bytes each. Raises as ``check_message_size`` does."""
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


def decode_message(decode: Any, body: bytes, what: str) -> Any:
    """The message in ``body`` by a decoder; raises ``ProtocolError``, which calls it ``what``."""
    try:
        message = decode(body)
    except UNREADABLE as error:
        raise ProtocolError(
            f"not a {what} of wire version {WIRE_VERSION}: {explain_unreadable(body, error)}"
        ) from error
    if message.v != WIRE_VERSION:
        raise ProtocolError(f"{what} of wire version {message.v}, this build reads {WIRE_VERSION}: update one side")
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
        raise ProtocolError(f"executor {status.id[:80]!r} cannot be addressed: no blanks, no wildcards in ids")
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
    """A handle from plain JSON values; raises ``ProtocolError``."""
    try:
        return msgspec.convert(value, Handle).validate()
    except msgspec.ValidationError as error:
        raise ProtocolError(f"not a handle: {error}") from error
