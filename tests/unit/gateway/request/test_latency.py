"""Pacing of answers: time between tokens, and audio that arrives before it must play."""

import time

import pytest

from omnibus.metrics import REGISTRY
from omnibus_gateway.request import latency
from omnibus_gateway.request.latency import StreamLatency

MODEL = "a-model-of-its-own"


class Clock:
    """The current time, which a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now + 1e9


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(latency, "time", made)
    return made


class Told:
    """Increases of the metrics of ``MODEL`` since creation."""

    def __init__(self) -> None:
        self._before = {name: self._value(name) for name in self._names}

    _names = (
        "omnibus_tbt_seconds_sum",
        "omnibus_tbt_seconds_count",
        "omnibus_tbt_longest_seconds_sum",
        "omnibus_audio_realtime_factor_sum",
        "omnibus_audio_realtime_factor_count",
        "omnibus_audio_underruns_total",
        "omnibus_audio_underrun_seconds_total",
        "omnibus_audio_seconds_total",
    )

    def __getitem__(self, name: str) -> float:
        return self._value(f"omnibus_{name}") - self._before[f"omnibus_{name}"]

    def _value(self, name: str) -> float:
        return REGISTRY.get_sample_value(name, {"model": MODEL}) or 0.0


def test_the_time_between_tokens_is_that_of_the_whole_answer(clock: Clock):
    told, made = Told(), StreamLatency(clock.time())
    for gap in (5.0, 0.1, 0.4, 0.1):
        clock.now += gap
        made.record_text()
    made.publish_metrics(MODEL, tokens=7)

    assert told["tbt_seconds_sum"] == pytest.approx(0.6 / 6)
    assert told["tbt_longest_seconds_sum"] == pytest.approx(0.4)
    assert told["audio_realtime_factor_count"] == 0


def test_an_answer_of_one_piece_says_nothing_of_it(clock: Clock):
    told, made = Told(), StreamLatency(clock.time())
    made.record_text()
    made.publish_metrics(MODEL, tokens=9)

    assert told["tbt_seconds_count"] == 0


def test_sound_that_comes_in_time_has_no_pauses(clock: Clock):
    told, made = Told(), StreamLatency(clock.time())
    for gap in (1.0, 0.5, 0.9, 0.0):
        clock.now += gap
        made.record_audio(1.0)
    made.publish_metrics(MODEL, tokens=0)

    assert told["audio_underruns_total"] == 0
    assert told["audio_seconds_total"] == 4.0
    assert told["audio_realtime_factor_sum"] == pytest.approx(2.4 / 4)


def test_a_player_that_has_to_wait_goes_on_from_there(clock: Clock):
    told, made = Told(), StreamLatency(clock.time())
    for gap in (0.5, 1.25, 1.0, 3.0):
        clock.now += gap
        made.record_audio(1.0)
    made.publish_metrics(MODEL, tokens=0)

    assert told["audio_underruns_total"] == 2
    assert told["audio_underrun_seconds_total"] == pytest.approx(0.25 + 2.0)


def test_the_request_may_be_older_than_its_pace():
    told, made = Told(), StreamLatency(time.time() - 100)
    made.record_audio(50.0)
    made.publish_metrics(MODEL, tokens=0)

    assert told["audio_realtime_factor_sum"] == pytest.approx(2.0, rel=0.1)
