"""Graphs of a recorded request that a replay runs: one, or all segments of a request whose graph grew.

Each segment is recorded with the results of earlier ones among its inputs, so that it runs again by itself: what tools
and the app's own code made of results is in the record, and nothing asks the world again.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from omnibus.errors import BadRequest, NotFound
from omnibus.graph import Invocation
from omnibus.recording.records import EndRecord, Record
from services.gateway.replay.options import FROM, RECORDED, ROUTE, ReplayOptions, parse_replay_options
from services.gateway.request.record import Records

#: ``SEGMENT:STAGE``, as in ``2:thinker``: the number is that behind the segment's id, 0 for the first.
_SEGMENT_START = re.compile(r"([0-9]{1,4}):(.*)", re.DOTALL)


class ReplaySegment(NamedTuple):
    """A graph to run, its end in the record if there is one, and how to run it."""

    recorded: Invocation
    ended: EndRecord | None
    options: ReplayOptions


async def find_segments(log: Records, recorded: Invocation, headers: Mapping[str, str]) -> list[ReplaySegment]:
    """Find what a replay of ``recorded`` with these ``headers`` runs, in order.

    That is ``recorded`` alone, unless the record says that its request went on in later segments. Raises
    ``BadRequest``, and ``NotFound`` for a later segment whose record is gone.
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
    except NotFound:  # its retention has passed: the body came from somewhere else
        return None


async def _find_later(log: Records, recorded: Invocation, known: Record | None) -> list[Record]:
    """The later segments of a request that was answered, if ``recorded`` is its first one as it was recorded."""
    if known is None or known.ended is None or known.ended.status != "done" or is_changed(known.invocation, recorded):
        return []
    found = []
    for id in known.ended.segments:
        try:
            found.append(await log.find(id))
        except NotFound as error:
            ids = ", ".join((recorded.id, *known.ended.segments))
            raise NotFound(
                f"segment {id} of {recorded.id} has no record any more, so the request cannot run again as a whole; "
                f"replay its segments by their own ids: {ids}"
            ) from error
    return found


def is_changed(recorded: Invocation, now: Invocation) -> bool:
    """Return whether ``now`` is another graph than ``recorded``, as a fork is: other segments may follow from it."""
    return (recorded.nodes, recorded.outputs, recorded.seed) != (now.nodes, now.outputs, now.seed)


def _split_start(text: str) -> tuple[str, str]:
    found = _SEGMENT_START.fullmatch(text)
    return (found[1], found[2]) if found else ("", text)


def _find_start(text: str, segments: Sequence[Invocation]) -> tuple[int, str]:
    """The segment, by its place, and the stage in it that ``text`` names; a component without a segment is that of the
    first segment which has it."""
    number, stage = _split_start(text)
    numbers = ["0", *(segment.id.rpartition("_")[2] for segment in segments[1:])]
    if number:
        if number not in numbers:
            raise BadRequest(f"{FROM}: there is no segment {number}; there is {', '.join(numbers)}", param=FROM)
        return numbers.index(number), stage
    named = (at for at, segment in enumerate(segments) if any(node.component == stage for node in segment.nodes))
    return next(named, 0), stage


def _headers_of_later(headers: Mapping[str, str]) -> dict[str, str]:
    """``headers`` for segments behind the first that runs: executors are named for that one alone."""
    return {name: value for name, value in headers.items() if name != ROUTE or value == RECORDED}
