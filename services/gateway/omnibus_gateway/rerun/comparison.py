"""Comparison of one replayed graph with its record, output by output.

The record has digests of outputs that an app read. The answer of a plain chat has those of its text, reasoning and tool
calls, and its samples, which may differ by ``MAX_SAMPLE_DIFFERENCE``. Outputs between stages are compared if they were
kept, to name the first stage that made a difference.

A verdict has the compared outputs, their amount, and the first place that differs. ``identical`` is True if all
requested outputs are equal, and not all are empty. It is False if an output differs. It is None if that is unknown: the
record lacks an answer, a digest or samples, or there was nothing to compare. Pure, no I/O.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from omnibus.errors import OmnibusError, ProblemDetails
from omnibus.graph import Invocation
from omnibus.recording.records import EndRecord, KeptOutput, RecordedAnswer
from omnibus.structured.calls import split_calls
from omnibus_gateway.dispatch.inflight import TEXT, InflightInvocation
from omnibus_gateway.dispatch.retention import OutputCapture, RecordedChunk, unpack_chunks
from omnibus_gateway.dispatch.streams import Fingerprint, ResultStream
from omnibus_gateway.media.blob_store import MediaStore
from omnibus_gateway.request.accumulator import AnswerAccumulator, ChoicesAccumulator
from omnibus_gateway.tasks.chat import APP


def find_text_position(one: str, other: str) -> int | None:
    """Return the first differing character, or the end of the shorter text; None if both are equal."""
    if one == other:
        return None
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))


def find_position(recorded_chunks: Sequence[RecordedChunk], now: Sequence[RecordedChunk]) -> str:
    """Describe the first place that differs.

    Empty if only the cuts differ, or only values that are neither text nor arrays.
    """
    for key in dict.fromkeys(key for chunk in (*recorded_chunks, *now) for key in chunk.data):
        one, other = _join_values(recorded_chunks, key), _join_values(now, key)
        if isinstance(one, str) and isinstance(other, str):
            position = find_text_position(one, other)
            if position is not None:
                return f"{key} from character {position} on"
        elif isinstance(one, list) and isinstance(other, list) and one != other:
            pairs = enumerate(zip(one, other, strict=False))
            at = next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))
            return f"{key} from element {at} on"
    return _find_row(*([chunk.array for chunk in side if chunk.array is not None] for side in (recorded_chunks, now)))


def _join_values(chunks: Sequence[RecordedChunk], key: str) -> str | list[object] | None:
    values = [chunk.data[key] for chunk in chunks if key in chunk.data and chunk.array is None]
    if values and all(isinstance(each, str) for each in values):
        return "".join(values)
    if values and all(isinstance(each, list) for each in values):
        return [element for each in values for element in each]
    return None


def _find_row(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> str:
    if not one or not other or not all(each.ndim for each in (*one, *other)):
        return "" if bool(one) == bool(other) else "it holds no rows" if one else "it held no rows"
    try:
        left, right = np.concatenate(one), np.concatenate(other)
    except ValueError:
        return "rows have another shape"
    if left.shape[1:] != right.shape[1:] or left.dtype != right.dtype:
        return f"rows are {right.dtype} {list(right.shape[1:])}, and were {left.dtype} {list(left.shape[1:])}"
    count = min(len(left), len(right))
    unequal = (left[:count] != right[:count]).reshape(count, -1).any(axis=1)
    at = int(unequal.argmax()) if unequal.any() else count
    return f"row {at}" if at < max(len(left), len(right)) else ""


#: Keys of chunks with text, and names of lists of numbers for people.
_TEXTS = ("text", "reasoning")
_LIST_NAMES = {"ids": "tokens", "codes": "codes"}


class OutputVerdict(NamedTuple):
    """One output against the record.

    ``name`` is ``<component>.<output>``, and ``amount`` describes its content this time. ``is_empty`` is True if
    neither side has content. ``why`` names the place that differs, or the reason why it was not compared.
    """

    name: str
    identical: bool | None
    amount: str = ""
    why: str = ""
    is_empty: bool = False
    component: str = ""


class SegmentVerdict(NamedTuple):
    """The outputs of one graph of a request; ``segment`` is its id in the record."""

    segment: str
    outputs: Sequence[OutputVerdict]
    why: str = ""  # reason if no output could be compared

    @property
    def differing(self) -> OutputVerdict | None:
        """The first output that differs, in the order of the graph."""
        return next((each for each in self.outputs if each.identical is False), None)

    @property
    def obstacle(self) -> str:
        """Reason why an output could not be compared; empty if all were."""
        return self.why or next((f"{each.name}: {each.why}" for each in self.outputs if each.identical is None), "")


def compare_failures(segment: str, before: ProblemDetails | None, now: OmnibusError | None) -> SegmentVerdict | None:
    """Return the verdict on a segment that failed ``before`` or fails ``now``.

    ``before`` is the failure in the record of a request that was answered. None without either.
    """
    if before is None:
        return None
    component = before.stage or "the graph"
    verdict = OutputVerdict(component, None, f"failed as {before.code}", component=component)
    if now is None:
        verdict = verdict._replace(identical=False, why=f"it does not fail, and failed as {before.code}")
    elif now.code == before.code:
        verdict = verdict._replace(identical=True)
    else:
        verdict = verdict._replace(identical=False, why=f"it fails as {now.code}, and failed as {before.code}")
    return SegmentVerdict(segment, (verdict,))


def summarize(segments: Sequence[SegmentVerdict]) -> dict[str, Any]:
    """Return the verdict on all ``segments``, as in a replay's reply."""
    several = len(segments) > 1
    amounts = [_amount_text(part, each, several=several) for part, each in _iterate_compared(segments)]
    differing = next(
        ((part, output_verdict) for part in segments if (output_verdict := part.differing) is not None), None
    )
    if differing is not None:
        part, difference = differing
        why = f"{_segment_place(part, several)}{difference.name} differs: {difference.why}"
        where = {
            "segment": part.segment,
            "stage": difference.component,
            "output": difference.name,
            "position": difference.why,
        }
        return {"identical": False, "why": why, "compared": amounts, "first": where}
    obstacle = next((f"{_segment_place(part, several)}{part.obstacle}" for part in segments if part.obstacle), "")
    if not obstacle and not any(not each.is_empty for _, each in _iterate_compared(segments)):
        obstacle = "there was nothing to compare: the outputs are empty in the record and in the replay"
    if obstacle:
        return {"identical": None, "why": obstacle, "compared": amounts}
    return {"identical": True, "compared": amounts}


def _iterate_compared(segments: Iterable[SegmentVerdict]) -> Iterator[tuple[SegmentVerdict, OutputVerdict]]:
    for part in segments:
        for each in part.outputs:
            if each.identical is not None:
                yield part, each


def _segment_place(part: SegmentVerdict, several: bool) -> str:
    return f"segment {part.segment}: " if several else ""


def _amount_text(part: SegmentVerdict, each: OutputVerdict, *, several: bool) -> str:
    return f"{_segment_place(part, several)}{each.name} ({each.amount})"


# Content of an output


def describe_content(output: str, content: Fingerprint) -> str:
    """Describe the amount and kind of ``content``: ``41 characters of text, 12 tokens``."""
    parts = [f"{count} characters of {key}" for key, count in content.characters.items() if key in _TEXTS]
    if content.calls:
        parts.append(_count_text(content.calls, "tool call"))
    parts += [f"{count} {_LIST_NAMES.get(key, f'elements of {key}')}" for key, count in content.lengths.items()]
    if content.arrays:
        parts.append(_describe_arrays(output, content))
    if not parts and content.has_content:
        parts.append(_count_text(max(1, content.values), "value"))
    return ", ".join(parts) or "empty"


def _count_text(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count} {noun}s"


def _describe_arrays(output: str, content: Fingerprint) -> str:
    shape = content.row_shape
    if output == "audio":
        return f"{content.rows} samples" + (f" of {shape[0]} channels" if shape else "")
    if not shape:
        return f"{content.rows} numbers"
    if len(shape) == 2 and shape[-1] in (3, 4):  # rows of pixels
        return f"{_count_text(content.arrays, 'image')} of {content.rows // content.arrays} x {shape[0]} pixels"
    if len(shape) == 3 and shape[-1] in (3, 4):
        return f"{content.rows} frames of {shape[0]} x {shape[1]} pixels"
    return f"{content.rows} rows of {' x '.join(map(str, shape))}"


# Parts of a chat's answer


def compare_text(kind: str, recorded_text: str, whole: bool, now: str) -> str:
    """Describe where a text with another digest differs.

    ``whole`` is True if ``recorded_text`` is the whole text.
    """
    position = find_text_position(recorded_text, now)
    if position is None or (position == len(recorded_text) and not whole):
        return f"{kind} after the part that the record contains"
    return f"{kind} from character {position} on"


def compare_calls(recorded_calls: str, now: str) -> str:
    """Describe the first tool call that differs."""
    one, other = split_calls(recorded_calls), split_calls(now)
    for number, (before, after) in enumerate(zip(one, other, strict=False)):
        if before[0] != after[0]:
            return f"tool call {number} is {after[0]}, and was {before[0]}"
        if before[1] != after[1]:
            position = find_text_position(before[1], after[1])
            return f"arguments of tool call {number} ({after[0]}) from character {position} on"
    return f"{len(other)} tool calls came, and {len(one)} are recorded"


#: 16-bit steps by which a replayed sample may differ: float sums depend on the batch they ran in.
MAX_SAMPLE_DIFFERENCE = 1
_SPEECH = "vocoder"
#: Finish reason of a chat that called tools, even if the record has no calls.
_CALLED_TOOLS = "tool_calls"


def is_speech(invocation: Invocation, key: tuple[int, str]) -> bool:
    """Return True if an output is a chat's audio: that of its vocoder."""
    return invocation.nodes[key[0]].component == _SPEECH


class ReplayComparison:
    """One run against its recorded end; ``keep`` stores the content that the record names by hash."""

    def __init__(self, recorded_invocation: Invocation, end_record: EndRecord | None, keep: MediaStore) -> None:
        self._recorded = recorded_invocation
        self._ended = end_record
        self._keep = keep

    async def compare(self, running: InflightInvocation, got: AnswerAccumulator) -> SegmentVerdict:
        """Return the verdict on all outputs of ``running``; ``got`` has a chat's answer."""
        name, end_record = self._recorded.id, self._ended
        if end_record is None or end_record.status != "done":
            return SegmentVerdict(name, (), "the recorded invocation has no finished answer")
        outputs = [
            await self._compare_output(end_record, running.invocation, key, stream, got)
            for key, stream in sorted(running.streams.items())
        ]
        return SegmentVerdict(name, await self._name_first_stage(end_record, running, outputs))

    async def _compare_output(
        self,
        end_record: EndRecord,
        now: Invocation,
        key: tuple[int, str],
        stream: ResultStream,
        got: AnswerAccumulator,
    ) -> OutputVerdict:
        node, output = key
        component, content = now.nodes[node].component, stream.fingerprint or Fingerprint()
        verdict = OutputVerdict(f"{component}.{output}", None, describe_content(output, content), component=component)
        if not stream.is_whole:
            return verdict._replace(why="it ended early")
        if (digest := end_record.outputs.get(f"{node}.{output}")) is not None:
            digest_verdict = _compare_digests(verdict, digest, content)
            if digest_verdict.identical is False and isinstance(got, ChoicesAccumulator):
                digest_verdict = digest_verdict._replace(
                    why=_locate_choice(end_record.answer, got) or digest_verdict.why
                )
            if digest_verdict.identical is False and is_speech(now, key) and end_record.answer.audio_sha256:
                return await self._compare_audio(verdict, end_record.answer, got)  # samples may differ by a step
            return digest_verdict
        if now.app != APP or not _has_answer(end_record.answer):
            return verdict._replace(why="the record has no digest of it")
        if is_speech(now, key):
            return await self._compare_audio(verdict, end_record.answer, got)
        return _compare_answer(verdict, end_record.answer, got.to_answer(), content)

    async def _compare_audio(
        self, verdict: OutputVerdict, before: RecordedAnswer, got: AnswerAccumulator
    ) -> OutputVerdict:
        now = got.to_answer()
        if not before.audio_sha256 and not now.audio_sha256:
            return verdict._replace(identical=True, is_empty=True)
        verdict = verdict._replace(amount=f"{len(got.pcm) // 2} samples")
        if not before.audio_sha256 or not now.audio_sha256:
            return verdict._replace(identical=False, why="one side has no samples")
        if before.rate != now.rate:
            return verdict._replace(identical=False, why=f"it has {now.rate} samples/s, and had {before.rate}")
        if before.audio_sha256 == now.audio_sha256:
            return verdict._replace(identical=True)
        try:
            samples = await self._keep.get(before.audio_sha256)
        except OmnibusError:
            return verdict._replace(
                why="its bits differ, and the recorded samples are gone, so the difference is unknown"
            )
        return _compare_samples(verdict, samples, got.pcm)

    # The first stage

    async def _name_first_stage(
        self, end_record: EndRecord, running: InflightInvocation, outputs: Sequence[OutputVerdict]
    ) -> Sequence[OutputVerdict]:
        """Return ``outputs``; if one differs, after the first earlier stage that differs."""
        if all(each.identical is not False for each in outputs):
            return outputs
        first = min(
            key[0] for key, each in zip(sorted(running.streams), outputs, strict=True) if each.identical is False
        )
        kept_outputs = {(one.node, one.output): one for one in end_record.kept}
        for key, capture in sorted(running.tapes.items()):
            if key[0] <= first and key in kept_outputs and key not in running.streams:
                verdict = await self._compare_kept(kept_outputs[key], capture, running.invocation)
                if verdict is not None:
                    return (verdict, *outputs)
        return outputs

    async def _compare_kept(
        self, kept_output: KeptOutput, capture: OutputCapture, now: Invocation
    ) -> OutputVerdict | None:
        """Return the verdict on a kept output that differs; None otherwise."""
        chunks, output_record = capture.chunks, capture.to_record()
        if (
            chunks is None
            or output_record is None
            or not kept_output.digest
            or output_record[0].digest == kept_output.digest
        ):
            return None
        component = now.nodes[kept_output.node].component
        try:
            where = find_position(unpack_chunks(await self._keep.get(kept_output.sha256)), chunks)
        except OmnibusError:  # the kept output is gone
            where = ""
        amount = f"{output_record[0].nbytes} bytes"
        return OutputVerdict(
            f"{component}.{kept_output.output}", False, amount, where or "another digest", False, component
        )


def _has_answer(answer: RecordedAnswer) -> bool:
    """Return True if the record has an answer: one of a client that read it, or of an earlier replay."""
    return bool(answer.text_sha256 or answer.audio_sha256)


def _compare_digests(verdict: OutputVerdict, digest: str, content: Fingerprint) -> OutputVerdict:
    if digest in (content.hexdigest(), content.hexdigest(cached=True)):
        return verdict._replace(identical=True, is_empty=not content.has_content)
    missing = "it was empty" if not digest else "it is empty now" if not content.hexdigest() else ""
    return verdict._replace(identical=False, why=missing or "its digest is another one")


def _locate_choice(before: RecordedAnswer, got: ChoicesAccumulator) -> str:
    """Return the first difference in the texts of all answers, concatenated.

    Empty if they are equal.
    """
    now = got.to_answer()
    if before.text_sha256 == now.text_sha256:
        return ""
    return f"{compare_text(TEXT, before.text, len(before.text) == before.characters, now.text)} of all answers"


def _compare_answer(
    verdict: OutputVerdict, before: RecordedAnswer, now: RecordedAnswer, content: Fingerprint
) -> OutputVerdict:
    """Compare the text of a chat, its reasoning and tool calls."""
    for why in _answer_differences(before, now):
        return verdict._replace(identical=False, why=why)
    if now.calls_sha256 != before.calls_sha256 or now.reasoning_sha256 != before.reasoning_sha256:
        return verdict._replace(why="tool calls or reasoning came, and the record has no digest of them")
    if before.finish_reason == _CALLED_TOOLS and not before.calls_sha256:
        return verdict._replace(why="it called tools, and the record has no digest of its calls")
    return verdict._replace(identical=True, is_empty=not (now.text or now.calls or now.reasoning))


def _answer_differences(before: RecordedAnswer, now: RecordedAnswer) -> Iterator[str]:
    if before.text_sha256 != now.text_sha256:
        whole = len(before.text) == before.characters
        yield compare_text(TEXT, before.text, whole, now.text)
    if before.reasoning_sha256 and before.reasoning_sha256 != now.reasoning_sha256:
        yield compare_text("reasoning", before.reasoning, False, now.reasoning)
    if before.calls_sha256 and before.calls_sha256 != now.calls_sha256:
        yield compare_calls(before.calls, now.calls)


def _compare_samples(verdict: OutputVerdict, before: bytes, now: bytes) -> OutputVerdict:
    one, other = (np.frombuffer(each, "<i2").astype(np.int32) for each in (before, now))
    if len(one) != len(other):
        return verdict._replace(identical=False, why=f"it has {len(other)} samples, and had {len(one)}")
    unequal = np.abs(one - other) > MAX_SAMPLE_DIFFERENCE
    if unequal.any():
        return verdict._replace(identical=False, why=f"from sample {int(unequal.argmax())} on")
    return verdict._replace(
        identical=True, amount=f"{verdict.amount}, to within {MAX_SAMPLE_DIFFERENCE} step of 16 bits"
    )
