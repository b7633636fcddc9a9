"""Windows of long recordings are cut in pauses, and lose no sample."""

import numpy as np
import pytest

from omnibus_models.families._speech_encoder import cut_windows

RATE, LONGEST = 16_000, 30.0


def make_words(*spans: tuple[float, float], seconds: float) -> np.ndarray:
    """Return quiet noise with loud words in ``spans`` of seconds."""
    generator = np.random.default_rng(0)
    samples = 0.001 * generator.standard_normal(int(seconds * RATE))
    for begin, end in spans:
        samples[int(begin * RATE) : int(end * RATE)] *= 300
    return samples.astype(np.float32)


def test_a_short_recording_is_one_window():
    assert cut_windows(np.zeros(480_000, np.float32), RATE, LONGEST) == [0, 480_000]


def test_a_cut_is_in_the_pause_between_two_words():
    samples = make_words((0, 24.1), (24.5, 40), seconds=40)

    [_, cut, end] = cut_windows(samples, RATE, LONGEST)

    assert 24.15 < cut / RATE < 24.45
    assert end == len(samples)


def test_of_equal_pauses_the_latest_is_cut():
    samples = make_words((0, 40), seconds=40)
    for pause in (21, 26):
        samples[int(pause * RATE) : int((pause + 0.5) * RATE)] = 0

    assert 26.1 < cut_windows(samples, RATE, LONGEST)[1] / RATE < 26.5


@pytest.mark.parametrize("seconds", [30.0001, 59.99, 60.0, 123.4])
def test_no_window_is_longer_than_allowed_and_none_is_empty(seconds: float):
    samples = make_words((0, seconds), seconds=seconds)

    lengths = np.diff(cut_windows(samples, RATE, LONGEST))

    assert lengths.sum() == len(samples)
    assert (lengths > 0).all()
    assert (lengths[:-1] >= 20 * RATE).all()
    assert (lengths <= 30 * RATE).all()
    assert lengths[-1] >= 3 * RATE
