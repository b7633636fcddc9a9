"""Timeline of one invocation from its record: work, waits and failures.

``omnibus show ID --json`` and ``GET /v1/invocations/{id}`` return a ``Waterfall`` as JSON; ``GET /v1/invocations``
returns a ``SummaryPage``. ``waterfall_builder`` makes both from records. Fields may be added, but never change their
meaning. It contains sizes and digests, never users' content.

All times except ``created`` are seconds since ``created``, and null (``None``) if unknown. Clocks of several machines
may differ: negative durations are shown as 0.
"""

import msgspec

from omnibus.errors import ProblemDetails
from omnibus.pricing import RequestUsage

#: Version of the document.
VERSION = 1
#: The gateway, in place of a node of the graph.
GATEWAY = -1

#: Phases of a node, in order. A phase without a duration, or without reported times, is omitted. ``dispatch``: the
#: gateway sent it, and the executor has not taken it. ``inputs``: it waits for outputs of other nodes. ``queue``: it
#: waits for a place in the engine's batch. ``run``: it works towards its first output. ``output``: from there to its
#: end. An engine that does not report its start has its ``queue`` within ``run``.
PHASES = ("dispatch", "inputs", "queue", "run", "output")


class Phase(msgspec.Struct, frozen=True):
    """A section of a node's bar."""

    name: str
    start: float
    end: float


class Input(msgspec.Struct, frozen=True):
    """One input of a node.

    ``kind`` is ``text``, ``number``, ``json``, ``media``, ``tensor``, or ``nodes`` for outputs of other nodes (see
    ``Waterfall.edges``). ``nbytes`` is 0 for ``nodes``; ``sha256`` is empty if unknown.
    """

    name: str
    kind: str
    nbytes: int = 0
    sha256: str = ""
    mime: str = ""


class Row(msgspec.Struct, frozen=True):
    """One node. ``state``: ``done``, ``failed``, ``stopped`` (the request ended before it did) or ``open``."""

    node: int
    component: str
    task: str
    model: str
    option: str
    executor: str
    state: str
    taken: float | None = None
    ready: float | None = None
    began: float | None = None
    first: float | None = None
    end: float | None = None
    phases: tuple[Phase, ...] = ()
    #: Bytes of tensors that it sent to other executors and to the gateway.
    nbytes: int = 0
    inputs: tuple[Input, ...] = ()


class Edge(msgspec.Struct, frozen=True):
    """An output of ``source`` that ``target`` reads. ``local``: both ran in one executor, without a transfer.

    ``sent`` is the source's first output, ``arrived`` the arrival of its first part at the target's executor, and
    ``seconds`` the time in between.
    """

    source: int
    output: str
    target: int
    local: bool
    sent: float | None = None
    arrived: float | None = None
    seconds: float | None = None


class Pull(msgspec.Struct, frozen=True):
    """Bytes transferred between nodes of the installation, for a reader.

    ``source`` and ``output`` identify the edge with ``target``. A ``source`` of -1 is an input of the request, which is
    on the gateway's node. A ``target`` of -1 is the gateway. ``seconds`` is the wait for the pull.
    """

    source: int
    output: str
    target: int
    from_node: str
    to_node: str
    nbytes: int
    seconds: float


class Move(msgspec.Struct, frozen=True):
    """Attempt ``attempt`` was stopped ``at`` then; the invocation took another route.

    ``reason``: ``busy``, ``silent``, ``gone`` (its executor died), ``unavailable`` (its engine died), ``gap``,
    ``retry`` or ``bus``. ``executor`` is the lost one, empty if none was lost. ``again`` are the nodes that restarted,
    empty if all did. ``resumed`` contains, by ``<node>.<output>``, the number of tokens, rows or steps after which they
    continued.
    """

    attempt: int
    at: float
    reason: str
    executor: str = ""
    message: str = ""
    again: tuple[int, ...] = ()
    resumed: dict[str, int] = {}


class WaterfallOutcome(msgspec.Struct, frozen=True):
    """Results that the client received: sizes and digests."""

    characters: int = 0
    text_sha256: str = ""
    audio_seconds: float = 0.0
    audio_sha256: str = ""
    finish_reason: str = ""
    usage: dict[str, int] = {}
    #: Digests of results that an app read, by ``<node>.<output>``.
    outputs: dict[str, str] = {}


class Summary(msgspec.Struct, frozen=True):
    """One line of a list. ``status``: ``running``, ``done``, ``failed``, ``cancelled`` or ``expired``."""

    id: str
    app: str
    model: str
    type: str
    path: str
    epoch: int
    status: str
    created: float  # Unix seconds
    seconds: float | None = None
    #: When the client got the first output.
    first: float | None = None
    attempts: int = 1
    replay_of: str = ""
    parent: str = ""
    #: ``Problem.code`` of one that failed.
    code: str = ""


class SummaryPage(msgspec.Struct, frozen=True):
    """Summaries, newest first. ``next`` is the ``before`` of the next page, null at the end."""

    data: tuple[Summary, ...]
    next: int | None = None
    object: str = "list"


class Waterfall(msgspec.Struct, frozen=True):
    """All data of one invocation."""

    summary: Summary
    seed: int
    step: int
    #: Ids of the later segments of the same request, in order.
    segments: tuple[str, ...]
    #: Seconds that it might have taken in all.
    allowed: float
    nodes: tuple[Row, ...]
    edges: tuple[Edge, ...]
    moves: tuple[Move, ...] = ()
    outcome: WaterfallOutcome | None = None
    problem: ProblemDetails | None = None
    #: What crossed between nodes, by target; empty on one node.
    pulls: tuple[Pull, ...] = ()
    #: ``full``: inputs are kept and it can be replayed. ``digest``: sizes and digests of them only.
    record: str = "full"
    #: GPU-seconds by stage, and money by the plan's prices.
    usage: RequestUsage | None = None
    #: Ids of the requests that its model called for, as the images of a response, and of the one that called for it.
    called: tuple[str, ...] = ()
    caller: str = ""
    v: int = VERSION
