"""Comparison of one replayed graph with its record, output by output.

The record has digests of outputs that an app read. The answer of a plain chat has those of its text, reasoning and tool
calls, and its samples, which may differ by ``MAX_SAMPLE_DIFFERENCE``. Outputs between stages are compared if they were
kept, to name the first stage that made a difference.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from omnibus.errors import OmnibusError
from omnibus.graph import Invocation
from omnibus.recording.records import EndRecord, KeptOutput, RecordedAnswer
from omnibus_gateway.dispatch.inflight import TEXT, InflightInvocation
from omnibus_gateway.dispatch.retention import OutputCapture, unpack_chunks
from omnibus_gateway.dispatch.streams import Fingerprint, ResultStream
from omnibus_gateway.media.blob_store import MediaStore
from omnibus_gateway.replay.positions import find_position
from omnibus_gateway.replay.verdict import (
    OutputVerdict,
    SegmentVerdict,
    compare_calls,
    compare_text,
    describe_content,
)
from omnibus_gateway.request.accumulator import AnswerAccumulator, ChoicesAccumulator
from omnibus_gateway.tasks.chat import APP

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
