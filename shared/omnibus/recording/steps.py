"""Steps of a recorded invocation: the inputs and outputs of each node, as far as recorded."""

import json
from hashlib import sha256
from typing import Any

import msgspec

from omnibus.graph import DIGEST, HANDLE, Invocation, find_refs
from omnibus.recording.forks import can_begin_at
from omnibus.recording.records import EndRecord, KeptOutput, RecordedAnswer
from omnibus.recording.waterfall import Waterfall
from omnibus.recording.waterfall_builder import build_waterfall
from omnibus.structured.calls import split_calls

#: Most characters of a shown value.
MAX_SHOWN_CHARS = 2000


class StepValue(msgspec.Struct, frozen=True, omit_defaults=True):
    """An input or output of a node.

    ``text`` is the value itself if the record has it, and ``mime`` is set if its bytes can be read from a gateway.
    ``source`` is the node and output that it comes from.
    """

    name: str
    text: str = ""
    source: str = ""
    nbytes: int = 0
    sha256: str = ""
    mime: str = ""
    #: Digest of what an output holds, however it was cut into chunks: equal digests are equal results. ``sha256`` is of
    #: bytes that were kept, or of a chat's text and audio.
    digest: str = ""


class Step(msgspec.Struct, frozen=True):
    """One node of the graph: its end and its values. ``seconds`` are from its beginning to its end."""

    node: int
    component: str
    option: str
    executor: str
    state: str
    seconds: float | None
    inputs: tuple[StepValue, ...]
    outputs: tuple[StepValue, ...]
    #: Whether a fork may begin here: what it reads of nodes before it was kept.
    forkable: bool = False


def build_steps(invocation: Invocation, end_record: EndRecord | None) -> tuple[Step, ...]:
    """Return the steps of the recorded ``invocation``; ``end_record`` is None while it runs."""
    whole: Waterfall = build_waterfall(invocation, end_record)
    kept_outputs = {(one.node, one.output): one for one in (end_record.kept if end_record is not None else ())}
    steps = []
    for row, node in zip(whole.nodes, invocation.nodes, strict=True):
        steps.append(
            Step(
                node=row.node,
                component=row.component,
                option=row.option,
                executor=row.executor,
                state=row.state,
                seconds=None if row.end is None or row.taken is None else round(row.end - row.taken, 6),
                inputs=tuple(_input_value(name, value) for name, value in node.inputs.items()),
                outputs=tuple(_output_values(invocation, end_record, row.node, kept_outputs)),
                forkable=can_begin_at(invocation, end_record, row.node),
            )
        )
    return tuple(steps)


def _input_value(name: str, value: Any) -> StepValue:
    refs = [f"{node}.{output}" for node, output in find_refs(value)]
    if refs:
        return StepValue(name, source=", ".join(refs))
    if isinstance(value, dict) and (HANDLE in value or "sha256" in value or DIGEST in value):
        digest, size = str(value.get("sha256") or value.get(DIGEST, "")), value.get("nbytes")
        readable = DIGEST not in value
        mime = str(value.get("mime") or "application/json") if readable else ""
        return StepValue(name, nbytes=size if isinstance(size, int) else 0, sha256=digest, mime=mime)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return StepValue(name, text[:MAX_SHOWN_CHARS], nbytes=len(text.encode()))


def _output_values(
    invocation: Invocation, end: EndRecord | None, node: int, kept_outputs: dict[tuple[int, str], KeptOutput]
) -> list[StepValue]:
    """Return the outputs of ``node`` for nodes, an app or the client."""
    values = []
    read = [use[1] for each in invocation.nodes for use in each.uses if use[0] == node]
    names = dict.fromkeys([*read, *(output for at, output in invocation.outputs if at == node)])
    answer = end.answer if end is not None else RecordedAnswer()
    for name in names:
        one, text, whole = kept_outputs.get((node, name)), "", ""
        if (node, name) in invocation.outputs and name == "text":
            text, whole = _answer_text(answer)[:MAX_SHOWN_CHARS], _answer_digest(answer)
        digest = (end.outputs.get(f"{node}.{name}", "") if end is not None else "") or (one.digest if one else "")
        if one is None:
            audio = answer.audio_sha256 if name == "audio" else ""
            values.append(
                StepValue(name, text, sha256=audio or whole, mime="audio/wav" if audio else "", digest=digest)
            )
        else:
            values.append(StepValue(name, text, nbytes=one.nbytes, sha256=one.sha256, mime="*/*", digest=digest))
    return values


def _answer_text(answer: RecordedAnswer) -> str:
    """Return the text of a chat; without text, its calls of tools."""
    calls = (f"{name}({arguments})" for name, arguments in split_calls(answer.calls))
    return answer.text or " ".join(calls)


def _answer_digest(answer: RecordedAnswer) -> str:
    """Return a digest of text, calls and reasoning; empty if there are none, or it is unknown."""
    digests = (answer.calls_sha256, answer.reasoning_sha256)
    if any(digests):
        return sha256("".join((answer.text_sha256, *digests)).encode()).hexdigest()
    return answer.text_sha256 if answer.text or answer.characters else ""
