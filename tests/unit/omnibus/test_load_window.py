"""Load events over a sliding window: counts become rates, and old events expire."""

import pytest

from omnibus.bus.messages import LoadCounts, LoadEvent
from omnibus.cluster.load_window import LoadWindow


class LoadClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> LoadClock:
    return LoadClock()


@pytest.fixture
def window(clock: LoadClock) -> LoadWindow:
    return LoadWindow(10.0, clock)


def make_event(came: int = 0, gateway: str = "g", seconds: float = 1.0) -> LoadEvent:
    return LoadEvent(gateway, 1, seconds, 0, {"m": {"t": LoadCounts(came)}} if came else {})


def read_rate(recent: LoadWindow) -> float:
    recent.drop_expired()
    return sum(per_second * event.models["m"]["t"].came for event, per_second in recent.event_rates() if event.models)


def test_an_even_stream_has_its_rate_at_any_moment(clock: LoadClock, window: LoadWindow):
    rates = []
    for _ in range(30):
        clock.now += 1.0
        window.add_event(make_event(5))
        rates.append(read_rate(window))
        clock.now += 0.4  # the next event has not come yet
        rates.append(read_rate(window))
        clock.now -= 0.4

    assert rates == pytest.approx([5.0] * 60)


def test_gateways_add_up_each_in_its_own_rhythm(clock: LoadClock, window: LoadWindow):
    for turn in range(40):
        clock.now += 0.5
        window.add_event(make_event(3, f"g{turn % 2}"))

    assert read_rate(window) == pytest.approx(6.0)


def test_what_an_event_tells_of_before_the_window_does_not_count(clock: LoadClock, window: LoadWindow):
    window.add_event(make_event(1))
    clock.now += 60.0
    window.add_event(make_event(600, seconds=60.0))

    assert read_rate(window) == pytest.approx(10.0)


def test_after_the_last_word_silence_counts(clock: LoadClock, window: LoadWindow):
    for _ in range(10):
        clock.now += 1.0
        window.add_event(make_event(4))
    clock.now += 5.0
    half = read_rate(window)
    clock.now += 10.0

    assert half == pytest.approx(2.0)
    assert read_rate(window) == 0.0
    assert list(window.event_rates()) == []


def test_a_burst_after_silence_is_over_the_whole_window(clock: LoadClock, window: LoadWindow):
    window.add_event(make_event(1))
    clock.now += 100.0
    window.add_event(make_event(20))

    assert read_rate(window) == pytest.approx(2.0)
    assert window.span == 10.0


def test_rates_are_over_at_least_a_second(clock: LoadClock, window: LoadWindow):
    window.add_event(make_event(5, seconds=0.0))

    assert read_rate(window) == 5.0
    assert window.span == 1.0


def test_what_was_missed_is_not_silence(clock: LoadClock, window: LoadWindow):
    for _ in range(10):
        clock.now += 1.0
        window.add_event(make_event(8))
    events = window.clear()
    clock.now += 60.0
    window.add_event(make_event(8))

    assert len(events) == 10
    assert read_rate(window) == pytest.approx(8.0)


def test_what_ages_is_told(clock: LoadClock, window: LoadWindow):
    first = make_event(1)
    window.add_event(first)
    clock.now += 11.0
    window.add_event(make_event(2))

    assert window.drop_expired() == []
    clock.now += 1.0
    assert window.drop_expired() == [first]
