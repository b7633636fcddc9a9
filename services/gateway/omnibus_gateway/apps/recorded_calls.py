"""The last recorded calls of an app, with their graphs."""

from typing import NamedTuple

from omnibus.bus import Bus
from omnibus.bus.subjects import INVOCATIONS
from omnibus.errors import NotFound, OmnibusError
from omnibus.recording import records
from omnibus.recording.records import AppCall, EndRecord, Record, RecordedAnswer
from omnibus_gateway.shadow.spare_room import Place, invocation_places

#: Records per read, and the maximum in total.
READ_BATCH_COUNT, MAX_READ_RECORDS = 256, 20_000
_CALL_KEY = b'"call":'


class RecordedSegment(NamedTuple):
    """One graph of a call: ``step`` is its number, ``record`` its invocation and its end."""

    step: int
    record: Record


class RecordedCall(NamedTuple):
    """Answered call, and its graphs in order."""

    call: AppCall
    answer: RecordedAnswer
    segments: tuple[RecordedSegment, ...]

    @property
    def id(self) -> str:
        return self.segments[0].record.invocation.id

    @property
    def seconds_allowed(self) -> float:
        """Seconds from the start of the recorded call to its deadline."""
        first = self.segments[0].record.invocation
        return max(1.0, first.deadline - first.created)

    @property
    def places(self) -> set[Place]:
        """Models and options that ran it."""
        return invocation_places(segment.record.invocation for segment in self.segments)


async def find_calls(bus: Bus, app: str, count: int) -> list[RecordedCall]:
    """Return the last ``count`` answered calls of ``app`` on record, newest first."""
    calls: list[RecordedCall] = []
    below = read = 0
    while read < MAX_READ_RECORDS:
        messages = await bus.read_latest(INVOCATIONS, READ_BATCH_COUNT, below)
        for each in reversed(messages):
            below = each.number
            end_record = _decode_call(each.data, app)
            if end_record is not None and (recorded_call := await _read_call(bus, end_record)) is not None:
                calls.append(recorded_call)
            if len(calls) == count:
                return calls
        read += len(messages)
        if not messages or below <= 1:
            break
    return calls


def _decode_call(body: bytes, app: str) -> EndRecord | None:
    """Decode the end of a call of ``app``; None for any other record."""
    if _CALL_KEY not in body:
        return None
    try:
        end_record = records.decode_message(body).ended
    except OmnibusError:  # of another version
        return None
    return (
        end_record
        if end_record is not None and isinstance(end_record.call, AppCall) and end_record.call.app == app
        else None
    )


async def _read_call(bus: Bus, end_record: EndRecord) -> RecordedCall | None:
    """Read all records of a call; None if one of them is gone."""
    if not isinstance(end_record.call, AppCall):
        return None
    try:
        call_records = [await records.find_record(bus, id) for id in (end_record.inv, *end_record.segments)]
    except NotFound:
        return None
    segments = tuple(RecordedSegment(record.invocation.step, record) for record in call_records)
    return RecordedCall(end_record.call, end_record.answer, segments)
