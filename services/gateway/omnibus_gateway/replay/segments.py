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
