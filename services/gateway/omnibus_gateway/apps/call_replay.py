"""Replay of a recorded call in a worker: its answer, and the outputs of its graphs."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from hashlib import sha256
from typing import Any

import msgspec

from omnibus.app import protocol
from omnibus.canary.gate import GateRules
from omnibus.encoding.audio import to_pcm16
from omnibus.errors import OmnibusError
from omnibus.recording.records import RecordedAnswer
from omnibus_gateway.apps.call import Call
from omnibus_gateway.apps.mirrored_request import MirroredRequest
from omnibus_gateway.apps.recorded_calls import RecordedCall
from omnibus_gateway.apps.worker_supervisor import WorkerSupervisor
from omnibus_gateway.dispatch.retention import RecordedChunk
from omnibus_gateway.dispatch.streams import merge_streams
from omnibus_gateway.media.blob_store import MediaStore
from omnibus_gateway.replay.mirrored import digest_chunks
from omnibus_gateway.request.admission import app_deadline_error
from omnibus_gateway.shadow.compare import count_comparable, describe_difference, has_content
from omnibus_gateway.shadow.compare_json import describe_json_difference

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
        body, issued_literals = await request.restore_body(media)
        await worker.warm_up()
        call = worker.serve_again(request, body, recorded_call.call, issued_literals)
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
            async for batch in merge_streams({name: streams[name] for name in chunks}):
                for name, item in batch:
                    chunks[name].append(RecordedChunk(item.data, item.array))
    except TimeoutError:
        raise app_deadline_error(request.app) from None
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
