"""Timeline of one invocation, from its own record: who worked when, what waited for what, what went wrong.

``of(invocation, ended)`` gives a ``Waterfall``. As JSON it is what ``omnibus show ID --json`` prints and what
``GET /v1/invocations/{id}`` answers; ``GET /v1/invocations`` answers a ``SummaryPage``. Fields may be added;
none changes its meaning. Sizes and digests are in it, never what users wrote or got.

All times but ``created`` are seconds since ``created``, and null (``None``) when they are not known. Clocks of
several machines may differ: what would run backwards is shown as taking no time.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from omnibus.bus.messages import Hop
from omnibus.errors import ProblemDetails
from omnibus.graph import DIGEST, HANDLE, GraphNode, Invocation, find_refs
from omnibus.pricing import RequestUsage
from omnibus.recording.records import EndRecord

#: Of the document.
VERSION = 1
#: The gateway, in the place of a node of the graph.
GATEWAY = -1

#: Phases of a node, in order. A phase that took no time, or that nobody told the times of, is left out.
#: ``dispatch`` the gateway sent it, the executor has not taken it; ``inputs`` it waits for what other nodes make;
#: ``queue`` it waits for a place in the engine's batch; ``run`` it works towards its first output; ``output`` from
#: there to its end. An engine that does not tell when it begins has its ``queue`` within ``run``.
PHASES = ("dispatch", "inputs", "queue", "run", "output")


class Phase(msgspec.Struct, frozen=True):
    """A stretch of a node's bar."""

    name: str
    start: float
    end: float


class Input(msgspec.Struct, frozen=True):
    """One input of a node. ``kind``: ``text``, ``number``, ``json``, ``media``, ``tensor``, or ``nodes`` for outputs
    of other nodes (see ``Waterfall.edges``). ``nbytes`` is 0 for ``nodes``; ``sha256`` is empty where none is known.
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
    """An output of ``source`` that ``target`` reads. ``local``: both ran in one executor, so that nothing travelled.

    ``sent`` is the source's first output, ``arrived`` when the target's executor had the first of it, and
    ``seconds`` what lies between.
    """

    source: int
    output: str
    target: int
    local: bool
    sent: float | None = None
    arrived: float | None = None
    seconds: float | None = None


class Pull(msgspec.Struct, frozen=True):
    """Bytes that crossed from one node of the installation to another, for a reader there.

    ``source`` and ``output`` name the edge with ``target``; a ``source`` of -1 is an input of the request, which lies
    on the gateway's node, and a ``target`` of -1 the gateway. ``seconds`` is how long the reader waited for the pull.
    """

    source: int
    output: str
    target: int
    from_node: str
    to_node: str
    nbytes: int
    seconds: float


class Move(msgspec.Struct, frozen=True):
    """Attempt ``attempt`` was given up ``at`` then, and the invocation went to another route.

    ``reason``: ``busy``, ``silent``, ``gone`` (its executor died), ``unavailable`` (its engine died), ``gap``,
    ``retry`` or ``bus``. ``executor`` is who was lost, empty when nobody was. ``again`` are the nodes that began again,
    empty when all did; ``resumed`` says by ``<node>.<output>`` behind how many tokens, rows or steps.
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
    """Summaries, newest first. ``next`` is what ``before`` is to be for the page after it, null at the end."""

    data: tuple[Summary, ...]
    next: int | None = None
    object: str = "list"


class Waterfall(msgspec.Struct, frozen=True):
    """All about one invocation."""

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


# From a record


_MOVE_FIELDS = ("reason", "executor", "message", "again", "resumed")


def build_waterfall(invocation: Invocation, ended: EndRecord | None) -> Waterfall:
    """The waterfall of an invocation that was recorded as ``invocation``; ``ended`` is None while it runs."""
    start = invocation.created
    moves = tuple(
        Move(each.attempt, _seconds_after(each.at, start), *(getattr(each, name) for name in _MOVE_FIELDS))
        for each in (ended.moves if ended is not None else ())
    )
    rows = tuple(_build_rows(invocation, ended, moves))
    return Waterfall(
        summary=build_summary(invocation, ended),
        seed=invocation.seed,
        step=invocation.step,
        segments=ended.segments if ended is not None else (),
        allowed=max(0.0, invocation.deadline - start),
        nodes=rows,
        edges=tuple(_build_edges(invocation, ended, rows)),
        moves=moves,
        pulls=tuple(_build_pulls(ended)) if ended is not None else (),
        outcome=_build_outcome(ended) if ended is not None else None,
        problem=ended.problem if ended is not None else None,
        usage=ended.usage if ended is not None else None,
        called=ended.called if ended is not None and ended.called is not UNSET else (),
        caller=ended.caller if ended is not None and ended.caller is not UNSET else "",
        record="digest" if any(_is_digest(node) for node in invocation.nodes) else "full",
    )


def build_summary(invocation: Invocation, ended: EndRecord | None) -> Summary:
    """An invocation in brief."""
    problem = ended.problem if ended is not None else None
    return Summary(
        id=invocation.id,
        app=invocation.app,
        model=invocation.model,
        type=invocation.type,
        path=(ended.path if ended is not None else "") or invocation.path,
        epoch=invocation.epoch,
        status=ended.status if ended is not None else "running",
        created=invocation.created,
        seconds=_seconds_after(ended.finished, invocation.created) if ended is not None else None,
        first=_optional_seconds(ended.first, invocation.created) if ended is not None else None,
        attempts=ended.attempts if ended is not None else 1 + invocation.attempt,
        replay_of=invocation.replay_of,
        parent=invocation.parent,
        code=problem.code if problem is not None else "",
    )


def _seconds_after(moment: float, start: float) -> float:
    return max(0.0, round(moment - start, 6))


def _optional_seconds(moment: float, start: float) -> float | None:
    """0 stands for a moment that never came."""
    return _seconds_after(moment, start) if moment else None


def _build_rows(invocation: Invocation, ended: EndRecord | None, moves: Sequence[Move]) -> Iterator[Row]:
    route = (ended.route if ended is not None else ()) or invocation.route
    options = (ended.options if ended is not None else ()) or invocation.options
    hops = {hop.node: hop for hop in ended.hops} if ended is not None else {}
    for index, node in enumerate(invocation.nodes):
        row = Row(
            node=index,
            component=node.component,
            task=node.task,
            model=node.model or invocation.model,
            option=options[index],
            executor=route[index],
            state=_node_state(index, route[index], ended),
            inputs=tuple(_describe_input(name, value) for name, value in node.inputs.items()),
        )
        hop = hops.get(index)
        sent = max((move.at for move in moves if not move.again or index in move.again), default=0.0)
        yield _add_times(row, hop, invocation.created, sent) if hop is not None else row


def _node_state(node: int, executor: str, ended: EndRecord | None) -> str:
    """Of a node that has not told its times; see ``_add_times`` for one that has."""
    if ended is None:
        return "open"
    if ended.node >= 0:
        return "failed" if ended.node == node else "stopped"
    lost = ended.problem is not None and executor == ended.problem.executor
    return "failed" if lost else "stopped"


def _add_times(row: Row, hop: Hop, start: float, sent: float) -> Row:
    taken, ready, began, first, end = (
        _optional_seconds(each, start) for each in (hop.taken, hop.ready, hop.began, hop.first, hop.end)
    )
    return msgspec.structs.replace(
        row,
        state="done",
        taken=taken,
        ready=ready,
        began=began,
        first=first,
        end=end,
        phases=tuple(_build_phases((sent, taken, ready, began, first, end))),
        nbytes=hop.nbytes,
    )


def _build_phases(moments: tuple[float | None, ...]) -> Iterator[Phase]:
    """Stretches between the moments, which a clock may have put out of order; what is not told ends nothing."""
    last = moments[-1]
    at = moments[0] or 0.0
    for name, moment in zip(PHASES, moments[1:], strict=True):
        if moment is None or last is None:
            continue
        until = min(max(at, moment), max(at, last))
        if until > at:
            yield Phase(name, at, until)
        at = until


def _build_edges(invocation: Invocation, ended: EndRecord | None, rows: tuple[Row, ...]) -> Iterator[Edge]:
    hops = {hop.node: hop for hop in ended.hops} if ended is not None else {}
    for target, node in enumerate(invocation.nodes):
        hop = hops.get(target)
        for place, (source, output) in enumerate(node.uses):
            sent = rows[source].first
            arrival = hop.arrived[place] if hop is not None and place < len(hop.arrived) else 0.0
            arrived = _optional_seconds(arrival, invocation.created)
            took = round(max(0.0, arrived - sent), 6) if arrived is not None and sent is not None else None
            yield Edge(source, output, target, rows[source].executor == rows[target].executor, sent, arrived, took)


def _build_pulls(ended: EndRecord) -> Iterator[Pull]:
    readers = [*((hop.node, hop.pulls) for hop in ended.hops), (GATEWAY, ended.pulls)]
    for target, costs in readers:
        for cost in costs:
            yield Pull(cost.source, cost.output, target, cost.from_node, cost.to_node, cost.nbytes, cost.seconds)


def _build_outcome(ended: EndRecord) -> WaterfallOutcome:
    answer = ended.answer
    return WaterfallOutcome(
        characters=answer.characters or len(answer.text),
        text_sha256=answer.text_sha256,
        audio_seconds=answer.audio_seconds,
        audio_sha256=answer.audio_sha256,
        finish_reason=answer.finish_reason,
        usage=answer.usage,
        outputs=ended.outputs,
    )


# Inputs, by their size


def _describe_input(name: str, value: Any) -> Input:
    if any(find_refs(value)):
        return Input(name, "nodes")
    if isinstance(value, str):
        return Input(name, "text", len(value.encode()))
    if value is None or isinstance(value, bool | int | float):
        return Input(name, "number", len(msgspec.json.encode(value)))
    if isinstance(value, dict) and (HANDLE in value or "sha256" in value or DIGEST in value):
        return _describe_bulk_input(name, value)
    return Input(name, "json", len(msgspec.json.encode(value)))


def _describe_bulk_input(name: str, value: dict[str, Any]) -> Input:
    """Something that is kept elsewhere, or of which only the digest is."""
    kind = "tensor" if "dtype" in value else "media" if "sha256" in value else "json"
    size = value.get("nbytes")
    digest = str(value.get(DIGEST) or value.get("sha256", ""))
    return Input(name, kind, size if isinstance(size, int) else 0, digest, str(value.get("mime", "")))


def _is_digest(node: GraphNode) -> bool:
    return any(isinstance(value, dict) and DIGEST in value for value in node.inputs.values())
