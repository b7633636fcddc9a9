"""Outcomes of requests, jobs and faults: plain data that clients write and the judge reads.

Times are seconds since the run began, by one clock.
"""

from dataclasses import dataclass, field

#: Ends of a connection that a client sees instead of an answer.
REFUSED, RESET, CUT, LEFT, HANG = "refused", "reset", "cut", "left", "hang"


@dataclass(frozen=True)
class ChaosOutcome:
    """Outcome of one request.

    ``status`` is HTTP's, 0 without an answer. ``answer`` is the exact text, or the 16-bit samples. ``code`` is that of
    a typed error, including one within a stream. ``broken`` names an end without such an error: one of the constants
    above. ``harmless``: the request is valid, so it must not be rejected for its content.
    """

    number: int
    case: str
    gateway: int
    begin: float
    end: float
    status: int = 0
    answer: str = ""
    samples: tuple[int, ...] | None = None
    code: str = ""
    broken: str = ""
    streamed: bool = False
    retry_after: bool = False
    harmless: bool = True
    detail: str = ""

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    @property
    def is_ok(self) -> bool:
        return 200 <= self.status < 300 and not self.code and not self.broken


@dataclass
class Job:
    """One accepted job: its states as gateways reported them, and any error.

    Each state has the end that the gateway named (0: none).
    """

    id: str
    accepted: float
    states: list[tuple[float, str, int]] = field(default_factory=list)
    error: str = ""

    def record_state(self, at: float, status: str, end: int) -> None:
        """Record a state unless it equals the last one."""
        if not self.states or self.states[-1][1:] != (status, end):
            self.states.append((at, status, end))


@dataclass(frozen=True)
class FaultEvent:
    """One fault: ``verb`` at ``victim``, which plays ``role``, for ``seconds``.

    ``gateway`` is the index of the gateway that is hit, or -1. ``cases`` are those that can show whether the victim
    serves again; empty for all. ``skipped`` is the reason if it was not injected.
    """

    number: int
    at: float
    role: str
    verb: str
    victim: str = ""
    seconds: float = 0.0
    gateway: int = -1
    cases: tuple[str, ...] = ()
    skipped: str = ""

    @property
    def name(self) -> str:
        return f"{self.role} {self.verb}"


@dataclass(frozen=True)
class ProcessSample:
    """One look at a process."""

    at: float
    process: str
    pid: int
    memory_bytes: int
    descriptors: int


@dataclass(frozen=True)
class Attack:
    """One connection of a slow or hostile client.

    ``seconds`` is the time until it was rejected or closed.
    """

    name: str
    seconds: float
    closed: bool


@dataclass
class Record:
    """All of a run."""

    seed: int
    seconds: float
    outcomes: list[ChaosOutcome] = field(default_factory=list)
    answers: dict[str, ChaosOutcome] = field(default_factory=dict)  # undisturbed, by case
    jobs: list[Job] = field(default_factory=list)
    events: list[FaultEvent] = field(default_factory=list)
    samples: list[ProcessSample] = field(default_factory=list)
    attacks: list[Attack] = field(default_factory=list)
    blocks_left: int = 0
    leftovers: list[str] = field(default_factory=list)
    #: The longest time, in seconds, for which no client was served because this process had no processor or was busy.
    stalled_seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
