"""``omnibus.replay``: a recorded invocation runs again, with the same graph, seed and path.

Headers may request another path, certain executors, or a start in the middle: ``omnibus_gateway.rerun.options``. A
request whose graph grew is replayed segment by segment: see ``omnibus_gateway.rerun.options``.

Replies are one-line JSON: first where each segment runs, then the answer and its comparison, then an empty message. A
replay can do no more than the original request. A mirrored run has no record: its result is its outputs, times and
failure.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, NamedTuple

import msgspec

from omnibus import graph, tracing
from omnibus.bus import Delivery
from omnibus.bus.messages import Hop
from omnibus.encoding.audio import to_pcm16
from omnibus.errors import BadRequest, DeadlineExceeded, OmnibusError, StageUnavailable
from omnibus.graph import DIGEST, HANDLE, GraphNode, Invocation
from omnibus.recording.records import RecordedAnswer, RequestLinks, split_records
from omnibus.recording.steps import PLAYER_PREFIX
from omnibus.tensors.client import TensorClient
from omnibus.tensors.handle import Item
from omnibus_gateway.dispatch.dispatcher import Dispatcher
from omnibus_gateway.dispatch.inflight import TEXT, InflightInvocation, OutputPlayer
from omnibus_gateway.dispatch.retention import RecordedChunk, unpack_chunks
from omnibus_gateway.dispatch.streams import Fingerprint, merge_streams
from omnibus_gateway.media.blob_store import MediaStore
from omnibus_gateway.request.accumulator import AnswerAccumulator, ChoicesAccumulator
from omnibus_gateway.request.inputs import restore_input, salt_prompt
from omnibus_gateway.request.record import MAX_RECORDED_CHARS, Records, cut_answer
from omnibus_gateway.rerun import options
from omnibus_gateway.rerun.comparison import ReplayComparison, SegmentVerdict, compare_failures, is_speech, summarize
from omnibus_gateway.rerun.options import ReplayOptions, ReplaySegment, find_segments
from omnibus_gateway.routing.router import ExecutorRoute, InvocationTicket, Router
from omnibus_gateway.tasks.chat import APP


class MirroredRun(NamedTuple):
    """Result of a run.

    It has outputs by node and name, seconds in all, times of the nodes, and the error if it failed.
    """

    outputs: dict[tuple[int, str], list[RecordedChunk]]
    seconds: float
    hops: dict[int, Hop]
    failure: OmnibusError | None
    route: tuple[str, ...]

    def digests(self) -> dict[str, str]:
        """Return the digest of each output, by ``<node>.<output>``."""
        return {f"{node}.{output}": digest_chunks(chunks) for (node, output), chunks in sorted(self.outputs.items())}


def digest_chunks(chunks: Sequence[RecordedChunk], *, cached: bool = False) -> str:
    """Return the digest of an output.

    See ``omnibus.recording.records.KeptOutput.digest``, and ``Fingerprint`` for ``cached``.
    """
    fingerprint = Fingerprint()
    for chunk in chunks:
        fingerprint.add_item(Item(chunk.data, chunk.array))
    return fingerprint.hexdigest(cached=cached)


async def finish_mirrored(running: InflightInvocation, dispatcher: Dispatcher) -> MirroredRun:
    """Wait for the end of ``running``; it is ended on every exit."""
    began, status = time.monotonic(), "cancelled"
    settle_event = asyncio.Event()
    try:
        await _read_all(running)
        status = "done"
    except OmnibusError as error:
        status = "failed"
        return MirroredRun({}, time.monotonic() - began, {}, error, running.invocation.route)
    finally:
        seconds = time.monotonic() - began
        if status == "done":
            dispatcher.complete(running, settle_event.set)
        else:
            dispatcher.finish(running, status)
    await settle_event.wait()  # its stages have reported their times, or had time to
    outputs = {key: chunks for key, tape in running.tapes.items() if (chunks := tape.chunks) is not None}
    return MirroredRun(outputs, seconds, dict(running.hops), None, running.invocation.route)


async def _read_all(running: InflightInvocation) -> None:
    streams = {f"{node}.{output}": stream for (node, output), stream in running.streams.items()}
    try:
        async with asyncio.timeout(max(0.0, running.invocation.deadline - time.time())):
            async for _ in merge_streams(streams):
                pass  # captures have it
    except TimeoutError:
        raise DeadlineExceeded("the comparison exceeded the time limit of the recorded invocation") from None


class SegmentPlace(NamedTuple):
    """Place of a graph in a replay: its number among ``total``.

    ``first`` is the id of the replay's first graph.
    """

    first: str
    number: int
    total: int

    @property
    def id(self) -> str:
        return f"{self.first}_{self.number}" if self.number else self.first

    @property
    def parent(self) -> str:
        return self.first if self.number else ""

    @property
    def later_ids(self) -> tuple[str, ...]:
        """Ids of the graphs that follow, for the first one."""
        return () if self.number else tuple([f"{self.first}_{each}" for each in range(1, self.total)])


@dataclass
class _ReplayResult:
    """Verdicts on completed graphs, and the answer of the last one."""

    verdicts: list[SegmentVerdict]
    answer: RecordedAnswer


class Replayer:
    """Answers on ``omnibus.replay``."""

    def __init__(
        self, router: Router, dispatcher: Dispatcher, tensors: TensorClient, records: Records, keep: MediaStore
    ) -> None:
        self._router = router
        self._dispatcher = dispatcher
        self._tensors = tensors
        self._records = records
        self._keep = keep

    async def respond(self, delivery: Delivery) -> AsyncIterator[bytes]:
        try:
            recorded_invocation = graph.decode_invocation(split_records(delivery.data)[0])
            graph.verify_uses(recorded_invocation.nodes)
            headers = delivery.headers or {}
            replay_options = options.parse_digests_only(headers, recorded_invocation)
            if replay_options is not None:
                yield msgspec.json.encode(await self._find_digests(recorded_invocation, replay_options))
                return
            async for part in self._run_replay(recorded_invocation, headers):
                yield msgspec.json.encode(part)
        except OmnibusError as error:
            yield msgspec.json.encode({"status": "failed", "problem": error.to_problem()})

    async def _find_digests(self, recorded_invocation: Invocation, replay_options: ReplayOptions) -> dict[str, Any]:
        """Run ``recorded_invocation`` without a record; returns its route, and the digest of each output."""
        run = await self.run_mirrored(recorded_invocation, replay_options, token_hex(8))
        if run.failure is not None:
            raise run.failure
        return {"status": "done", "route": run.route, "digests": run.digests()}

    async def _run_replay(
        self, recorded_invocation: Invocation, headers: Mapping[str, str]
    ) -> AsyncIterator[dict[str, Any]]:
        """Run and compare all segments of ``recorded_invocation``, one after another.

        Each is compared with its own record.
        """
        segments = await find_segments(self._records, recorded_invocation, headers)
        trace = tracing.extract_context(headers)
        first = self._router.issue_ticket(segments[0].recorded.model, segments[0].recorded.type)
        result = _ReplayResult([], RecordedAnswer())
        for number, segment in enumerate(segments):
            place = SegmentPlace(first.id, number, len(segments))
            ticket = first
            if number:
                ticket = self._router.issue_ticket(segment.recorded.model, segment.recorded.type, place.id)
            running, player = await self._submit_replay(segment, ticket, place, trace)
            async with aclosing(self._run_segment(segment, running, player, place, result)) as parts:
                async for part in parts:
                    yield part
        yield {"status": "done", "id": first.id, "answer": result.answer, **summarize(result.verdicts)}

    async def _run_segment(
        self,
        segment: ReplaySegment,
        running: InflightInvocation,
        player: OutputPlayer,
        place: SegmentPlace,
        result: "_ReplayResult",
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Follow ``running`` to its end, and add its result to ``result``.

        ``running`` is ended on every exit.
        """
        got, failure = _open_accumulator(running), None
        try:
            yield _describe_begin(segment, running, place)
            await self._collect_in_time(running, got)
        except BaseException as error:  # also when the requester has disconnected
            self._end_failed(running, got, error)
            if not isinstance(error, OmnibusError):
                raise
            failure = error
        finally:
            player.stop()
        if failure is None:
            self._record_done(running, got, place)
        result.verdicts.append(await self._compare_run(segment, running, got, failure))
        result.answer = cut_answer(got.to_answer(), MAX_RECORDED_CHARS)

    def _record_done(self, running: InflightInvocation, got: AnswerAccumulator, place: SegmentPlace) -> None:
        def record_end() -> None:
            self._records.write_end(running, "done", got, RequestLinks(place.later_ids))

        self._dispatcher.complete(running, record_end)

    async def _compare_run(
        self, segment: ReplaySegment, running: InflightInvocation, got: AnswerAccumulator, failure: OmnibusError | None
    ) -> SegmentVerdict:
        """Compare one run with its record. Raises ``failure``, unless an answered request had one there."""
        end_record = segment.ended
        problem = end_record.problem if end_record is not None and end_record.status == "done" else None
        failure_verdict = compare_failures(segment.recorded.id, problem, failure)
        if failure_verdict is not None:
            return failure_verdict
        if failure is not None:
            raise failure
        return await ReplayComparison(segment.recorded, end_record, self._keep).compare(running, got)

    async def _collect_in_time(self, running: InflightInvocation, got: AnswerAccumulator) -> None:
        try:
            async with asyncio.timeout(running.invocation.deadline - time.time()):
                await self._collect_outputs(running, got)
        except TimeoutError:
            raise DeadlineExceeded("the replay exceeded the time limit of the recorded invocation") from None

    def _end_failed(self, running: InflightInvocation, got: AnswerAccumulator, error: BaseException) -> None:
        late = isinstance(error, DeadlineExceeded) and running.failure is None
        status = "expired" if late else "failed" if isinstance(error, OmnibusError) else "cancelled"
        self._dispatcher.finish(running, status)
        self._records.write_end(running, status, got)

    async def _submit_replay(
        self, segment: ReplaySegment, ticket: InvocationTicket, place: SegmentPlace, trace: tracing.Carrier
    ) -> tuple[InflightInvocation, OutputPlayer]:
        recorded_invocation, replay_options = segment.recorded, segment.options
        now = time.time()
        deadline = now + max(1.0, recorded_invocation.deadline - recorded_invocation.created)
        outputs = options.requested_outputs(recorded_invocation, replay_options.start)
        player = await self._create_player(recorded_invocation, replay_options.start)
        try:
            late = [
                await self._restore_inputs(node, ticket.id, deadline)
                for node in recorded_invocation.nodes[replay_options.start :]
            ]
            nodes = (*recorded_invocation.nodes[: replay_options.start], *late)
            along = options.make_route_finder(
                self._router, recorded_invocation, nodes, replay_options, ticket, player.name
            )
            route = along(frozenset())
        except BaseException:
            self._tensors.end_invocation(ticket.id)
            raise
        invocation = self._build_invocation(recorded_invocation, ticket.id, route, nodes, now, deadline)
        invocation = msgspec.structs.replace(invocation, outputs=outputs, parent=place.parent, step=place.number)
        running = self._dispatcher.submit(invocation, route.work, along, trace, player.prepare_attempts)
        for stream in running.streams.values():
            stream.fingerprint = Fingerprint()
        self._records.write_begin(running)
        return running, player

    async def run_mirrored(
        self, recorded_invocation: Invocation, replay_options: ReplayOptions, salt: str
    ) -> MirroredRun:
        """Run ``recorded_invocation`` again for comparison only.

        It is not recorded, and does not move to another executor. It reuses no media or prompts that were computed
        under another ``salt``. Raises the error if it cannot be sent.
        """
        return await finish_mirrored(
            await self._submit_mirrored(recorded_invocation, replay_options, salt), self._dispatcher
        )

    async def _submit_mirrored(
        self, recorded_invocation: Invocation, replay_options: ReplayOptions, salt: str
    ) -> InflightInvocation:
        ticket = self._router.issue_ticket(recorded_invocation.model, recorded_invocation.type)
        now = time.time()
        deadline = now + max(1.0, recorded_invocation.deadline - recorded_invocation.created)
        try:
            restored_nodes = [
                await self._restore_inputs(node, ticket.id, deadline) for node in recorded_invocation.nodes
            ]
            all_take = self._router.members.all_take("cache_salt")
            nodes = tuple(_salt_node(node, salt, salts_prompt=all_take) for node in restored_nodes)
            route = options.make_route_finder(self._router, recorded_invocation, nodes, replay_options, ticket, "")(
                frozenset()
            )
        except BaseException:
            self._tensors.end_invocation(ticket.id)
            raise
        invocation = self._build_invocation(recorded_invocation, ticket.id, route, nodes, now, deadline)
        return self._dispatcher.submit(invocation, route.work, refuse_other_routes(route), mirrored=True)

    def _build_invocation(
        self,
        recorded_invocation: Invocation,
        id: str,
        route: ExecutorRoute,
        nodes: tuple[GraphNode, ...],
        now: float,
        deadline: float,
    ) -> Invocation:
        return msgspec.structs.replace(
            recorded_invocation,
            id=id,
            path=route.path,
            epoch=self._router.plan.epoch if self._router.plan else 0,
            created=now,
            deadline=deadline,
            reply=self._dispatcher.reply,
            nodes=nodes,
            options=route.options,
            route=route.executors,
            attempt=0,
            attempts=(),
            resumes=(),
            retained=(),  # of the recorded run: its executors would send these outputs twice
            replay_of=recorded_invocation.id,
            parent="",
            step=0,
        )

    async def _create_player(self, recorded_invocation: Invocation, start: int) -> OutputPlayer:
        """Return a player of the outputs of nodes before ``start``. Raises ``BadRequest`` and ``NotFound`` if they are
        not kept.
        """
        end_record = None
        if options.missing_inputs(recorded_invocation, start):
            end_record = (await self._records.find(recorded_invocation.id)).ended
        tapes = {
            (one.node, one.output): unpack_chunks(await self._keep.get(one.sha256))
            for one in options.kept_outputs(recorded_invocation, end_record, start)
        }
        return self._dispatcher.create_player(f"{PLAYER_PREFIX}{self._router.gateway}", start, tapes)

    async def _restore_inputs(self, node: GraphNode, id: str, deadline: float) -> GraphNode:
        """Restore inputs that were sent by handle to the arena, by hash."""
        inputs = dict(node.inputs)
        for name, value in inputs.items():
            if isinstance(value, dict) and DIGEST in value:
                raise BadRequest(f"input {name!r} was recorded as a digest: set OMNIBUS_GATEWAY_RECORD=full to replay")
            inputs[name] = await self._restore_value(value, id, deadline)
        return graph.with_inputs(node, inputs)

    async def _restore_value(self, value: Any, id: str, deadline: float) -> Any:
        if isinstance(value, list):
            return [await self._restore_value(element, id, deadline) for element in value]
        if isinstance(value, dict) and HANDLE in value:  # made by the gateway; a client's may have any other key
            return await restore_input(self._tensors, self._keep, value, id, deadline)
        if isinstance(value, dict):
            return {key: await self._restore_value(each, id, deadline) for key, each in value.items()}
        return value

    async def _collect_outputs(self, running: InflightInvocation, got: AnswerAccumulator) -> None:
        """Read all outputs to their ends; those of a chat are its answer."""
        now = running.invocation
        streams = {f"{node}.{output}": stream for (node, output), stream in running.streams.items()}
        places = {name: number for number, name in enumerate(streams)}
        async for batch in merge_streams(streams):
            for name, item in batch if now.app == APP else ():
                if isinstance(got, ChoicesAccumulator):
                    got.add_text(places[name], item.data)
                elif is_speech(now, streams[name].origin):
                    got.add_item("audio", item.data, item.array)
                    if item.array is not None:
                        got.add_pcm(to_pcm16(item.array))
                elif streams[name].origin[1] == TEXT:
                    got.add_item(TEXT, item.data, item.array)


def _describe_begin(segment: ReplaySegment, running: InflightInvocation, place: SegmentPlace) -> dict[str, Any]:
    now, start = running.invocation, segment.options.start
    begin_fields = {"id": now.id, "replay_of": segment.recorded.id, "path": now.path, "route": now.route}
    several = {"segment": place.number, "segments": place.total} if place.total > 1 else {}
    return {"status": "running", **begin_fields, **several, **({"from": start} if start else {})}


def _open_accumulator(running: InflightInvocation) -> AnswerAccumulator:
    """Return the accumulator of a chat's answer or several; each has a text."""
    now = running.invocation
    texts = [output for _, output in now.outputs].count(TEXT) if now.app == APP else 1
    return ChoicesAccumulator(now.model, now.created, texts) if texts > 1 else AnswerAccumulator(now.model, now.created)


def _salt_node(node: GraphNode, salt: str, *, salts_prompt: bool) -> GraphNode:
    """Return ``node`` with salted media, so that nothing cached is reused.

    With ``salts_prompt`` the prompt is salted as well.
    """
    salted_node = graph.with_inputs(node, {name: _salt_value(value, salt) for name, value in node.inputs.items()})
    return salt_prompt(salted_node, salt, in_conversation=False) if salts_prompt else salted_node


def _salt_value(value: Any, salt: str) -> Any:
    if isinstance(value, list):
        return [_salt_value(element, salt) for element in value]
    if isinstance(value, dict):
        entries = {key: _salt_value(each, salt) for key, each in value.items() if key != HANDLE}
        return {HANDLE: value[HANDLE], **entries, "salt": salt} if HANDLE in value else entries
    return value


def refuse_other_routes(route: ExecutorRoute) -> Callable[[frozenset[str]], ExecutorRoute]:
    """Return a route finder that refuses to move an invocation.

    It is for invocations that run for comparison only.
    """

    def find_route(lost_executors: frozenset[str]) -> ExecutorRoute:
        raise StageUnavailable(
            f"executor {', '.join(sorted(lost_executors))[:80]} was lost, and a comparison does not move to another"
        )

    return find_route
