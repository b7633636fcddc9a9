"""Measured load: rates, shares and means of all gateways over the last seconds."""

import pytest

from omnibus.bus.messages import LoadCounts, LoadEvent
from omnibus_planner.autoscale.load_window import FORGET_AFTER_SECONDS, LoadWindows


class LoadWindowClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> LoadWindowClock:
    return LoadWindowClock()


@pytest.fixture
def windows(clock: LoadWindowClock) -> LoadWindows:
    return LoadWindows(10.0, clock)


def make_counts(came: int, done_count: int | None = None, refused_count: int = 0, **quantities: float) -> LoadCounts:
    """Return counts in which each completed request has these ``quantities``."""
    done_count = came if done_count is None else done_count
    return LoadCounts(
        came,
        done_count,
        refused=refused_count,
        quantities={name: done_count * value for name, value in quantities.items()},
    )


def make_event(gateway: str = "g", seconds: float = 1.0, **models: dict[str, LoadCounts]) -> LoadEvent:
    return LoadEvent(gateway, 1, seconds, 0, models)


def report_loads(
    windows: LoadWindows, clock: LoadWindowClock, times: int = 10, **models: dict[str, LoadCounts]
) -> None:
    """Report this each second as one gateway."""
    for _ in range(times):
        clock.now += 1.0
        windows.add_event(make_event(**models))


def test_a_model_has_a_rate_and_each_type_its_share(windows: LoadWindows, clock: LoadWindowClock):
    report_loads(
        windows, clock, m={"thinker": make_counts(1), "vision+thinker": make_counts(3)}, n={"thinker": make_counts(2)}
    )

    loads = windows.current_loads()

    assert {name: each.rate for name, each in loads.items()} == pytest.approx({"m": 4.0, "n": 2.0})
    assert loads["m"].shares == pytest.approx({"thinker": 0.25, "vision+thinker": 0.75})
    assert loads["n"].shares == {"thinker": 1.0}


def test_gateways_add_up(windows: LoadWindows, clock: LoadWindowClock):
    for _ in range(10):
        clock.now += 1.0
        windows.add_event(make_event("a", m={"t": make_counts(1)}))
        windows.add_event(make_event("b", m={"t": make_counts(2), "u": make_counts(3)}))

    assert windows.current_loads()["m"].rate == pytest.approx(6.0)
    assert windows.current_loads()["m"].shares == pytest.approx({"t": 0.5, "u": 0.5})


def test_what_is_refused_comes_too(windows: LoadWindows, clock: LoadWindowClock):
    report_loads(windows, clock, m={"t": make_counts(2, refused_count=1), "": LoadCounts(refused=3)})

    assert windows.current_loads()["m"].rate == pytest.approx(6.0)
    assert windows.current_loads()["m"].shares == {"t": 1.0}


def test_what_is_refused_late_counts_once(windows: LoadWindows, clock: LoadWindowClock):
    report_loads(windows, clock, 5, m={"t": LoadCounts(came=1)})
    report_loads(windows, clock, 5, m={"t": LoadCounts(came=-1, refused=1)})

    assert windows.current_loads()["m"].rate == pytest.approx(0.5)
    assert windows.current_loads()["m"].shares == {"t": 1.0}


def test_means_are_over_what_is_done(windows: LoadWindows, clock: LoadWindowClock):
    report_loads(windows, clock, 3, m={"t": make_counts(9, done_count=1, prompt_tokens=10, speech_seconds=0.5)})
    report_loads(windows, clock, 1, m={"t": make_counts(9, done_count=3, prompt_tokens=30)})

    assert windows.current_loads()["m"].quantities == {
        "t": pytest.approx({"prompt_tokens": 20.0, "speech_seconds": 0.25})
    }


def test_means_are_of_the_window_alone(windows: LoadWindows, clock: LoadWindowClock):
    report_loads(windows, clock, 10, m={"t": make_counts(1, prompt_tokens=1000)})
    report_loads(windows, clock, 20, m={"t": make_counts(1, prompt_tokens=7)})

    assert windows.current_loads()["m"].quantities == {"t": pytest.approx({"prompt_tokens": 7.0})}


def test_the_last_known_means_and_shares_stay_when_nothing_comes(windows: LoadWindows, clock: LoadWindowClock):
    report_loads(windows, clock, m={"t": make_counts(3, prompt_tokens=12), "u": make_counts(1, prompt_tokens=4)})
    clock.now += 60.0

    model_load = windows.current_loads()["m"]

    assert model_load.rate == 0.0
    assert model_load.shares == {"t": 0.75, "u": 0.25}
    assert model_load.quantities == {"t": {"prompt_tokens": 12.0}, "u": {"prompt_tokens": 4.0}}


def test_the_last_known_means_stay_when_nothing_ends(windows: LoadWindows, clock: LoadWindowClock):
    report_loads(windows, clock, 1, m={"t": make_counts(1, prompt_tokens=12)})
    report_loads(windows, clock, 20, m={"t": make_counts(1, done_count=0)})

    assert windows.current_loads()["m"].quantities == {"t": {"prompt_tokens": 12.0}}


def test_a_type_that_comes_no_more_has_no_share(windows: LoadWindows, clock: LoadWindowClock):
    report_loads(windows, clock, m={"t": make_counts(1), "u": make_counts(1)})
    report_loads(windows, clock, 12, m={"u": make_counts(1)})

    assert windows.current_loads()["m"].shares == {"u": 1.0}


def test_a_gateway_that_falls_silent_ages_out(windows: LoadWindows, clock: LoadWindowClock):
    report_loads(windows, clock, m={"t": make_counts(4)})
    for _ in range(12):
        clock.now += 1.0
        windows.add_event(make_event("other", m={"t": make_counts(1)}))

    assert windows.current_loads()["m"].rate == pytest.approx(1.0)


def test_a_model_is_observed_from_when_it_was_first_heard_of(windows: LoadWindows, clock: LoadWindowClock):
    report_loads(windows, clock, 3, m={"t": make_counts(1)})
    clock.now += 40.0

    assert windows.observed_seconds("m") == pytest.approx(43.0)
    assert windows.observed_seconds("n") == 0.0


def test_a_gap_in_what_was_heard_is_no_silence(windows: LoadWindows, clock: LoadWindowClock):
    report_loads(windows, clock, m={"t": make_counts(5, prompt_tokens=3)})

    windows.clear()
    observed_time, empty = windows.observed_seconds("m"), windows.current_loads()["m"]
    report_loads(windows, clock, 2, m={"t": make_counts(5, prompt_tokens=3)})

    assert observed_time == 0.0
    assert (empty.rate, empty.shares, empty.quantities) == (0.0, {"t": 1.0}, {"t": {"prompt_tokens": 3.0}})
    assert windows.current_loads()["m"].rate == pytest.approx(5.0)


def test_models_that_nobody_asks_for_are_forgotten(windows: LoadWindows, clock: LoadWindowClock):
    report_loads(windows, clock, 1, old={"t": make_counts(1)})
    clock.now += FORGET_AFTER_SECONDS + 1.0
    report_loads(windows, clock, 1, new={"t": make_counts(1)})

    assert set(windows.current_loads()) == {"new"}
    assert windows.observed_seconds("old") == 0.0


def test_errors_of_floats_do_not_add_up(windows: LoadWindows, clock: LoadWindowClock):
    for turn in range(500):
        report_loads(windows, clock, 1, m={"t": make_counts(1, speech_seconds=0.1 * (turn % 7))})
    report_loads(windows, clock, 12, m={"t": make_counts(0)})
    report_loads(windows, clock, 1, m={"t": make_counts(1, speech_seconds=0.0)})

    assert windows.current_loads()["m"].quantities == {"t": {"speech_seconds": 0.0}}


def test_quantities_of_what_comes_are_known_before_any_of_it_has_ended(windows: LoadWindows, clock: LoadWindowClock):
    ended_counts = LoadCounts(came=2, done=2, quantities={"image_tokens": 500.0}, estimated={"image_tokens": 400.0},
                       estimated_done={"image_tokens": 400.0})  # fmt: skip
    report_loads(windows, clock, m={"vision+thinker": ended_counts})
    larger = LoadCounts(came=2, estimated={"image_tokens": 4000.0})

    report_loads(windows, clock, 15, m={"vision+thinker": larger})

    sizes = windows.current_loads()["m"].quantities["vision+thinker"]
    assert sizes["image_tokens"] == pytest.approx(2000 * 1.25)  # estimates were a fifth too low


def test_what_is_refused_is_told_as_a_rate_of_its_own(windows: LoadWindows, clock: LoadWindowClock):
    report_loads(windows, clock, m={"thinker": make_counts(1, refused_count=2)}, n={"thinker": make_counts(2)})

    assert windows.refused_rates() == {"m": pytest.approx(2.0)}


def test_the_last_event_of_each_gateway_has_nothing_of_what_came_before(windows: LoadWindows, clock: LoadWindowClock):
    def make_token_counts(came: int, tokens: float, done_count: int = 0) -> LoadCounts:
        sizes = {"image_tokens": came * tokens}
        ended_sizes = {"image_tokens": done_count * tokens}
        return LoadCounts(
            came,
            done_count,
            estimated=sizes,
            estimated_done=ended_sizes,
            quantities={"image_tokens": 2 * done_count * tokens},
        )

    report_loads(windows, clock, m={"t": make_token_counts(4, 100.0, done_count=4)}, n={"t": make_counts(1)})
    clock.now += 1.0
    windows.add_event(make_event("g", m={"t": make_token_counts(3, 1000.0)}))
    windows.add_event(make_event("h", m={"t": make_token_counts(1, 2000.0), "u": make_counts(4)}))

    loads = windows.latest_loads()

    assert set(loads) == {"m"}
    assert loads["m"].rate == pytest.approx(8.0)
    assert loads["m"].shares == pytest.approx({"t": 0.5, "u": 0.5})
    assert loads["m"].quantities["t"]["image_tokens"] == pytest.approx(
        2500.0
    )  # estimates were half of what was counted
