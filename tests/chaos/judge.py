"""Check the promises of docs/reliability.md against a recorded run.

The judge does no I/O, so unit tests cover it.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.chaos.outcome import (
    CUT,
    HANG,
    LEFT,
    REFUSED,
    RESET,
    Attack,
    ChaosOutcome,
    FaultEvent,
    Job,
    ProcessSample,
    Record,
)

#: Answers from which on a p99 is more than the slowest of a few.
ENOUGH = 50
#: Parts of a process's life that are compared; a burst within one is not growth.
_PARTS = 6


@dataclass(frozen=True)
class Bounds:
    """Promises in numbers."""

    deadline_seconds: float = 30.0
    late_seconds: float = 2.0
    #: Steps of 16 bits by which an audio sample may differ.
    sound_steps: int = 1
    #: From a fault to the first good answer of a request that began after it.
    recovery_seconds: float = 60.0
    #: A process that was frozen is noticed and replaced, or its work is done elsewhere.
    frozen_seconds: float = 30.0
    #: Seconds after a fault of a gateway in which its connections may break, or be refused.
    gateway_seconds: float = 20.0
    #: Seconds for which a gateway answers its requests after SIGTERM, before it ends and restarts.
    drain_seconds: float = 30.0
    #: Growth of a process that goes on once it is warm, and the least length of a run that is judged by memory.
    growth_bytes: int = 64 << 20
    growth_descriptors: int = 32
    memory_after_seconds: float = 600.0
    #: Single growth that is not a leak: caches fill up to OMNIBUS_EXECUTOR_CACHE_MIB and OMNIBUS_GATEWAY_RETAIN_BYTES,
    #: and the allocator keeps the memory of the largest file so far.
    held_bytes: int = 256 << 20
    #: A process that has just begun grows until it has done everything once; after that it is judged if it went on for
    #: so long. In short runs these are a fifth and a quarter of the run.
    warm_seconds: float = 120.0
    judged_seconds: float = 240.0
    #: A client that drips is cut off.
    drip_seconds: float = 45.0


@dataclass(frozen=True)
class Violation:
    """One broken promise."""

    promise: str
    detail: str


def judge_record(record: Record, bounds: Bounds) -> list[Violation]:
    """Every promise that ``record`` breaks."""
    return [
        *_check_requests(record, bounds),
        *_check_jobs(record),
        *_check_leaks(record, bounds),
        *_check_recovery(record, bounds),
        *_cut_off(record.attacks, bounds),
    ]


# Requests


def _check_requests(record: Record, bounds: Bounds) -> Iterator[Violation]:
    for outcome in record.outcomes:
        if fault := _find_fault(outcome, record, bounds):
            promise, why = fault
            where = f"request {outcome.number} ({outcome.case}, gateway {outcome.gateway}, at {outcome.begin:.1f} s)"
            yield Violation(promise, f"{where}: {why}")


def _find_fault(outcome: ChaosOutcome, record: Record, bounds: Bounds) -> tuple[str, str] | None:
    if outcome.broken == LEFT:
        return None
    hit = gateway_hit(outcome, record.events, bounds)
    if outcome.broken == HANG or outcome.seconds > bounds.deadline_seconds + bounds.late_seconds:
        return None if hit else ("no hang", f"took {outcome.seconds:.1f} s; {outcome.code or outcome.broken}")
    if outcome.broken in (REFUSED, RESET, CUT):
        return None if hit else ("no untyped error", f"{outcome.broken} {outcome.detail}")
    if outcome.is_ok:
        return _find_wrong(outcome, record.answers.get(outcome.case), bounds)
    return _badly_refused(outcome)


def _badly_refused(outcome: ChaosOutcome) -> tuple[str, str] | None:
    if not outcome.code:
        return "no untyped error", f"status {outcome.status}: {outcome.detail[:200]}"
    if outcome.status == 429 and not outcome.retry_after:
        return "a refusal says when to try again", f"429 without Retry-After: {outcome.detail[:200]}"
    if outcome.code in ("overloaded",) and outcome.status == 200:
        return "a refusal says when to try again", "a refusal inside a stream that began with 200"
    if outcome.harmless and 400 <= outcome.status < 500 and outcome.status != 429:
        return "no wrong answer", f"a good request was refused: {outcome.status} {outcome.code} {outcome.detail[:200]}"
    if not outcome.harmless and outcome.status >= 500 and outcome.code in ("internal_error", "stage_failed"):
        return "bad input is a client's error", f"{outcome.status} {outcome.code} {outcome.detail[:200]}"
    return None


def _find_wrong(outcome: ChaosOutcome, reference: ChaosOutcome | None, bounds: Bounds) -> tuple[str, str] | None:
    if reference is None:
        return None
    if outcome.samples is not None and reference.samples is not None:
        if len(outcome.samples) != len(reference.samples):
            return "no wrong answer", f"{len(outcome.samples)} samples, not {len(reference.samples)}"
        pairs = zip(outcome.samples, reference.samples, strict=True)
        steps = max((abs(one - other) for one, other in pairs), default=0)
        return ("no wrong answer", f"sound differs by {steps} steps") if steps > bounds.sound_steps else None
    if outcome.answer != reference.answer:
        return "no wrong answer", f"{outcome.answer[:100]!r}, undisturbed {reference.answer[:100]!r}"
    return None


def gateway_hit(outcome: ChaosOutcome, events: Sequence[FaultEvent], bounds: Bounds) -> bool:
    """Return True if the gateway was hit or starting meanwhile.

    The fault killed or froze the gateway. A gateway that receives SIGTERM still answers its requests with typed errors;
    it may refuse only new connections.
    """
    for event in events:
        if event.gateway != outcome.gateway or event.skipped:
            continue
        until = event.at + event.seconds + bounds.gateway_seconds
        until += bounds.drain_seconds if event.verb == "term" else 0.0
        meanwhile = event.at <= outcome.end and outcome.begin <= until
        if meanwhile and (event.verb != "term" or outcome.broken == REFUSED or outcome.begin > event.at):
            return True
    return False


# Jobs


def _check_jobs(record: Record) -> Iterator[Violation]:
    for job in record.jobs:
        if why := _job_fault(job):
            yield Violation("no job lost or made twice", f"{job.id}, accepted at {job.accepted:.1f} s: {why}")


def _job_fault(job: Job) -> str:
    states = [status for _, status, _ in job.states]
    if "not_found" in states:
        return f"it is gone: {' > '.join(states)}"
    if not states or states[-1] not in ("completed", "failed"):
        return f"it never ended: {' > '.join(states) or 'never seen'}"
    if states[-1] == "failed":
        return f"it failed: {job.error}"
    first = states.index("completed")
    if any(status != "completed" for status in states[first:]):
        return f"it went back: {' > '.join(states)}"
    ends = {end for _, status, end in job.states if status == "completed"}
    return f"it was made {len(ends)} times" if len(ends) > 1 else ""


# Leftovers


def _check_leaks(record: Record, bounds: Bounds) -> Iterator[Violation]:
    if record.blocks_left:
        yield Violation("nothing leaked", f"{record.blocks_left} blocks of the arena are still leased")
    for leftover in record.leftovers:
        yield Violation("nothing leaked", f"left after the end: {leftover}")
    for (process, pid), all_samples in _by_process(record.samples).items():
        if not (samples := _warm_samples(all_samples, record.seconds, bounds)):
            continue
        since = f"in the {samples[-1].at - samples[0].at:.0f} s after it was warm"
        memory, steady = _measure_growth([sample.memory_bytes for sample in samples])
        grew = steady > bounds.growth_bytes or memory > bounds.held_bytes
        if record.seconds >= bounds.memory_after_seconds and grew:
            yield Violation("memory flat", f"{process} ({pid}) grew by {memory / 2**20:.0f} MiB {since}")
        descriptors, steady = _measure_growth([sample.descriptors for sample in samples])
        if steady > bounds.growth_descriptors:
            yield Violation("descriptors flat", f"{process} ({pid}) opened {descriptors:.0f} more {since}")


def _warm_samples(samples: Sequence[ProcessSample], seconds: float, bounds: Bounds) -> list[ProcessSample]:
    """Samples of one warm process; none if it ran too briefly."""
    begin = samples[0].at + min(bounds.warm_seconds, seconds / 5)
    warm = [sample for sample in samples if sample.at >= begin]
    enough = len(warm) >= _PARTS and warm[-1].at - warm[0].at >= min(bounds.judged_seconds, seconds / 4)
    return warm if enough else []


def _measure_growth(values: Sequence[float]) -> tuple[float, float]:
    """Growth over ``values``, and the steady part of it.

    A leak grows in most parts. A process that once needs more memory for a larger file, and keeps it, grows in a few.
    """
    edges = [len(values) * part // _PARTS for part in range(_PARTS + 1)]
    levels = [statistics.median(values[begin:end]) for begin, end in pairwise(edges)]
    steps = [after - before for before, after in pairwise(levels)]
    return sum(steps), min(sum(steps), len(steps) * statistics.median(steps))


def _by_process(samples: Sequence[ProcessSample]) -> dict[tuple[str, int], list[ProcessSample]]:
    groups: dict[tuple[str, int], list[ProcessSample]] = defaultdict(list)
    for sample in samples:
        groups[sample.process, sample.pid].append(sample)
    return groups


# Recovery


def measure_recovery(event: FaultEvent, outcomes: Sequence[ChaosOutcome]) -> float | None:
    """Seconds from a fault until the first good answer ended, or None.

    The request of that answer must have begun after the fault.
    """
    ends = [
        outcome.end
        for outcome in outcomes
        if outcome.is_ok
        and outcome.begin >= event.at
        and (not event.cases or outcome.case in event.cases)
        and (event.gateway < 0 or outcome.gateway == event.gateway)
    ]
    return min(ends) - event.at if ends else None


def list_recoveries(record: Record) -> dict[str, list[float]]:
    """Recovery times by name of fault, without faults that lack later requests."""
    times: dict[str, list[float]] = defaultdict(list)
    for event in record.events:
        seconds = measure_recovery(event, record.outcomes)
        if not event.skipped and seconds is not None:
            times[event.name].append(seconds)
    return dict(times)


def _check_recovery(record: Record, bounds: Bounds) -> Iterator[Violation]:
    last = max((outcome.begin for outcome in record.outcomes), default=0.0)
    for event in record.events:
        if event.skipped:
            continue
        bound = bounds.frozen_seconds if event.verb == "stop" else bounds.recovery_seconds
        seconds = measure_recovery(event, record.outcomes)
        is_concerned = any(_is_affected(outcome, event) for outcome in record.outcomes)
        if seconds is None and is_concerned and last > event.at + bound:
            yield Violation("service comes back", f"{event.name} at {event.at:.1f} s ({event.victim}): never")
        if seconds is not None and seconds > bound:
            yield Violation("service comes back", f"{event.name} at {event.at:.1f} s: after {seconds:.1f} s")


def _is_affected(outcome: ChaosOutcome, event: FaultEvent) -> bool:
    here = event.gateway < 0 or outcome.gateway == event.gateway
    return outcome.begin >= event.at and here and (not event.cases or outcome.case in event.cases)


def _cut_off(attacks: Sequence[Attack], bounds: Bounds) -> Iterator[Violation]:
    for attack in attacks:
        if not attack.closed and attack.seconds > bounds.drip_seconds:
            yield Violation("slow clients are cut off", f"{attack.name}: still served after {attack.seconds:.0f} s")


# Crowds of hostile or too many requests


def judge_crowd(record: Record, alone: Sequence[float], restarts: int, bounds: Bounds) -> list[Violation]:
    """Judge overload and hostile inputs: no 5xx, no restart, bounded waiting for others.

    Others must wait at most twice as long (p99) as ``alone``, or half of ``late_seconds`` longer. This is checked if
    there are enough requests of both.
    """
    faults = [
        Violation("no 5xx", f"request {outcome.number} ({outcome.case}): {outcome.status} {outcome.code}")
        for outcome in record.outcomes
        if outcome.status >= 500
    ]
    if restarts:
        faults.append(Violation("no restart", f"{restarts} processes were started again"))
    meanwhile = [outcome.seconds for outcome in record.outcomes if outcome.is_ok and outcome.case in record.answers]
    before, during = compute_percentile(alone, 99), compute_percentile(meanwhile, 99)
    if min(len(alone), len(meanwhile)) >= ENOUGH and during > max(2 * before, before + bounds.late_seconds / 2):
        faults.append(Violation("others are served", f"p99 {during:.2f} s, alone {before:.2f} s"))
    return [*faults, *judge_record(record, bounds)]


def compute_percentile(values: Sequence[float], part: float) -> float:
    """Smallest value that at least ``part`` percent do not exceed; 0 without values."""
    ascending = sorted(values)
    return ascending[max(0, -(-len(ascending) * int(part) // 100) - 1)] if ascending else 0.0
