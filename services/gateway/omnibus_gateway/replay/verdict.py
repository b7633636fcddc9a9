"""Verdicts on replays: the compared outputs, their amount, and the first difference.

``identical`` is True if all requested outputs are equal, and not all are empty. It is False if an output differs. It is
None if that is unknown: the record lacks an answer, a digest or samples, or there was nothing to compare. Pure, no I/O.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from omnibus.errors import OmnibusError, ProblemDetails
from omnibus.structured.calls import split_calls
from omnibus_gateway.dispatch.streams import Fingerprint
from omnibus_gateway.replay.positions import find_text_position

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
