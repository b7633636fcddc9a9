"""Play answers while they are generated, and attribute each pause.

Audio is recorded when engines publish it on the bus (``tests.bench.bus_tap``) and when a client has received it. Both
recordings are played by the same rule. Pauses at the bus are due to the engines. Additional pauses at the client are
due to the gateway, the bus, the connection, or a machine whose processors had other work.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from tests.bench.bus_tap import SentAudio
from tests.bench.continued import compute_percentile
from tests.bench.machine_watch import MachineWaits

BYTES_PER_SECOND, SAMPLES_PER_SECOND = 48_000, 24_000
_SAMPLE_SECONDS = 1 / SAMPLES_PER_SECOND
#: Seconds of pauses that do not count as a difference: an event loop's turn and a message on a socket.
SAME_SECONDS = 0.002


@dataclass
class Player:
    """Play one answer once ``buffer`` seconds of it are available; count its pauses."""

    buffer: float
    seconds: float = 0.0  # that have come
    pauses: list[float] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    sizes: list[float] = field(default_factory=list)
    ends: float = 0.0  # what has come is played until then
    turn_ended: float = 0.0  # nothing of an answer is sent before

    def add_audio(self, seconds: float, now: float) -> None:
        """Add more of the answer."""
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
        """Play the audio that engines ``audio`` and a client has ``client_player``."""
        player = cls(heard.buffer)
        for at, samples in sent.pieces:
            player.add_audio(samples / SAMPLES_PER_SECOND, max(at, heard.turn_ended))
        return player

    @property
    def real_time(self) -> float:
        """Seconds that a second of the answer took."""
        return (self.arrivals[-1] - self.arrivals[0]) / self.seconds


class Stretch(NamedTuple):
    """A stretch of an answer: at the bus at ``begin``, received at ``end``."""

    begin: float
    end: float


@dataclass(frozen=True)
class PlayedAnswer:
    """One answer as its client ``heard`` it and as engines ``made`` it.

    ``way`` are the processes between them.
    """

    heard: Player
    made: Player
    way: tuple[str, ...]

    @property
    def is_late_from_engines(self) -> bool:
        """True if there would have been a pause at the bus."""
        return bool(self.made.pauses)

    @property
    def added_seconds(self) -> float:
        """Seconds of pauses at the client that the bus did not have."""
        return max(0.0, sum(self.heard.pauses) - sum(self.made.pauses))

    def list_deliveries(self) -> Iterator[Stretch]:
        """The way of each piece to the client."""
        times = iter(zip(accumulate(self.made.sizes), self.made.arrivals, strict=True))
        there, since = 0.0, 0.0
        for seconds, at in zip(accumulate(self.heard.sizes), self.heard.arrivals, strict=True):
            while there < seconds - _SAMPLE_SECONDS / 2 and (step := next(times, None)) is not None:
                there, since = step
            yield Stretch(since, at)

    @property
    def lateness_seconds(self) -> float:
        """Longest delay between the bus and the client, in seconds."""
        return max((each.end - each.begin for each in self.list_deliveries()), default=0.0)

    def explain_pause(self, machine: MachineWaits) -> str:
        """Work of processes in between while the latest piece passed, in ms."""
        slowest = max(self.list_deliveries(), key=lambda each: each.end - each.begin)
        did = [
            f"{name} ran {1000 * machine.ran_between(name, *slowest):.0f}, "
            f"waited {1000 * machine.seconds_between([name], *slowest):.0f}"
            for name in self.way
        ]
        took = 1000 * (slowest.end - slowest.begin)
        return f"{1000 * self.added_seconds:.0f} ms more than at the bus; a piece took {took:.0f}: {'; '.join(did)}"

    def waited_for_processors(self, machine: MachineWaits) -> bool:
        """Return whether a lack of processors explains the client's added pauses.

        The processes in between must have waited for one as long as the pauses lasted, while a piece was in transit.
        """
        wait_seconds = max((machine.seconds_between(self.way, *each) for each in self.list_deliveries()), default=0.0)
        return wait_seconds >= self.added_seconds


def match_answers(
    heard: Sequence[Player], seed: int, sent: Sequence[SentAudio], way: tuple[str, ...]
) -> Iterator[tuple[Player, PlayedAnswer | None]]:
    """Match answers that a client ``players`` with the audio that engines ``records``.

    ``seed`` is that of the client, and ``way`` are the processes that the audio passed. Dropped answers, which no
    client heard, are left out. An answer has None if nothing was recorded at the bus.
    """
    candidates = [each for each in sent if each.seed == seed and each.whole]
    for player in heard:
        sample_count = round(player.seconds * SAMPLES_PER_SECOND)
        place = next((place for place, each in enumerate(candidates) if each.samples == sample_count), None)
        if place is None:
            yield player, None
            continue
        yield player, PlayedAnswer(player, Player.of_engines(candidates[place], player), way)
        del candidates[: place + 1]


def attribute_underruns(pairs: Sequence[tuple[Player, PlayedAnswer | None]], machine: MachineWaits) -> dict[str, Any]:
    """Attribute the pauses of answers, and measure how late clients received audio.

    Prints the work of the processes in between while a pause of the system occurred.
    """
    answers = [answer for _, answer in pairs if answer is not None]
    late_answers = [each for each in answers if each.added_seconds > SAME_SECONDS]
    waiting_answers = [each for each in late_answers if each.waited_for_processors(machine)]
    for each in late_answers:
        if each not in waiting_answers:
            print(each.explain_pause(machine), file=sys.stderr)
    late = [each.lateness_seconds for each in answers]
    return {
        "answers_matched": len(answers),
        "underruns_unmatched": sum(bool(player.pauses) for player, answer in pairs if answer is None),
        "of_engines": sum(bool(each.heard.pauses) and each.is_late_from_engines for each in answers),
        "of_processors": len(waiting_answers),
        "of_the_system": len(late_answers) - len(waiting_answers),
        "added_ms most": round(1000 * max((each.added_seconds for each in answers), default=0.0)),
        "delivery_ms p50": round(1000 * compute_percentile(late, 0.5)),
        "delivery_ms p99": round(1000 * compute_percentile(late, 0.99)),
    }
