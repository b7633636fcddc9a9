"""Load events over a sliding window: counts become rates, and old events expire."""

import pytest

from omnibus.bus.messages import LoadCounts, LoadEvent
from omnibus.cluster.load_window import LoadWindow


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def recent(clock: Clock) -> LoadWindow:
    return LoadWindow(10.0, clock)


def event(came: int = 0, gateway: str = "g", seconds: float = 1.0) -> LoadEvent:
    return LoadEvent(gateway, 1, seconds, 0, {"m": {"t": LoadCounts(came)}} if came else {})


def rate(recent: LoadWindow) -> float:
    recent.drop_expired()
    return sum(per_second * event.models["m"]["t"].came for event, per_second in recent.event_rates() if event.models)


def test_an_even_stream_has_its_rate_at_any_moment(clock: Clock, recent: LoadWindow):
    found = []
    for _ in range(30):
        clock.now += 1.0
        recent.add_event(event(5))
        found.append(rate(recent))
        clock.now += 0.4  # the next event has not come yet
        found.append(rate(recent))
        clock.now -= 0.4

    assert found == pytest.approx([5.0] * 60)


def test_gateways_add_up_each_in_its_own_rhythm(clock: Clock, recent: LoadWindow):
    for turn in range(40):
        clock.now += 0.5
        recent.add_event(event(3, f"g{turn % 2}"))

    assert rate(recent) == pytest.approx(6.0)


def test_what_an_event_tells_of_before_the_window_does_not_count(clock: Clock, recent: LoadWindow):
    recent.add_event(event(1))
    clock.now += 60.0
    recent.add_event(event(600, seconds=60.0))

    assert rate(recent) == pytest.approx(10.0)


def test_after_the_last_word_silence_counts(clock: Clock, recent: LoadWindow):
    for _ in range(10):
        clock.now += 1.0
        recent.add_event(event(4))
    clock.now += 5.0
    half = rate(recent)
    clock.now += 10.0

    assert half == pytest.approx(2.0)
    assert rate(recent) == 0.0
    assert list(recent.event_rates()) == []


def test_a_burst_after_silence_is_over_the_whole_window(clock: Clock, recent: LoadWindow):
    recent.add_event(event(1))
    clock.now += 100.0
    recent.add_event(event(20))

    assert rate(recent) == pytest.approx(2.0)
    assert recent.span == 10.0


def test_rates_are_over_at_least_a_second(clock: Clock, recent: LoadWindow):
    recent.add_event(event(5, seconds=0.0))

    assert rate(recent) == 5.0
    assert recent.span == 1.0


def test_what_was_missed_is_not_silence(clock: Clock, recent: LoadWindow):
    for _ in range(10):
        clock.now += 1.0
        recent.add_event(event(8))
    dropped = recent.clear()
    clock.now += 60.0
    recent.add_event(event(8))

    assert len(dropped) == 10
    assert rate(recent) == pytest.approx(8.0)


def test_what_ages_is_told(clock: Clock, recent: LoadWindow):
    first = event(1)
    recent.add_event(first)
    clock.now += 11.0
    recent.add_event(event(2))

    assert recent.drop_expired() == []
    clock.now += 1.0
    assert recent.drop_expired() == [first]
