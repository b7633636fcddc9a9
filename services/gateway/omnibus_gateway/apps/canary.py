"""Canaries of apps: a new version answers the last recorded calls before it takes over.

A call passes if its answer and the outputs of its graphs equal the recorded ones bit by bit. Otherwise the current
version answers it again, and the rules of the gate compare the two answers. A difference that another model or another
batch causes is thus not attributed to the app. Calls run one at a time, and only while there is spare capacity, like
comparisons with candidates (``omnibus_gateway.shadow.mirror``).

Replay of a recorded call in a worker: its answer, and the outputs of its graphs.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from hashlib import sha256
from typing import Any

import msgspec

from omnibus.app import protocol
from omnibus.canary.candidate import GateRules
from omnibus.encoding.audio import to_pcm16
from omnibus.errors import Conflict, DeadlineExceeded, OmnibusError, Overloaded
from omnibus.recording.records import RecordedAnswer
from omnibus.service import until_cancelled
from omnibus_gateway.apps.call import Call
from omnibus_gateway.apps.graph_submission import handle_literals
from omnibus_gateway.apps.response_schemas import AppCanaryRequest, AppCanaryView, ComparedCall
from omnibus_gateway.apps.worker_supervisor import WorkerSupervisor
from omnibus_gateway.core import RequestFactory
from omnibus_gateway.media.blob_store import MediaStore
from omnibus_gateway.rerun.app_call import MirroredRequest, RecordedCall, RecordedChunk, find_calls
from omnibus_gateway.rerun.differences import (
    count_comparable,
    describe_difference,
    describe_json_difference,
    has_content,
)
from omnibus_gateway.rerun.replayer import digest_chunks
from omnibus_gateway.rerun.spare_room import LOOK_SECONDS, PAUSE_SECONDS, Place, SpareRoom

#: Text fields in the chunks of a chat.
_TEXTS = ("text", "calls", "reasoning")
#: Key of a graph's output: its step, node and name.
OutputKey = tuple[int, int, str]


class ReplayedCall(msgspec.Struct, frozen=True):
    """Result of a replay.

    A JSON answer has ``parts``, in which consecutive texts are joined, and their ``digest``; others have ``streams``.
    ``failure`` is its error, if any. ``outputs`` are those of its graphs, ``components`` the components that made them.
    """

    parts: Sequence[Any] = ()
    digest: str = ""
    streams: dict[str, list[RecordedChunk]] = {}
    outputs: dict[OutputKey, list[RecordedChunk]] = {}
    components: dict[OutputKey, str] = {}
    failure: OmnibusError | None = None


async def replay_call(
    worker: WorkerSupervisor, request: MirroredRequest, recorded_call: RecordedCall, media: MediaStore
) -> ReplayedCall:
    """Send ``recorded_call`` to ``worker`` as ``request``, and end that on every exit.

    Raises if the call cannot be sent. An error of the app or of a stage is in the result.
    """
    try:
        body, placed_values = await request.restore_body(media)
        await worker.warm_up()
        call = worker.serve_again(request, body, recorded_call.call, frozenset(handle_literals(placed_values)))
    except BaseException:
        request.end("failed")
        raise
    try:
        if recorded_call.call.kind != protocol.JSON:
            replayed_call = ReplayedCall(
                streams=await _read_streams(call, request, bool(recorded_call.answer.audio_sha256))
            )
        else:
            parts = await _read_parts(call, streams=worker.description.streams)
            replayed_call = ReplayedCall(
                _join_texts(parts), call.log.answer.hexdigest() if call.log is not None else ""
            )
    except OmnibusError as error:
        request.end("failed")
        return ReplayedCall(failure=error)
    except BaseException:
        request.end("cancelled")
        call.close()
        raise
    await request.wait_settled()
    return msgspec.structs.replace(replayed_call, **_collect_outputs(request))


async def _read_parts(call: Call, *, streams: bool) -> list[bytes]:
    if not streams:
        return [await call.read_answer()]
    async with aclosing(call.read_parts()) as parts:
        return [part async for part in parts]


async def _read_streams(call: Call, request: MirroredRequest, with_audio: bool) -> dict[str, list[RecordedChunk]]:
    streams = await call.wait_for_outputs()
    # Audio only if the client requested it.
    chunks: dict[str, list[RecordedChunk]] = {name: [] for name in streams if name != "audio" or with_audio}
    try:
        async with asyncio.timeout(max(0.0, request.deadline - time.time())):
            async for batch in request.read_outputs({name: streams[name] for name in chunks}):
                for name, item in batch:
                    chunks[name].append(RecordedChunk(item.data, item.array))
    except TimeoutError:
        raise DeadlineExceeded.of_app(request.app) from None
    finally:
        call.close()
    request.end("done")
    return chunks


def _join_texts(parts: Sequence[bytes]) -> list[Any]:
    """Decode parts, and join consecutive texts."""
    values: list[Any] = []
    for part in parts:
        value = msgspec.json.decode(part)
        if isinstance(value, str) and values and isinstance(values[-1], str):
            values[-1] += value
        else:
            values.append(value)
    return values


def _collect_outputs(request: MirroredRequest) -> dict[str, Any]:
    outputs, components = {}, {}
    for running in request.segments:
        for (node, output), tape in running.tapes.items():
            key = (running.invocation.step, node, output)
            components[key] = running.invocation.nodes[node].component
            if tape.chunks is not None:
                outputs[key] = tape.chunks
    return {"outputs": outputs, "components": components}


# Comparisons


def is_as_recorded(recorded_call: RecordedCall, replayed_call: ReplayedCall) -> bool:
    """Return True if the answer and outputs equal the recorded ones.

    False if the answer and the outputs that both have are all empty.
    """
    digests = _recorded_digests(recorded_call, replayed_call)
    if any(not _is_recorded_output(replayed_call.outputs.get(key), digest) for key, digest in digests.items()):
        return False
    if recorded_call.call.kind != protocol.JSON:
        return _is_recorded_chat(recorded_call.answer, replayed_call.streams) and (
            _has_speech(replayed_call) or bool(digests)
        )
    return replayed_call.digest == recorded_call.call.answer_sha256 and (bool(replayed_call.parts) or bool(digests))


def _is_recorded_output(chunks: Sequence[RecordedChunk] | None, digest: str) -> bool:
    """Return True if an output has the recorded ``digest``; incomplete outputs have none."""
    return chunks is not None and digest in (digest_chunks(chunks), digest_chunks(chunks, cached=True))


def _is_recorded_chat(answer: RecordedAnswer, streams: Mapping[str, Sequence[RecordedChunk]]) -> bool:
    """Return True if text, calls, reasoning and audio equal the recorded ones."""
    texts = {name: "".join(chunk.data.get(name, "") for chunk in streams.get("text", ())) for name in _TEXTS}
    expected_digests = (answer.text_sha256, answer.calls_sha256, answer.reasoning_sha256)
    digests = (_text_digest(texts["text"]), *(_text_digest(texts[name]) if texts[name] else "" for name in _TEXTS[1:]))
    audio = _audio_digest(streams["audio"]) if answer.audio_sha256 and "audio" in streams else ""
    return digests == expected_digests and audio == answer.audio_sha256


def _has_speech(replayed_call: ReplayedCall) -> bool:
    return any(map(has_content, replayed_call.streams.values()))


def has_comparison(control: ReplayedCall, replayed_call: ReplayedCall) -> bool:
    """Return True if there is something to compare: a non-empty answer, or a common output."""
    has_answer = any(call.parts or _has_speech(call) for call in (control, replayed_call))
    return has_answer or count_comparable(control.outputs, replayed_call.outputs) > 0


def _text_digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _audio_digest(chunks: Sequence[RecordedChunk]) -> str:
    return sha256(b"".join(to_pcm16(chunk.array) for chunk in chunks if chunk.array is not None)).hexdigest()


def _recorded_digests(recorded_call: RecordedCall, replayed_call: ReplayedCall) -> dict[OutputKey, str]:
    """Return the recorded digests of outputs with the same component in both."""
    digests = {}
    for step, record in recorded_call.segments:
        for name, digest in (record.ended.outputs if record.ended is not None else {}).items():
            node, _, output = name.partition(".")
            key = (step, int(node), output)
            if digest and replayed_call.components.get(key) == record.invocation.nodes[int(node)].component:
                digests[key] = digest
    return digests


def describe_call_difference(control: ReplayedCall, replayed_call: ReplayedCall, rules: GateRules) -> tuple[str, str]:
    """Describe the first difference: its component, empty for the answer, and a text.

    Both are empty if the two calls are equal under ``rules``.
    """
    for key in sorted(control.outputs.keys() & replayed_call.outputs.keys()):
        component = replayed_call.components[key]
        if control.components[key] != component:
            continue
        difference = describe_difference(control.outputs[key], replayed_call.outputs[key], rules)
        if difference:
            return component, f"{component}.{key[2]}: {difference}"
    for name in sorted(control.streams.keys() | replayed_call.streams.keys()):
        difference = describe_difference(control.streams.get(name, ()), replayed_call.streams.get(name, ()), rules)
        if difference:
            return "", f"answer.{name}: {difference}"
    one, other = (call.parts[0] if len(call.parts) == 1 else list(call.parts) for call in (control, replayed_call))
    return "", describe_json_difference("answer", one, other, rules)


#: Rows of the table of differences.
MAX_SHOWN = 20
#: Characters of the text in a row.
MAX_ROW_CHARS = 160

SAME, DIFFERED, FAILED, SKIPPED = "same", "differed", "failed", "skipped"


class CanaryConflict(Conflict):
    """New version that does not take over: its answers differ, or no call could be compared."""

    code = "canary_conflict"


class AppCanary:
    """Tries new versions of apps while ``room`` has spare capacity."""

    def __init__(self, runs: RequestFactory, room: SpareRoom) -> None:
        self._runs = runs
        self._room = room
        self._media = runs.records.media

    async def prove(
        self, name: str, request: AppCanaryRequest, candidate: WorkerSupervisor, serving: WorkerSupervisor | None
    ) -> AppCanaryView:
        """Send the last calls of app ``name`` to ``candidate``.

        Raises ``CanaryConflict`` if a call differs, or if none can be compared; its message has a table of them.
        """
        calls = await find_calls(self._runs.records.bus, name, request.last)
        comparisons: list[ComparedCall] = []
        rules = GateRules(request.tolerance, request.score)
        try:
            async with asyncio.timeout(request.within):
                for each in calls:
                    comparison = await self._compare(each, rules, candidate, serving)
                    comparisons.append(comparison)
        except TimeoutError:
            raise CanaryConflict(
                f"the new version of the app {name!r} does not serve: only {len(comparisons)} of {len(calls)} recorded "
                f"calls ran in {request.within:g} s. There was no spare room, or they take longer: allow more seconds"
            ) from None
        _check_calls(name, comparisons)
        return AppCanaryView(sum(each.outcome == SAME for each in comparisons), tuple(comparisons))

    async def _compare(
        self,
        recorded_call: RecordedCall,
        rules: GateRules,
        candidate: WorkerSupervisor,
        serving: WorkerSupervisor | None,
    ) -> ComparedCall:
        try:
            replayed_call = await self._run_in_room(recorded_call, candidate)
        except OmnibusError as error:  # its media are gone, or it was recorded as digests
            return ComparedCall(recorded_call.id, SKIPPED, error.message[:MAX_ROW_CHARS])
        if isinstance(replayed_call.failure, Overloaded):
            return ComparedCall(recorded_call.id, SKIPPED, "the executors had no room for it")
        if replayed_call.failure is None and is_as_recorded(recorded_call, replayed_call):
            return ComparedCall(recorded_call.id, SAME)
        control = await self._run_control(recorded_call, serving)
        if control.failure is not None:
            return ComparedCall(
                recorded_call.id, SKIPPED, f"the current version fails as well: {control.failure.message}"
            )
        if replayed_call.failure is not None:
            description = f"{replayed_call.failure.code}: {replayed_call.failure.message}"
            return ComparedCall(recorded_call.id, FAILED, description, replayed_call.failure.stage)
        return _compare_answers(recorded_call.id, control, replayed_call, rules)

    async def _run_control(self, recorded_call: RecordedCall, serving: WorkerSupervisor | None) -> ReplayedCall:
        """Send the same call to the current version."""
        if serving is None:
            return ReplayedCall(failure=Conflict("no version serves at this gateway"))
        try:
            return await self._run_in_room(recorded_call, serving)
        except OmnibusError as error:
            return ReplayedCall(failure=error)

    # Room

    async def _run_in_room(self, recorded_call: RecordedCall, worker: WorkerSupervisor) -> ReplayedCall:
        """Run a call while there is spare capacity; cancel and repeat it when client requests need the capacity."""
        while True:
            places = self._known_places(recorded_call)
            while not self._room.is_free(places):  # noqa: ASYNC110 users come and go on their own
                await asyncio.sleep(LOOK_SECONDS)
            request = MirroredRequest(self._runs, recorded_call)
            replayed_call = await self._run_until_crowded(recorded_call, worker, request)
            if replayed_call is not None:
                return replayed_call
            await asyncio.sleep(PAUSE_SECONDS)

    async def _run_until_crowded(
        self, recorded_call: RecordedCall, worker: WorkerSupervisor, request: MirroredRequest
    ) -> ReplayedCall | None:
        work = asyncio.get_running_loop().create_task(replay_call(worker, request, recorded_call, self._media))
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=LOOK_SECONDS)
                if not work.done() and not self._room.is_free(request.places, own_count=request.running_count):
                    return None
            return work.result()
        finally:
            await until_cancelled(work)

    def _known_places(self, recorded_call: RecordedCall) -> list[Place]:
        """Return the places where the call was recorded that still have executors."""
        live_places = []
        for model, option in recorded_call.places:
            try:
                if self._runs.router.serving_executors(model, option):
                    live_places.append((model, option))
            except OmnibusError:  # the plan no longer has this model
                continue
        return live_places


def _compare_answers(id: str, control: ReplayedCall, replayed_call: ReplayedCall, rules: GateRules) -> ComparedCall:
    if not has_comparison(control, replayed_call):
        return ComparedCall(id, SKIPPED, "its answer is empty, and no output of its graphs is in both")
    stage, difference = describe_call_difference(control, replayed_call, rules)
    return ComparedCall(id, DIFFERED, difference, stage) if difference else ComparedCall(id, SAME)


def _check_calls(name: str, comparisons: Sequence[ComparedCall]) -> None:
    """Raise ``CanaryConflict`` unless at least one call was compared, and none differs."""
    bad = [each for each in comparisons if each.outcome in (DIFFERED, FAILED)]
    count = sum(each.outcome != SKIPPED for each in comparisons)
    if bad:
        raise CanaryConflict(
            f"the new version of the app {name!r} does not serve: {len(bad)} of {count} recorded calls were not "
            f"answered as before\n{_format_table(bad)}"
        )
    if not count:
        raise CanaryConflict(
            f"the new version of the app {name!r} does not serve: none of {len(comparisons)} recorded calls could be "
            "compared. Set OMNIBUS_GATEWAY_RECORD=full, or omit the canary"
            + (f"\n{_format_table(comparisons)}" if comparisons else "")
        )


def _format_table(calls: Sequence[ComparedCall]) -> str:
    width = max(len(each.id) for each in calls)
    rows = [
        f"{each.id:<{width}}  {each.outcome:<8}  {' '.join(each.what.split())[:MAX_ROW_CHARS]}"
        for each in calls[:MAX_SHOWN]
    ]
    left = [f"and {len(calls) - MAX_SHOWN} more"] if len(calls) > MAX_SHOWN else []
    return "\n".join([f"{'ID':<{width}}  OUTCOME   WHAT", *rows, *left])
