"""Answers as clients play them while they are made, and what each pause in them is due to.

Audio is noted where it comes onto the bus from the engines (``tests.bench.bus_tap``) and where a client has it. An answer is played at
both places by the same rule, so that the pauses there would have been at the bus are the engines' own, and what a client
has beyond them came between: gateway, bus and connection, or a machine whose processors had other work.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from tests.bench.bus_tap import SentAudio
from tests.bench.continued import percentile
from tests.bench.machine_watch import MachineWaits

BYTES_PER_SECOND, SAMPLES_PER_SECOND = 48_000, 24_000
_SAMPLE_SECONDS = 1 / SAMPLES_PER_SECOND
#: Seconds of pauses that are no difference: an event loop's turn and a message on a socket.
SAME_SECONDS = 0.002


@dataclass
class Player:
    """Plays one answer once it has ``buffer`` seconds of it; counts the pauses in it."""

    buffer: float
    seconds: float = 0.0  # that have come
    pauses: list[float] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    sizes: list[float] = field(default_factory=list)
    ends: float = 0.0  # what has come is played until then
    turn_ended: float = 0.0  # nothing of an answer is sent before

    def add(self, seconds: float, now: float) -> None:
        """More of the answer has come."""
        self.arrivals.append(now)
        self.sizes.append(seconds)
        before, self.seconds = self.seconds, self.seconds + seconds
        if self.seconds < self.buffer:
            return
        if before < self.buffer:  # it begins
            self.ends = now + self.seconds
            return
        if now > self.ends:
            self.pauses.append(now - self.ends)
            self.ends = now
        self.ends += seconds

    @classmethod
    def of_engines(cls, sent: SentAudio, heard: "Player") -> "Player":
        """Plays what engines have ``sent``, of which a client has ``heard`` the same."""
        player = cls(heard.buffer)
        for at, samples in sent.pieces:
            player.add(samples / SAMPLES_PER_SECOND, max(at, heard.turn_ended))
        return player

    @property
    def real_time(self) -> float:
        """Seconds that a second of the answer took."""
        return (self.arrivals[-1] - self.arrivals[0]) / self.seconds


class Stretch(NamedTuple):
    """Some of an answer was at the bus at ``begin`` and with its client at ``end``."""

    begin: float
    end: float


@dataclass(frozen=True)
class PlayedAnswer:
    """One answer as its client ``heard`` it and as engines have ``made`` it; ``way`` are the processes between them."""

    heard: Player
    made: Player
    way: tuple[str, ...]

    @property
    def is_late_from_engines(self) -> bool:
        """True if there would have been a pause at the bus."""
        return bool(self.made.pauses)

    @property
    def added_seconds(self) -> float:
        """Seconds of pauses that its client had and that there would not have been at the bus."""
        return max(0.0, sum(self.heard.pauses) - sum(self.made.pauses))

    def deliveries(self) -> Iterator[Stretch]:
        """The way of each piece to the client."""
        times = iter(zip(accumulate(self.made.sizes), self.made.arrivals, strict=True))
        there, since = 0.0, 0.0
        for seconds, at in zip(accumulate(self.heard.sizes), self.heard.arrivals, strict=True):
            while there < seconds - _SAMPLE_SECONDS / 2 and (step := next(times, None)) is not None:
                there, since = step
            yield Stretch(since, at)

    @property
    def lateness(self) -> float:
        """Seconds by which the client had some of it later than the bus, at most."""
        return max((each.end - each.begin for each in self.deliveries()), default=0.0)

    def explain(self, machine: MachineWaits) -> str:
        """What those on its way did while the piece that came latest was on it, in milliseconds."""
        slowest = max(self.deliveries(), key=lambda each: each.end - each.begin)
        did = [
            f"{name} ran {1000 * machine.ran_between(name, *slowest):.0f}, "
            f"waited {1000 * machine.seconds_between([name], *slowest):.0f}"
            for name in self.way
        ]
        took = 1000 * (slowest.end - slowest.begin)
        return f"{1000 * self.added_seconds:.0f} ms more than at the bus; a piece took {took:.0f}: {'; '.join(did)}"

    def waited_for_processors(self, machine: MachineWaits) -> bool:
        """Return whether the processes on its way had no processor for as long as its client's own pauses, while a piece
        was on its way."""
        waited = max((machine.seconds_between(self.way, *each) for each in self.deliveries()), default=0.0)
        return waited >= self.added_seconds


def match_answers(
    heard: Sequence[Player], seed: int, sent: Sequence[SentAudio], way: tuple[str, ...]
) -> Iterator[tuple[Player, PlayedAnswer | None]]:
    """Each answer that a client of ``seed`` has ``heard``, with what engines ``sent`` for it, which came to it through
    the processes ``way``. Dropped ones, which nobody heard, are left out; None where nothing is known of what was
    sent."""
    made = [each for each in sent if each.seed == seed and each.whole]
    for player in heard:
        wanted = round(player.seconds * SAMPLES_PER_SECOND)
        place = next((place for place, each in enumerate(made) if each.samples == wanted), None)
        if place is None:
            yield player, None
            continue
        yield player, PlayedAnswer(player, Player.of_engines(made[place], player), way)
        del made[: place + 1]


def attribute_underruns(matched: Sequence[tuple[Player, PlayedAnswer | None]], machine: MachineWaits) -> dict[str, Any]:
    """What the pauses of answers are due to, and how late clients had what engines had made. Prints what those on the way
    did while a pause of the system came to be."""
    answers = [answer for _, answer in matched if answer is not None]
    added = [each for each in answers if each.added_seconds > SAME_SECONDS]
    waited = [each for each in added if each.waited_for_processors(machine)]
    for each in added:
        if each not in waited:
            print(each.explain(machine), file=sys.stderr)
    late = [each.lateness for each in answers]
    return {
        "answers_matched": len(answers),
        "underruns_unmatched": sum(bool(player.pauses) for player, answer in matched if answer is None),
        "of_engines": sum(bool(each.heard.pauses) and each.is_late_from_engines for each in answers),
        "of_processors": len(waited),
        "of_the_system": len(added) - len(waited),
        "added_ms most": round(1000 * max((each.added_seconds for each in answers), default=0.0)),
        "delivery_ms p50": round(1000 * percentile(late, 0.5)),
        "delivery_ms p99": round(1000 * percentile(late, 0.99)),
    }
