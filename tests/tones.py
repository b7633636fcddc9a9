"""Tones of the small world, as recorded by a microphone."""

from collections.abc import Sequence

import numpy as np

from omnibus_models.world import tone_synth


def record_tones(tones: Sequence[str], seed: int, rate: int, before: float, after: float) -> np.ndarray:
    """Record ``tones`` at ``rate`` samples per second: float [n].

    Silence of the given seconds surrounds them.
    """
    sound = tone_synth.synthesize_tones(list(tones), np.random.default_rng(seed))
    times = np.arange(len(sound) * rate // tone_synth.INPUT_RATE_HERTZ) / rate
    samples = np.interp(times, np.arange(len(sound)) / tone_synth.INPUT_RATE_HERTZ, sound)
    return np.concatenate([np.zeros(int(rate * before)), samples, np.zeros(int(rate * after))])
