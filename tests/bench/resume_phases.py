"""Phases of the silence of a resumed session, in order.

    reconnect   connections that were refused or broke, and the pauses between them
    handshake   the successful connection: the gateway reads the log of the session before it resumes it
    replay      events that the client has not seen, up to ``session.resumed``
    dispatch    until the gateway has sent the response to the executors again
    thinker     until the first text of it, or the first rows for the talker
    talker      until the first codes
    vocoder     until the first samples
    delivery    until its client has them: decoded, logged and sent

Each phase begins at the end of the one before.
"""

from collections.abc import Mapping, Sequence

from tests.bench.bus_tap import SentAudio
from tests.bench.continued import compute_percentile
from tests.e2e.small.conversations import CONNECTS, OPENED, RESUMED, Gap

#: Outputs by which each stage is seen to have begun to answer.
_STAGES = (("thinker", ("rows", "text")), ("talker", ("codes",)), ("vocoder", ("audio",)))
PHASES = ("reconnect", "handshake", "replay", "dispatch", *(name for name, _ in _STAGES), "delivery")


def find_invocation(gap: Gap, records: Sequence[SentAudio]) -> SentAudio | None:
    """Find the invocation that continued the answer after ``gap``."""
    since = gap.begin + gap.find_last(CONNECTS)
    later = [each for each in records if each.seed == gap.seed and since <= each.sent <= gap.begin + gap.seconds]
    return min(later, key=lambda each: each.sent, default=None)


def split_gap(gap: Gap, records: Sequence[SentAudio]) -> dict[str, float]:
    """Seconds of each phase of ``gap``, without phases that it lacked."""
    ends = [("reconnect", gap.find_last(CONNECTS)), ("handshake", gap.find_last(OPENED))]
    if resume_time := gap.find_last(RESUMED):
        ends.append(("replay", resume_time))
        if (invocation := find_invocation(gap, records)) is not None:
            ends += [
                (name, at - gap.begin) for name, at in _stage_times(invocation, speaks="audio." in gap.steps[-1][1])
            ]
    ends.append(("delivery" if resume_time else "replay", gap.seconds))
    phases, before = dict[str, float](), 0.0
    for name, at in ends:
        phases[name] = phases.get(name, 0.0) + max(0.0, min(at, gap.seconds) - before)
        before = max(before, at)
    return phases


def _stage_times(invocation: SentAudio, *, speaks: bool) -> list[tuple[str, float]]:
    times = [("dispatch", invocation.sent)]
    for name, outputs in _STAGES if speaks else (("thinker", ("text",)),):
        moments = [invocation.first[output] for output in outputs if output in invocation.first]
        if moments:
            times.append((name, min(moments)))
    return times


def summarize_phases(gaps: Sequence[Mapping[str, float]]) -> dict[str, list[int]]:
    """Milliseconds of each phase: the median, the 99th percentile and the most."""
    return {
        name: [
            round(1000 * compute_percentile([each.get(name, 0.0) for each in gaps], share))
            for share in (0.5, 0.99, 1.0)
        ]
        for name in PHASES
    }
