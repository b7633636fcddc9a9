"""Steps of a recorded invocation, edge by edge: what each node got and gave, as far as it is in the record."""

import json
from typing import Any

import msgspec

from omnibus.graph import DIGEST, HANDLE, Invocation, find_refs
from omnibus.recording.forks import can_begin_at
from omnibus.recording.records import EndRecord, KeptOutput
from omnibus.recording.waterfall import Waterfall
from omnibus.recording.waterfall_builder import build_waterfall

#: Characters of a value that are shown.
MAX_SHOWN_CHARS = 2000


class StepValue(msgspec.Struct, frozen=True, omit_defaults=True):
    """A value that a node got or gave. ``text`` is the value itself where the record has it, and ``mime`` is set where
    its bytes can be read from a gateway. ``source`` names the node and output that it comes from.
    """

    name: str
    text: str = ""
    source: str = ""
    nbytes: int = 0
    sha256: str = ""
    mime: str = ""
    #: Digest of what an output holds, however it was cut into chunks: equal digests are equal results.
    digest: str = ""


class Step(msgspec.Struct, frozen=True):
    """One node of the graph: how it ended, and its values. ``seconds`` are from its beginning to its end."""

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


def build_steps(invocation: Invocation, ended: EndRecord | None) -> tuple[Step, ...]:
    """The steps of an invocation that was recorded as ``invocation``; ``ended`` is None while it runs."""
    whole: Waterfall = build_waterfall(invocation, ended)
    kept = {(one.node, one.output): one for one in (ended.kept if ended is not None else ())}
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
                outputs=tuple(_output_values(invocation, ended, row.node, kept)),
                forkable=can_begin_at(invocation, ended, row.node),
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
    invocation: Invocation, ended: EndRecord | None, node: int, kept: dict[tuple[int, str], KeptOutput]
) -> list[StepValue]:
    """Outputs of ``node``: those that others read, those that an app read, and those that the client got."""
    found = []
    read = [use[1] for each in invocation.nodes for use in each.uses if use[0] == node]
    names = dict.fromkeys([*read, *(output for at, output in invocation.outputs if at == node)])
    for name in names:
        one = kept.get((node, name))
        asked = (node, name) in invocation.outputs
        text = ended.answer.text[:MAX_SHOWN_CHARS] if asked and name == "text" and ended is not None else ""
        digest = (ended.outputs.get(f"{node}.{name}", "") if ended is not None else "") or (one.digest if one else "")
        if one is None:
            sound = ended.answer.audio_sha256 if ended is not None and name == "audio" else ""
            found.append(StepValue(name, text, sha256=sound, mime="audio/wav" if sound else "", digest=digest or sound))
        else:
            found.append(StepValue(name, text, nbytes=one.nbytes, sha256=one.sha256, mime="*/*", digest=digest))
    return found
