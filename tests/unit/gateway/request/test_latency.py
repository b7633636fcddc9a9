"""Pacing of answers: time between tokens, and audio that arrives before it must play."""

import time

import pytest

from omnibus.metrics import REGISTRY
from omnibus_gateway.request import accumulator as latency
from omnibus_gateway.request.accumulator import StreamLatency

MODEL = "a-model-of-its-own"


class LatencyClock:
    """The current time, which a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now + 1e9


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> LatencyClock:
    fake_clock = LatencyClock()
    monkeypatch.setattr(latency, "time", fake_clock)
    return fake_clock


class Told:
    """Increases of the metrics of ``MODEL`` since creation."""

    def __init__(self) -> None:
        self._before = {name: self._read_sample(name) for name in self._names}

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
        return self._read_sample(f"omnibus_{name}") - self._before[f"omnibus_{name}"]

    def _read_sample(self, name: str) -> float:
        return REGISTRY.get_sample_value(name, {"model": MODEL}) or 0.0


def test_the_time_between_tokens_is_that_of_the_whole_answer(clock: LatencyClock):
    metrics, stream_latency = Told(), StreamLatency(clock.time())
    for gap in (5.0, 0.1, 0.4, 0.1):
        clock.now += gap
        stream_latency.record_text()
    stream_latency.publish_metrics(MODEL, tokens=7)

    assert metrics["tbt_seconds_sum"] == pytest.approx(0.6 / 6)
    assert metrics["tbt_longest_seconds_sum"] == pytest.approx(0.4)
    assert metrics["audio_realtime_factor_count"] == 0


def test_an_answer_of_one_piece_says_nothing_of_it(clock: LatencyClock):
    metrics, stream_latency = Told(), StreamLatency(clock.time())
    stream_latency.record_text()
    stream_latency.publish_metrics(MODEL, tokens=9)

    assert metrics["tbt_seconds_count"] == 0


def test_sound_that_comes_in_time_has_no_pauses(clock: LatencyClock):
    metrics, stream_latency = Told(), StreamLatency(clock.time())
    for gap in (1.0, 0.5, 0.9, 0.0):
        clock.now += gap
        stream_latency.record_audio(1.0)
    stream_latency.publish_metrics(MODEL, tokens=0)

    assert metrics["audio_underruns_total"] == 0
    assert metrics["audio_seconds_total"] == 4.0
    assert metrics["audio_realtime_factor_sum"] == pytest.approx(2.4 / 4)


def test_a_player_that_has_to_wait_goes_on_from_there(clock: LatencyClock):
    metrics, stream_latency = Told(), StreamLatency(clock.time())
    for gap in (0.5, 1.25, 1.0, 3.0):
        clock.now += gap
        stream_latency.record_audio(1.0)
    stream_latency.publish_metrics(MODEL, tokens=0)

    assert metrics["audio_underruns_total"] == 2
    assert metrics["audio_underrun_seconds_total"] == pytest.approx(0.25 + 2.0)


def test_the_request_may_be_older_than_its_pace():
    metrics, stream_latency = Told(), StreamLatency(time.time() - 100)
    stream_latency.record_audio(50.0)
    stream_latency.publish_metrics(MODEL, tokens=0)

    assert metrics["audio_realtime_factor_sum"] == pytest.approx(2.0, rel=0.1)
