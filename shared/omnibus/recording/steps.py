"""Steps of a recorded invocation: the inputs and outputs of each node, as far as recorded.

Forks of recorded invocations: the same graph and seed with one input changed, to run as a replay.
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec

from omnibus import graph
from omnibus.errors import BadRequest
from omnibus.graph import DIGEST, HANDLE, GraphNode, Invocation, find_refs
from omnibus.recording.records import EndRecord, KeptOutput, RecordedAnswer
from omnibus.recording.waterfall import Waterfall, build_waterfall
from omnibus.structured.calls import split_calls

#: Prefix of the name for executors of stages whose recorded outputs are replayed.
PLAYER_PREFIX = "record-of-"


def parse_change(text: str) -> tuple[str, Any]:
    """Parse ``params.temperature=0.2`` into path and value, which is JSON or else text. Raises ``BadRequest``."""
    where, separator, value = text.partition("=")
    if not separator or not where.strip():
        raise BadRequest(f"a change is INPUT=VALUE or INPUT.KEY=VALUE, as params.temperature=0.2, not {text[:80]!r}")
    try:
        return where.strip(), json.loads(value)
    except ValueError:
        return where.strip(), value


def find_node(invocation: Invocation, stage: str) -> int:
    """Return the number of the node ``stage``, a number or a component. Raises ``BadRequest``."""
    components = [node.component for node in invocation.nodes]
    if stage in components:
        return components.index(stage)
    if stage.isascii() and stage.isdigit() and int(stage) < len(components):
        return int(stage)
    stage_names = ", ".join(f"{index} ({component})" for index, component in enumerate(components))
    raise BadRequest(f"unknown stage {stage[:40]!r}; there is {stage_names}", param="stage")


def fork_invocation(invocation: Invocation, node: int, changes: Mapping[str, Any], seed: int | None) -> Invocation:
    """Return ``invocation`` with ``changes`` to ``node``, and ``seed`` if given.

    Raises ``BadRequest`` for inputs that are not literals of the node: outputs of other nodes, and media.
    """
    if not changes and seed is None:
        raise BadRequest("a fork changes something: give an input, as params.temperature=0.2, or a seed")
    inputs = dict(invocation.nodes[node].inputs)
    for where, value in changes.items():
        name, *keys = where.split(".")
        if name not in inputs:
            raise BadRequest(
                f"{invocation.nodes[node].component} has no input {name[:40]!r}; it has {', '.join(inputs)}"
            )
        inputs[name] = _replace_value(where, inputs[name], keys, value)
    nodes = list(invocation.nodes)
    nodes[node] = graph.with_inputs(nodes[node], inputs)
    return msgspec.structs.replace(
        invocation, nodes=tuple(nodes), seed=invocation.seed if seed is None else seed, resumes=()
    )


def can_begin_at(invocation: Invocation, end: EndRecord | None, node: int) -> bool:
    """Return whether everything a replay from ``node`` reads was kept."""
    kept_outputs = {(one.node, one.output) for one in (end.kept if end is not None else ())}
    return all(use in kept_outputs for later in invocation.nodes[node:] for use in later.uses if use[0] < node)


def changeable_inputs(node: GraphNode) -> tuple[str, ...]:
    """Return the inputs of ``node`` that a fork can change: not media, and not outputs of other nodes."""
    return tuple(name for name, value in node.inputs.items() if not any(find_refs(value)) and not _is_media(value))


def start_headers(invocation: Invocation, end: EndRecord | None, node: int) -> dict[str, str]:
    """Return the headers to start a replay at ``node``; none if it must start at the beginning."""
    return {"Omnibus-From": str(node)} if node and can_begin_at(invocation, end, node) else {}


def _replace_value(where: str, old: Any, keys: list[str], value: Any) -> Any:
    if any(find_refs(old)):
        raise BadRequest(f"{where[:80]} is an output of another node: change an input of that node", param=where[:80])
    if isinstance(old, dict) and (HANDLE in old or DIGEST in old):
        if keys or _is_media(old):
            raise BadRequest(
                f"{where[:80]} is not in the record itself: media cannot be changed, and a long text only as a whole",
                param=where[:80],
            )
        return value
    if not keys:
        return _replace_text(old, value) if isinstance(value, str) and _has_media_parts(old) else value
    key, *rest = keys
    if isinstance(old, dict):
        return {**old, key: _replace_value(where, old.get(key), rest, value)}
    if isinstance(old, list) and key.isdigit() and int(key) < len(old):
        return [_replace_value(where, each, rest, value) if at == int(key) else each for at, each in enumerate(old)]
    if old is None:
        return {key: _replace_value(where, None, rest, value)}
    raise BadRequest(f"{where[:80]} has no key {key[:40]!r}", param=where[:80])


def _is_media(value: Any) -> bool:
    """Return whether ``value`` stands for bytes outside the record: media, or an input recorded as a digest."""
    if not isinstance(value, dict) or not (HANDLE in value or DIGEST in value):
        return False
    return DIGEST in value or value.get("modality", "text") != "text"


def _has_media_parts(content: Any) -> bool:
    """Return whether ``content`` is that of a message with media."""
    if not isinstance(content, list) or not all(isinstance(part, dict) and "type" in part for part in content):
        return False
    return any(part["type"] != "text" for part in content)


def _replace_text(content: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Return ``content`` with its media and ``text``, which replaces the first text and removes the others."""
    places = [index for index, part in enumerate(content) if part["type"] == "text"]
    if not places:
        return [*content, {"type": "text", "text": text}]
    first = places[0]
    kept_parts = [part for part in content[first + 1 :] if part["type"] != "text"]
    return [*content[:first], {**content[first], "text": text}, *kept_parts]


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
    #: Inputs that a fork can change.
    changeable: tuple[str, ...] = ()


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
                changeable=changeable_inputs(node),
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
