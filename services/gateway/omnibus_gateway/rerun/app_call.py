"""Request without a client: sends a recorded call to another version of its app.

Its graphs run like those of mirrored requests (``omnibus_gateway.rerun.replayer``). They are not recorded, counted as
load or charged to a tenant. They do not move to another executor, and do not use cached results for their media. Media
that the app places are not stored. The calls are the last recorded ones of the app, with their graphs.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from omnibus.bus import Bus
from omnibus.bus.subjects import INVOCATIONS
from omnibus.errors import NotFound, OmnibusError
from omnibus.graph import HANDLE, WIRE_VERSION, GraphNode, Invocation
from omnibus.recording import records
from omnibus.recording.records import AppCall, EndRecord, Record, RecordedAnswer
from omnibus.task import Segment
from omnibus.tensors.handle import Item
from omnibus_gateway.dispatch.inflight import InflightInvocation
from omnibus_gateway.dispatch.retention import RecordedChunk
from omnibus_gateway.dispatch.streams import ItemStream, ResultStream, merge_streams
from omnibus_gateway.media.blob_store import MediaStore
from omnibus_gateway.request.admission import fail_open_streams, request_over_error
from omnibus_gateway.request.inputs import (
    MAX_READERS,
    TensorPlacer,
    fill_references,
    find_earlier,
    has_references,
    place_input,
    restore_input,
    validate_segment,
)
from omnibus_gateway.request.request import RequestFactory, app_letters
from omnibus_gateway.rerun.replayer import refuse_other_routes
from omnibus_gateway.rerun.spare_room import Place, invocation_places
from omnibus_gateway.routing.assignment import Assignment

__all__ = ["MirroredRequest", "RecordedCall", "RecordedChunk", "find_calls"]

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


#: Fields of requests that may contain media, or a long text, as handles.
_PLACED_FIELDS = ("media", "messages")


class MirroredRequest:
    """One run of ``recorded_call``, a ``omnibus_gateway.apps.graph_submission.SegmentRunner``."""

    def __init__(self, runs: RequestFactory, recorded_call: RecordedCall) -> None:
        self._runs = runs
        self._recorded = recorded_call
        self._steps = {segment.step: segment.record.invocation for segment in recorded_call.segments}
        self.id = runs.router.new_id(app_letters(self.app))
        self.deadline = time.time() + recorded_call.seconds_allowed
        self.segments: list[InflightInvocation] = []
        self._settled: list[asyncio.Event] = []
        self._over = False

    @property
    def app(self) -> str:
        return self._recorded.call.app

    @property
    def logs_calls(self) -> bool:
        return True

    @property
    def places(self) -> set[Place]:
        """Models and options where it has run so far."""
        return invocation_places(running.invocation for running in self.segments)

    @property
    def running_count(self) -> int:
        """Number of its graphs in flight."""
        return sum(not running.over for running in self.segments)

    async def restore_body(self, media: MediaStore) -> tuple[bytes, list[Any]]:
        """Return the recorded body with its media placed again, and its values that contain them.

        Raises ``NotFound`` for media that are no longer stored.
        """
        call = self._recorded.call
        body = call.body.encode() or await media.get(call.body_sha256)
        if not call.placed:
            return body, []
        fields = msgspec.json.decode(body)
        placed_fields = [name for name in _PLACED_FIELDS if name in fields]
        for name in placed_fields:
            fields[name] = await self._restore(fields[name], media)
        placed_values = [fields[name] for name in placed_fields if name == "media" or isinstance(fields[name], dict)]
        return msgspec.json.encode(fields), placed_values

    async def _restore(self, value: Any, media: MediaStore) -> Any:
        if isinstance(value, list):
            return [await self._restore(each, media) for each in value]
        if not isinstance(value, dict) or HANDLE not in value:
            return value
        literal = await restore_input(self._runs.tensors, media, value, self._inputs_name, self.deadline, MAX_READERS)
        return {**literal, "salt": self.id}

    # Requests of its worker

    async def place_input(self, data: bytes, about: tuple[str, str, str]) -> dict[str, Any]:
        """Put a file of the app into the arena for this run."""
        return await place_input(
            self._runs.tensors, None, data, about, self._inputs_name, self.deadline, MAX_READERS, self.id
        )

    async def submit(self, segment: Segment, step: int) -> Mapping[tuple[int, str], ResultStream]:
        """Run ``segment`` for comparison. Raises as ``ClientRequest.submit``, but never waits."""
        validate_segment(segment, step)
        if self._over:
            raise request_over_error()
        runs, nodes, name = self._runs, segment.nodes, f"{self.id}_{step}"
        try:
            if has_references(nodes):
                placer = TensorPlacer(runs.tensors, None, name, self.deadline)
                nodes = await fill_references(nodes, partial(find_earlier, self.segments), placer)
            running = self._dispatch_segment(segment, nodes, step, name)
        except BaseException:
            runs.tensors.end_invocation(name)
            raise
        self.segments.append(running)
        return running.streams

    def _dispatch_segment(
        self, segment: Segment, nodes: Sequence[GraphNode], step: int, name: str
    ) -> InflightInvocation:
        runs = self._runs
        assignment = runs.router.assign(nodes)
        ticket = runs.router.issue_ticket(assignment.model, assignment.kind, name)
        path = self._recorded_path(step, assignment)
        route = runs.router.route(assignment, ticket, pinned=path, pins=segment.pins, work=segment.work)
        plan = runs.router.plan
        invocation = Invocation(
            v=WIRE_VERSION,
            id=name,
            app=self.app,
            model=assignment.model,
            type=assignment.kind,
            path=route.path,
            epoch=plan.epoch if plan else 0,
            seed=self._recorded.call.seed,
            created=time.time(),
            deadline=self.deadline,
            reply=runs.dispatcher.reply,
            nodes=assignment.nodes,
            outputs=segment.outputs,
            options=route.options,
            route=route.executors,
            replay_of=self._recorded.id,
            step=step,
            choices=segment.choices,
        )
        return runs.dispatcher.submit(invocation, route.work, refuse_other_routes(route), mirrored=True)

    def _recorded_path(self, step: int, assignment: Assignment) -> str:
        """Return the path of the recorded graph, for equal results; empty if it is unavailable."""
        before = self._steps.get(step)
        previous_key = (before.model, before.type) if before is not None else None
        if before is None or len(assignment.parts) > 1 or previous_key != (assignment.model, assignment.kind):
            return ""
        paths = self._runs.router.find_all_paths(assignment.parts[0])
        return before.path if any(path.name == before.path for path in paths) else ""

    def read_outputs(self, streams: Mapping[str, ItemStream]) -> AsyncIterator[list[tuple[str, Item]]]:
        """Yield the items of ``streams`` as they arrive."""
        return merge_streams(streams)

    # The end

    @property
    def _inputs_name(self) -> str:
        return f"{self.id}_in"

    def fail(self, error: OmnibusError) -> None:
        """Fail all results of it with ``error``."""
        for running in self.segments:
            running.fail(error)

    def end(self, status: str) -> None:
        """End the run once; nothing is recorded."""
        if self._over:
            return
        self._over = True
        for running in self.segments:
            if status == "done":
                self._settled.append(asyncio.Event())
                self._runs.dispatcher.complete(running, self._settled[-1].set)
            else:
                self._runs.dispatcher.finish(running, status)
            fail_open_streams(running)
        self._runs.tensors.end_invocation(self._inputs_name)

    async def wait_settled(self) -> None:
        """Wait until its stages have reported, or for the time limit."""
        for settle_event in self._settled:
            await settle_event.wait()
