"""Timeline of one invocation from its record: work, waits and failures.

``omnibus show ID --json`` and ``GET /v1/invocations/{id}`` return a ``Waterfall`` as JSON; ``GET /v1/invocations``
returns a ``SummaryPage``. ``waterfall_builder`` makes both from records. Fields may be added, but never change their
meaning. It contains sizes and digests, never users' content.

All times except ``created`` are seconds since ``created``, and null (``None``) if unknown. Clocks of several machines
may differ: negative durations are shown as 0.

Builder of an invocation's waterfall from its record, see ``omnibus.recording.waterfall``.
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


_MOVE_FIELDS = ("reason", "executor", "message", "again", "resumed")


def build_waterfall(invocation: Invocation, end_record: EndRecord | None) -> Waterfall:
    """Return the waterfall of the recorded ``invocation``; ``end_record`` is None while it runs."""
    start = invocation.created
    moves = tuple(
        Move(each.attempt, _seconds_after(each.at, start), *(getattr(each, name) for name in _MOVE_FIELDS))
        for each in (end_record.moves if end_record is not None else ())
    )
    rows = tuple(_build_rows(invocation, end_record, moves))
    return Waterfall(
        summary=build_summary(invocation, end_record),
        seed=invocation.seed,
        step=invocation.step,
        segments=end_record.segments if end_record is not None else (),
        allowed=max(0.0, invocation.deadline - start),
        nodes=rows,
        edges=tuple(_build_edges(invocation, end_record, rows)),
        moves=moves,
        pulls=tuple(_build_pulls(end_record)) if end_record is not None else (),
        outcome=_build_outcome(end_record) if end_record is not None else None,
        problem=end_record.problem if end_record is not None else None,
        usage=end_record.usage if end_record is not None else None,
        called=end_record.called if end_record is not None and end_record.called is not UNSET else (),
        caller=end_record.caller if end_record is not None and end_record.caller is not UNSET else "",
        record="digest" if any(_is_digest(node) for node in invocation.nodes) else "full",
    )


def build_summary(invocation: Invocation, record: EndRecord | None) -> Summary:
    """Return the summary of an invocation."""
    problem = record.problem if record is not None else None
    return Summary(
        id=invocation.id,
        app=invocation.app,
        model=invocation.model,
        type=invocation.type,
        path=(record.path if record is not None else "") or invocation.path,
        epoch=invocation.epoch,
        status=record.status if record is not None else "running",
        created=invocation.created,
        seconds=_seconds_after(record.finished, invocation.created) if record is not None else None,
        first=_optional_seconds(record.first, invocation.created) if record is not None else None,
        attempts=record.attempts if record is not None else 1 + invocation.attempt,
        replay_of=invocation.replay_of,
        parent=invocation.parent,
        code=problem.code if problem is not None else "",
    )


def _seconds_after(moment: float, start: float) -> float:
    return max(0.0, round(moment - start, 6))


def _optional_seconds(moment: float, start: float) -> float | None:
    """Return the seconds after ``start``; None for 0, which means that the moment is missing."""
    return _seconds_after(moment, start) if moment else None


def _build_rows(invocation: Invocation, record: EndRecord | None, moves: Sequence[Move]) -> Iterator[Row]:
    route = (record.route if record is not None else ()) or invocation.route
    options = (record.options if record is not None else ()) or invocation.options
    hops = {hop.node: hop for hop in record.hops} if record is not None else {}
    for index, node in enumerate(invocation.nodes):
        row = Row(
            node=index,
            component=node.component,
            task=node.task,
            model=node.model or invocation.model,
            option=options[index],
            executor=route[index],
            state=_node_state(index, route[index], record),
            inputs=tuple(_describe_input(name, value) for name, value in node.inputs.items()),
        )
        hop = hops.get(index)
        dispatch_time = max((move.at for move in moves if not move.again or index in move.again), default=0.0)
        yield _add_times(row, hop, invocation.created, dispatch_time) if hop is not None else row


def _node_state(node: int, executor: str, record: EndRecord | None) -> str:
    """Return the state of a node without reported times; see ``_add_times`` for others."""
    if record is None:
        return "open"
    if record.node >= 0:
        return "failed" if record.node == node else "stopped"
    was_lost = record.problem is not None and executor == record.problem.executor
    return "failed" if was_lost else "stopped"


def _add_times(row: Row, hop: Hop, start: float, dispatch_time: float) -> Row:
    accepted_at, ready, began, first, end = (
        _optional_seconds(each, start) for each in (hop.taken, hop.ready, hop.began, hop.first, hop.end)
    )
    return msgspec.structs.replace(
        row,
        state="done",
        taken=accepted_at,
        ready=ready,
        began=began,
        first=first,
        end=end,
        phases=tuple(_build_phases((dispatch_time, accepted_at, ready, began, first, end))),
        nbytes=hop.nbytes,
    )


def _build_phases(moments: tuple[float | None, ...]) -> Iterator[Phase]:
    """Yield the phases between the moments, which may be out of order; missing ones end no phase."""
    last = moments[-1]
    at = moments[0] or 0.0
    for name, moment in zip(PHASES, moments[1:], strict=True):
        if moment is None or last is None:
            continue
        until = min(max(at, moment), max(at, last))
        if until > at:
            yield Phase(name, at, until)
        at = until


def _build_edges(invocation: Invocation, record: EndRecord | None, rows: tuple[Row, ...]) -> Iterator[Edge]:
    hops = {hop.node: hop for hop in record.hops} if record is not None else {}
    for target, node in enumerate(invocation.nodes):
        hop = hops.get(target)
        for place, (source, output) in enumerate(node.uses):
            sent_at = rows[source].first
            arrival = hop.arrived[place] if hop is not None and place < len(hop.arrived) else 0.0
            arrived_at = _optional_seconds(arrival, invocation.created)
            took = round(max(0.0, arrived_at - sent_at), 6) if arrived_at is not None and sent_at is not None else None
            yield Edge(
                source, output, target, rows[source].executor == rows[target].executor, sent_at, arrived_at, took
            )


def _build_pulls(record: EndRecord) -> Iterator[Pull]:
    readers = [*((hop.node, hop.pulls) for hop in record.hops), (GATEWAY, record.pulls)]
    for target, costs in readers:
        for cost in costs:
            yield Pull(cost.source, cost.output, target, cost.from_node, cost.to_node, cost.nbytes, cost.seconds)


def _build_outcome(record: EndRecord) -> WaterfallOutcome:
    answer = record.answer
    return WaterfallOutcome(
        characters=answer.characters or len(answer.text),
        text_sha256=answer.text_sha256,
        audio_seconds=answer.audio_seconds,
        audio_sha256=answer.audio_sha256,
        finish_reason=answer.finish_reason,
        usage=answer.usage,
        outputs=record.outputs,
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
    """Describe an input that is stored elsewhere or only a digest."""
    kind = "tensor" if "dtype" in value else "media" if "sha256" in value else "json"
    size = value.get("nbytes")
    digest = str(value.get(DIGEST) or value.get("sha256", ""))
    return Input(name, kind, size if isinstance(size, int) else 0, digest, str(value.get("mime", "")))


def _is_digest(node: GraphNode) -> bool:
    return any(isinstance(value, dict) and DIGEST in value for value in node.inputs.values())
