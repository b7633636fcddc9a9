"""Options of a replay in addition to the recorded invocation: headers of the message.

``Omnibus-From``   the number of a node, or a component. Only this node and later ones run, and their inputs from
                   earlier nodes are those of the record. ``SEGMENT:STAGE`` starts in a later segment of a request with
                   several. A component alone is searched in all of them.
``Omnibus-Path``   a path's name, as in the HTTP header ``x-omnibus-path``, by default the recorded path.
``Omnibus-Route``  ``recorded`` for exactly the executors in the document, or one for each node, separated by commas,
                   empty for any.
``Omnibus-Digests``  any value: the run is not recorded, and the answer has the digest of each output.

A request whose graph grew is replayed as a whole, segment by segment. Each segment is recorded with the results of
earlier ones among its inputs, so that it can be replayed alone. The record contains all that tools and the app's own
code made of results, so a replay calls no external service.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from omnibus.errors import BadRequest, NotFound, StageUnavailable
from omnibus.graph import GraphNode, Invocation, is_addressable
from omnibus.recording.records import EndRecord, KeptOutput, Record
from omnibus_gateway.request.record import Records
from omnibus_gateway.routing.router import ExecutorRoute, InvocationTicket, Router

#: Tokens that a node counts for: a record does not contain the expected number.
DEFAULT_NODE_TOKENS = 256

FROM, PATH, ROUTE, DIGESTS = "omnibus-from", "omnibus-path", "omnibus-route", "omnibus-digests"
RECORDED = "recorded"
_NUMBER = re.compile(r"[0-9]{1,6}")


class ReplayOptions(NamedTuple):
    """Options of a replay.

    Nodes before ``start`` do not run. ``executors`` are by node, empty for any; an empty tuple means any for all. With
    ``digests`` only the digests of its outputs are returned.
    """

    start: int = 0
    path: str = ""
    executors: tuple[str, ...] = ()
    digests: bool = False


def parse_digests_only(headers: Mapping[str, str], recorded_invocation: Invocation) -> ReplayOptions | None:
    """Return the options of a run for its digests; None for a replay. Raises as ``parse_replay_options``."""
    if not any(name.lower() == DIGESTS and value.strip() for name, value in headers.items()):
        return None
    return parse_replay_options(headers, recorded_invocation)


def parse_replay_options(headers: Mapping[str, str] | None, recorded_invocation: Invocation) -> ReplayOptions:
    """Read the headers, whose names may be in any case. Raises ``BadRequest`` that names the header."""
    lowered_headers = {name.lower(): value.strip() for name, value in (headers or {}).items()}
    unknown = sorted(
        name for name in lowered_headers if name.startswith("omnibus-") and name not in (FROM, PATH, ROUTE, DIGESTS)
    )
    if unknown:
        raise BadRequest(f"unknown header {unknown[0][:40]} of a replay; use {FROM}, {PATH} or {ROUTE}")
    start = _parse_start(lowered_headers.get(FROM, ""), recorded_invocation)
    digests = bool(lowered_headers.get(DIGESTS))
    if digests and start:
        raise BadRequest(f"{DIGESTS} needs a whole run; remove {FROM}", param=DIGESTS)
    return ReplayOptions(
        start,
        lowered_headers.get(PATH, ""),
        _parse_executors(lowered_headers.get(ROUTE, ""), recorded_invocation),
        digests,
    )


def _parse_start(text: str, recorded_invocation: Invocation) -> int:
    components = [node.component for node in recorded_invocation.nodes]
    if text in components:
        return components.index(text)
    if not text:
        return 0
    if not _NUMBER.fullmatch(text) or int(text) >= len(components):
        node_names = ", ".join(f"{index} ({component})" for index, component in enumerate(components[:40]))
        raise BadRequest(f"{FROM} names the unknown node {text[:40]!r}; use one of {node_names}", param=FROM)
    return int(text)


def _parse_executors(text: str, invocation: Invocation) -> tuple[str, ...]:
    if not text:
        return ()
    if text == RECORDED:
        return invocation.route
    names = tuple(name.strip() for name in text.split(","))
    if len(names) != len(invocation.nodes) or not all(not name or is_addressable(name) for name in names):
        raise BadRequest(
            f"{ROUTE}: name an executor for each of {len(invocation.nodes)} nodes, empty for any, or send {RECORDED!r}",
            param=ROUTE,
        )
    return names


def requested_outputs(recorded_invocation: Invocation, start: int) -> tuple[tuple[int, str], ...]:
    """Return the requested outputs of the nodes that run. Raises ``BadRequest`` if there are none."""
    output_keys = tuple(key for key in recorded_invocation.outputs if key[0] >= start)
    if not output_keys:
        raise BadRequest(
            f"{FROM} must not be after all requested outputs: node {start} and later ones have none", param=FROM
        )
    return output_keys


def missing_inputs(recorded_invocation: Invocation, start: int) -> dict[tuple[int, str], list[int]]:
    """Return the outputs of nodes before ``start``, and their later readers."""
    readers: dict[tuple[int, str], list[int]] = {}
    for index in range(start, len(recorded_invocation.nodes)):
        for use in recorded_invocation.nodes[index].uses:
            if use[0] < start:
                readers.setdefault(use, []).append(index)
    return readers


def kept_outputs(recorded_invocation: Invocation, end_record: EndRecord | None, start: int) -> Iterator[KeptOutput]:
    """Yield the kept outputs of ``missing_inputs``.

    Raises ``BadRequest`` that names an output which was not kept, and the setting that keeps it.
    """
    there = {(one.node, one.output): one for one in (end_record.kept if end_record is not None else ())}
    for node, output in missing_inputs(recorded_invocation, start):
        one = there.get((node, output))
        if one is None:
            component = recorded_invocation.nodes[node].component
            raise BadRequest(
                f"{FROM} needs output {output!r} of node {node} ({component}), which was not kept: "
                "set OMNIBUS_GATEWAY_RECORD=stages for later requests, or replay from the beginning",
                param=FROM,
            )
        yield one


# Where it runs


def make_route_finder(
    router: Router,
    recorded_invocation: Invocation,
    nodes: Sequence[GraphNode],
    wish: ReplayOptions,
    ticket: InvocationTicket,
    absent: str,
) -> Callable[[frozenset[str]], ExecutorRoute]:
    """Return a function that finds a replay's route.

    The function avoids the executors passed to it. ``absent`` stands for the executors of nodes that do not run, those
    before the start.
    """
    return partial(_find_route, router, recorded_invocation, tuple(nodes), wish, ticket, absent)


def _find_route(
    router: Router,
    recorded_invocation: Invocation,
    nodes: tuple[GraphNode, ...],
    wish: ReplayOptions,
    ticket: InvocationTicket,
    absent: str,
    exclude: frozenset[str] = frozenset(),
) -> ExecutorRoute:
    start = wish.start
    if wish.executors and all(wish.executors):  # the recorded options may no longer have an executor
        base_route = ExecutorRoute(
            recorded_invocation.path,
            recorded_invocation.options,
            wish.executors,
            (float(DEFAULT_NODE_TOKENS),) * len(nodes),
        )
    else:
        base_route = _base_route(router, recorded_invocation, nodes, wish, ticket, exclude)
    executors = [absent] * start + list(base_route.executors[start:])
    for index in range(start, len(nodes)):
        executor = wish.executors[index] if wish.executors else ""
        if executor:
            executors[index] = _require_executor(router, nodes[index], executor, exclude)
    return base_route._replace(executors=tuple(executors), work=(0.0,) * start + tuple(base_route.work[start:]))


def _base_route(
    router: Router,
    recorded_invocation: Invocation,
    nodes: tuple[GraphNode, ...],
    wish: ReplayOptions,
    ticket: InvocationTicket,
    exclude: frozenset[str],
) -> ExecutorRoute:
    work = [DEFAULT_NODE_TOKENS] * len(nodes)
    if wish.path:
        several = any(node.model for node in nodes)
        assignment = router.assign(nodes, "" if several else recorded_invocation.model)
        return router.route(assignment, ticket, exclude, pinned=wish.path, work=work)
    start = wish.start
    late = router.route_by_options(
        recorded_invocation.model, nodes[start:], recorded_invocation.options[start:], exclude, work[start:]
    )
    return ExecutorRoute(
        recorded_invocation.path if start else late.path,
        recorded_invocation.options,
        ("",) * start + late.executors,
        (0.0,) * start + late.work,
    )


def _require_executor(router: Router, node: GraphNode, executor: str, exclude: frozenset[str]) -> str:
    """Return ``executor`` if it is alive and has the node's unit task."""
    member = router.members.get(executor)
    if member is None or executor in exclude:
        raise StageUnavailable(
            f"executor {executor} of the route is not available: remove {ROUTE} to use another",
            stage=node.component,
            executor=executor,
        )
    if node.task not in member.status.tasks:
        raise NotFound(f"executor {executor} has no {node.task}; it has {', '.join(member.status.tasks)}", param=ROUTE)
    return executor


#: ``SEGMENT:STAGE``, as in ``2:thinker``: the number is the suffix of the segment's id, 0 for the first.
_SEGMENT_START = re.compile(r"([0-9]{1,4}):(.*)", re.DOTALL)


class ReplaySegment(NamedTuple):
    """A graph to run, its recorded end if any, and its options."""

    recorded: Invocation
    ended: EndRecord | None
    options: ReplayOptions


async def find_segments(
    log: Records, recorded_invocation: Invocation, headers: Mapping[str, str]
) -> list[ReplaySegment]:
    """Return the segments to replay for ``recorded_invocation`` and ``headers``, in order.

    That is ``recorded_invocation`` only, unless its record lists later segments. Raises ``BadRequest``, and
    ``NotFound`` for a later segment whose record is gone.
    """
    headers = {name.lower(): value.strip() for name, value in headers.items()}
    known_record = await _find_record(log, recorded_invocation.id)
    end_record = known_record.ended if known_record is not None else None
    later = await _find_later(log, recorded_invocation, known_record)
    if not later:
        start = _split_start(headers.get(FROM, ""))
        replay_headers = {**headers, FROM: start[1]} if start[0] in ("", "0") and FROM in headers else headers
        return [
            ReplaySegment(recorded_invocation, end_record, parse_replay_options(replay_headers, recorded_invocation))
        ]
    whole = [Record(recorded_invocation, end_record), *later]
    first, stage = _find_start(headers.get(FROM, ""), [record.invocation for record in whole])
    replay_segments = []
    for index, record in enumerate(whole[first:]):
        replay_headers = headers if not index else _headers_of_later(headers)
        options = parse_replay_options({**replay_headers, FROM: "" if index else stage}, record.invocation)
        replay_segments.append(ReplaySegment(*record, options))
    return replay_segments


async def _find_record(log: Records, id: str) -> Record | None:
    try:
        return await log.find(id)
    except NotFound:  # its record has expired: the client has kept the body
        return None


async def _find_later(log: Records, original: Invocation, known_record: Record | None) -> list[Record]:
    """Return the later segments of an answered request.

    Empty unless ``original`` is its first segment, unchanged.
    """
    if (
        known_record is None
        or known_record.ended is None
        or known_record.ended.status != "done"
        or is_changed(known_record.invocation, original)
    ):
        return []
    records = []
    for id in known_record.ended.segments:
        try:
            records.append(await log.find(id))
        except NotFound as error:
            ids = ", ".join((original.id, *known_record.ended.segments))
            raise NotFound(
                f"segment {id} of {original.id} no longer has a record, so the request cannot be replayed as a whole. "
                f"Replay its segments by id: {ids}"
            ) from error
    return records


def is_changed(recorded_invocation: Invocation, now: Invocation) -> bool:
    """Return True if ``now`` is another graph, as a fork is: other segments may follow it."""
    return (recorded_invocation.nodes, recorded_invocation.outputs, recorded_invocation.seed) != (
        now.nodes,
        now.outputs,
        now.seed,
    )


def _split_start(text: str) -> tuple[str, str]:
    match = _SEGMENT_START.fullmatch(text)
    return (match[1], match[2]) if match else ("", text)


def _find_start(text: str, segments: Sequence[Invocation]) -> tuple[int, str]:
    """Return the segment's index and the stage that ``text`` names.

    A component without a segment is that of the first segment which has it.
    """
    number, stage = _split_start(text)
    numbers = ["0", *(segment.id.rpartition("_")[2] for segment in segments[1:])]
    if number:
        if number not in numbers:
            raise BadRequest(f"{FROM} names the unknown segment {number}; use one of {', '.join(numbers)}", param=FROM)
        return numbers.index(number), stage
    indexes = (at for at, segment in enumerate(segments) if any(node.component == stage for node in segment.nodes))
    return next(indexes, 0), stage


def _headers_of_later(headers: Mapping[str, str]) -> dict[str, str]:
    """Return ``headers`` for segments after the first that runs: executors are named for that one only."""
    return {name: value for name, value in headers.items() if name != ROUTE or value == RECORDED}
