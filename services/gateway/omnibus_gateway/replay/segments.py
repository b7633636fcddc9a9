"""Graphs of a recorded request to replay: one, or all segments of a request whose graph grew.

Each segment is recorded with the results of earlier ones among its inputs, so that it can be replayed alone. The record
contains all that tools and the app's own code made of results, so a replay calls no external service.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from omnibus.errors import BadRequest, NotFound
from omnibus.graph import Invocation
from omnibus.recording.records import EndRecord, Record
from omnibus_gateway.replay.options import FROM, RECORDED, ROUTE, ReplayOptions, parse_replay_options
from omnibus_gateway.request.record import Records

#: ``SEGMENT:STAGE``, as in ``2:thinker``: the number is the suffix of the segment's id, 0 for the first.
_SEGMENT_START = re.compile(r"([0-9]{1,4}):(.*)", re.DOTALL)


class ReplaySegment(NamedTuple):
    """A graph to run, its recorded end if any, and its options."""

    recorded: Invocation
    ended: EndRecord | None
    options: ReplayOptions


async def find_segments(log: Records, recorded: Invocation, headers: Mapping[str, str]) -> list[ReplaySegment]:
    """Return the segments to replay for ``recorded`` and ``headers``, in order.

    That is ``recorded`` only, unless its record lists later segments. Raises ``BadRequest``, and ``NotFound`` for a
    later segment whose record is gone.
    """
    headers = {name.lower(): value.strip() for name, value in headers.items()}
    known = await _find_record(log, recorded.id)
    ended = known.ended if known is not None else None
    later = await _find_later(log, recorded, known)
    if not later:
        start = _split_start(headers.get(FROM, ""))
        given = {**headers, FROM: start[1]} if start[0] in ("", "0") and FROM in headers else headers
        return [ReplaySegment(recorded, ended, parse_replay_options(given, recorded))]
    whole = [Record(recorded, ended), *later]
    first, stage = _find_start(headers.get(FROM, ""), [record.invocation for record in whole])
    found = []
    for index, record in enumerate(whole[first:]):
        given = headers if not index else _headers_of_later(headers)
        options = parse_replay_options({**given, FROM: "" if index else stage}, record.invocation)
        found.append(ReplaySegment(*record, options))
    return found


async def _find_record(log: Records, id: str) -> Record | None:
    try:
        return await log.find(id)
    except NotFound:  # its record has expired: the client has kept the body
        return None


async def _find_later(log: Records, recorded: Invocation, known: Record | None) -> list[Record]:
    """Return the later segments of an answered request.

    Empty unless ``recorded`` is its first segment, unchanged.
    """
    if known is None or known.ended is None or known.ended.status != "done" or is_changed(known.invocation, recorded):
        return []
    found = []
    for id in known.ended.segments:
        try:
            found.append(await log.find(id))
        except NotFound as error:
            ids = ", ".join((recorded.id, *known.ended.segments))
            raise NotFound(
                f"segment {id} of {recorded.id} no longer has a record, so the request cannot be replayed as a whole. "
                f"Replay its segments by id: {ids}"
            ) from error
    return found


def is_changed(recorded: Invocation, now: Invocation) -> bool:
    """Return True if ``now`` is another graph, as a fork is: other segments may follow it."""
    return (recorded.nodes, recorded.outputs, recorded.seed) != (now.nodes, now.outputs, now.seed)


def _split_start(text: str) -> tuple[str, str]:
    found = _SEGMENT_START.fullmatch(text)
    return (found[1], found[2]) if found else ("", text)


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
    named = (at for at, segment in enumerate(segments) if any(node.component == stage for node in segment.nodes))
    return next(named, 0), stage


def _headers_of_later(headers: Mapping[str, str]) -> dict[str, str]:
    """Return ``headers`` for segments after the first that runs: executors are named for that one only."""
    return {name: value for name, value in headers.items() if name != ROUTE or value == RECORDED}
