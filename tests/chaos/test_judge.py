"""The judge of chaos runs reports exactly the promises that outcomes break."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.chaos.judge import ENOUGH, Bounds, compute_percentile, judge_crowd, judge_record, list_recoveries
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

BOUNDS = Bounds()
GOOD = ChaosOutcome(1, "text", 0, 10.0, 10.5, status=200, answer="hello")
SOUND = ChaosOutcome(2, "speak", 1, 10.0, 12.0, status=200, samples=(1, 2, 3))
BUSY = ChaosOutcome(3, "text", 0, 10.0, 10.1, status=429, code="overloaded", retry_after=True)
AWAY = ChaosOutcome(4, "text", 0, 10.0, 12.0, status=503, code="stage_unavailable")


def make_job(*states: tuple[str, int]) -> Job:
    new_job = Job("video_1", 1.0)
    for at, (status, end) in enumerate(states):
        new_job.record_state(2.0 + at, status, end)
    return new_job


def make_record(*outcomes: ChaosOutcome, **more: object) -> Record:
    new_record = Record(7, 100.0, list(outcomes), {"text": GOOD, "speak": SOUND})
    for name, value in more.items():
        setattr(new_record, name, value)
    return new_record


def list_promises(record: Record) -> list[str]:
    return [violation.promise for violation in judge_record(record, BOUNDS)]


@pytest.mark.parametrize(
    "outcome",
    [
        GOOD,
        SOUND,
        replace(SOUND, samples=(1, 3, 3)),
        BUSY,
        AWAY,
        replace(AWAY, status=504, code="deadline_exceeded", end=41.9),
        replace(GOOD, status=0, answer="", broken=LEFT),
        replace(AWAY, status=200, streamed=True),
        replace(AWAY, status=400, code="bad_media", harmless=False),
    ],
)
def test_good_and_typed_outcomes_break_nothing(outcome: ChaosOutcome):
    assert list_promises(make_record(outcome)) == []


@pytest.mark.parametrize(
    ("outcome", "promise"),
    [
        (replace(GOOD, answer="hullo"), "no wrong answer"),
        (replace(SOUND, samples=(1, 4, 3)), "no wrong answer"),
        (replace(SOUND, samples=(1, 2)), "no wrong answer"),
        (replace(GOOD, status=404, code="not_found"), "no wrong answer"),
        (replace(GOOD, end=42.5), "no hang"),
        (replace(AWAY, end=42.5), "no hang"),
        (replace(GOOD, status=0, broken=HANG, end=55.0), "no hang"),
        (replace(GOOD, status=500, detail="Internal Server Error"), "no untyped error"),
        (replace(GOOD, status=404, detail="nothing here"), "no untyped error"),
        (replace(GOOD, broken=CUT, streamed=True), "no untyped error"),
        (replace(GOOD, status=0, broken=RESET), "no untyped error"),
        (replace(GOOD, status=0, broken=REFUSED), "no untyped error"),
        (replace(BUSY, retry_after=False), "a refusal says when to try again"),
        (replace(BUSY, status=200, streamed=True), "a refusal says when to try again"),
        (replace(AWAY, status=502, code="stage_failed", harmless=False), "bad input is a client's error"),
    ],
)
def test_a_broken_request_is_reported(outcome: ChaosOutcome, promise: str):
    assert list_promises(make_record(outcome)) == [promise]


KILL = FaultEvent(1, 9.0, "gateway", "kill", "gateway-0", gateway=0)


def test_connections_of_a_killed_gateway_may_break_and_those_of_another_may_not():
    outcomes = [replace(GOOD, number=n, broken=word, status=0) for n, word in enumerate((RESET, CUT, REFUSED, HANG))]
    after = replace(GOOD, begin=40.0, end=40.1)

    assert list_promises(make_record(*outcomes, after, events=[KILL])) == []
    assert list_promises(make_record(*outcomes, after, events=[replace(KILL, gateway=1)]))[:1] == ["no untyped error"]
    assert list_promises(make_record(*outcomes, after, events=[replace(KILL, skipped="none runs")])) != []


def test_a_gateway_that_is_asked_to_end_answers_what_it_has():
    term = replace(KILL, verb="term", at=10.2)

    assert list_promises(
        make_record(replace(GOOD, broken=CUT), replace(GOOD, begin=20.0, end=21.0), events=[term])
    ) == ["no untyped error"]
    late = replace(GOOD, begin=10.3, end=10.4, status=0, broken=REFUSED)
    assert list_promises(make_record(late, replace(GOOD, begin=20.0, end=21.0), events=[term])) == []
    after_drain = replace(late, begin=10.2 + 45, end=10.3 + 45)  # it had answers to finish, then it started again
    assert list_promises(make_record(after_drain, replace(GOOD, begin=20.0, end=21.0), events=[term])) == []
    after_limit = replace(late, begin=10.2 + 55, end=10.3 + 55)
    assert list_promises(make_record(after_limit, replace(GOOD, begin=20.0, end=21.0), events=[term])) == [
        "no untyped error"
    ]


@pytest.mark.parametrize(
    ("states", "word"),
    [
        ([("queued", 0), ("not_found", 0)], "gone"),
        ([("queued", 0), ("completed", 5), ("not_found", 0)], "gone"),
        ([("queued", 0), ("in_progress", 0)], "never ended"),
        ([], "never ended"),
        ([("completed", 5), ("queued", 0), ("completed", 9)], "went back"),
        ([("completed", 5), ("completed", 9)], "made 2 times"),
        ([("failed", 5)], "failed"),
    ],
)
def test_a_job_that_is_lost_or_made_twice_is_reported(states: list[tuple[str, int]], word: str):
    (violation,) = judge_record(make_record(jobs=[make_job(*states)]), BOUNDS)

    assert violation.promise == "no job lost or made twice"
    assert word in violation.detail


def test_a_job_that_is_made_once_is_not_reported():
    assert (
        list_promises(make_record(jobs=[make_job(("queued", 0), ("in_progress", 0), ("queued", 0), ("completed", 5))]))
        == []
    )


def test_a_lease_and_a_process_that_stay_are_reported():
    assert list_promises(make_record(blocks_left=1, leftovers=["process 12"])) == ["nothing leaked", "nothing leaked"]


MIB = 1 << 20


def make_samples(
    begin: float, end: float, grown: Callable[[float], float], descriptors: float = 0.0
) -> list[ProcessSample]:
    """Samples of a gateway that has ``growth`` by MiB after seconds.

    It opens ``descriptors`` until the end.
    """
    times = [begin + 2.0 * look for look in range(int((end - begin) / 2.0) + 1)]
    return [
        ProcessSample(
            at, "gateway", 12, int((100 + grown(at - begin)) * MIB), int(50 + descriptors * (at - begin) / end)
        )
        for at in times
    ]


def warm_up(age: float) -> float:
    """120 MiB in the first two minutes."""
    return min(120.0, age)


def grow_stepwise(age: float) -> float:
    """The largest files so far arrived twice."""
    return 100.0 * (age > 400) + 40.0 * (age > 450)


def make_drip(mib: float, every: float) -> Callable[[float], float]:
    """A leak of each of some rare requests."""
    return lambda age: mib * (age // every)


@pytest.mark.parametrize(
    ("samples", "seconds"),
    [
        (make_samples(0, 1200, lambda age: age / 1200), 1200.0),
        (make_samples(0, 600, warm_up), 600.0),
        (make_samples(300, 600, warm_up), 600.0),  # it began in the middle of the run
        (make_samples(0, 600, grow_stepwise), 600.0),
        (make_samples(400, 600, lambda age: 200 * age / 200), 600.0),  # it was not there for long enough to tell
        (make_samples(0, 600, lambda age: 40.0 * (age % 60 < 10)), 600.0),
        (make_samples(0, 120, lambda age: 1000 * age / 120), 120.0),  # too short to tell growth from warming up
    ],
    ids=["flat", "warming", "warming later", "steps", "young", "bursts", "short"],
)
def test_what_settles_is_no_growth(samples: list[ProcessSample], seconds: float):
    assert list_promises(Record(7, seconds, samples=samples)) == []


@pytest.mark.parametrize(
    ("samples", "seconds"),
    [
        (make_samples(0, 1200, lambda age: 1000 * age / 1200), 1200.0),
        (make_samples(0, 600, lambda age: 100 * age / 600), 600.0),
        (make_samples(200, 600, lambda age: 120 * age / 400), 600.0),  # after it was started again
        (make_samples(0, 3600, make_drip(15, 120)), 3600.0),
        (make_samples(0, 600, make_drip(12, 50)), 600.0),
        (make_samples(0, 600, lambda age: 300.0 * (age > 300)), 600.0),  # more than anything may hold
        (make_samples(1000, 1500, lambda age: warm_up(age) + age / 4), 3600.0),
    ],
    ids=["long", "all the time", "restarted", "rare", "often", "at once", "warm by then"],
)
def test_growth_is_reported(samples: list[ProcessSample], seconds: float):
    assert list_promises(Record(7, seconds, samples=samples)) == ["memory flat"]


def test_descriptors_that_are_never_closed_are_reported():
    process_samples = make_samples(0, 120, lambda age: 0.0, descriptors=400)

    assert list_promises(Record(7, 120.0, samples=process_samples)) == ["descriptors flat"]


def test_recovery_is_from_the_fault_to_the_first_good_answer_that_began_after_it():
    stop = FaultEvent(1, 9.0, "executor", "stop", "E-0", 5.0, cases=("text",))
    before = replace(GOOD, begin=8.0, end=9.5)
    other = replace(SOUND, begin=9.1, end=9.2)
    failure = replace(AWAY, begin=9.1, end=9.3)
    good = replace(GOOD, begin=9.4, end=13.0)

    assert list_recoveries(make_record(before, other, failure, good, events=[stop])) == {"executor stop": [4.0]}


def test_service_that_comes_back_late_or_never_is_reported():
    stop = FaultEvent(1, 9.0, "sidecar", "stop", seconds=5.0)

    late = replace(GOOD, begin=9.1, end=39.5)
    assert list_promises(make_record(late, events=[stop])) == ["service comes back"]

    never = [replace(AWAY, begin=9.1 + each, end=9.2 + each) for each in range(80)]
    assert list_promises(make_record(*never, events=[stop])) == ["service comes back"]


def test_a_client_that_drips_for_ever_is_reported():
    attacks = [
        Attack("heads", 50.0, closed=False),
        Attack("heads", 12.0, closed=True),
        Attack("bodies", 20.0, closed=False),
    ]

    assert list_promises(make_record(attacks=attacks)) == ["slow clients are cut off"]


def test_a_crowd_may_cause_neither_5xx_nor_restarts_nor_slow_others():
    alone = [0.4] * ENOUGH
    calm = make_record(*[GOOD] * ENOUGH, BUSY)
    slow = make_record(*[replace(GOOD, end=16.0)] * ENOUGH, AWAY)

    assert judge_crowd(calm, alone, 0, BOUNDS) == []
    assert [each.promise for each in judge_crowd(slow, alone, 2, BOUNDS)] == [
        "no 5xx",
        "no restart",
        "others are served",
    ]
    assert judge_crowd(make_record(replace(GOOD, end=16.0)), alone, 0, BOUNDS) == []  # one slow answer tells nothing


def test_percentiles_are_values_that_were_seen():
    assert [compute_percentile([3.0, 1.0, 2.0], part) for part in (0, 50, 99, 100)] == [1.0, 2.0, 3.0, 3.0]
    assert compute_percentile([], 99) == 0.0
