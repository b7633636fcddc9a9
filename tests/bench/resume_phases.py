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
from tests.bench.continued import percentile
from tests.e2e.small.conversations import CONNECTS, OPENED, RESUMED, Gap

#: Outputs by which each stage is seen to have begun to answer.
_STAGES = (("thinker", ("rows", "text")), ("talker", ("codes",)), ("vocoder", ("audio",)))
PHASES = ("reconnect", "handshake", "replay", "dispatch", *(name for name, _ in _STAGES), "delivery")


def find_invocation(gap: Gap, sent: Sequence[SentAudio]) -> SentAudio | None:
    """Find the invocation that continued the answer after ``gap``."""
    since = gap.begin + gap.find_last(CONNECTS)
    later = [each for each in sent if each.seed == gap.seed and since <= each.sent <= gap.begin + gap.seconds]
    return min(later, key=lambda each: each.sent, default=None)


def split_gap(gap: Gap, sent: Sequence[SentAudio]) -> dict[str, float]:
    """Seconds of each phase of ``gap``, without phases that it lacked."""
    ends = [("reconnect", gap.find_last(CONNECTS)), ("handshake", gap.find_last(OPENED))]
    if resumed := gap.find_last(RESUMED):
        ends.append(("replay", resumed))
        if (made := find_invocation(gap, sent)) is not None:
            ends += [(name, at - gap.begin) for name, at in _stage_times(made, speaks="audio." in gap.steps[-1][1])]
    ends.append(("delivery" if resumed else "replay", gap.seconds))
    found, before = dict[str, float](), 0.0
    for name, at in ends:
        found[name] = found.get(name, 0.0) + max(0.0, min(at, gap.seconds) - before)
        before = max(before, at)
    return found


def _stage_times(made: SentAudio, *, speaks: bool) -> list[tuple[str, float]]:
    times = [("dispatch", made.sent)]
    for name, outputs in _STAGES if speaks else (("thinker", ("text",)),):
        known = [made.first[output] for output in outputs if output in made.first]
        if known:
            times.append((name, min(known)))
    return times


def summarize_phases(gaps: Sequence[Mapping[str, float]]) -> dict[str, list[int]]:
    """Milliseconds of each phase: the median, the 99th percentile and the most."""
    return {
        name: [round(1000 * percentile([each.get(name, 0.0) for each in gaps], share)) for share in (0.5, 0.99, 1.0)]
        for name in PHASES
    }
