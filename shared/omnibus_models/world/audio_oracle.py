"""Recognition of the contents of audio, from its spectrum, without a model."""

import numpy as np

from omnibus_models.world import tone_synth

_FRAME_SAMPLES = 160  # samples of 10 ms at the input rate
_LOUD_FRACTION = 0.25  # of the loudest frame: anything below is silence
_MIN_TONE_FRAMES = 8  # frames of a tone
_MAX_PITCH_ERROR_HERTZ = 40.0  # Hz: largest deviation of a pitch


def recognize_tones(samples: np.ndarray, rate: int = tone_synth.INPUT_RATE_HERTZ) -> list[str] | None:
    """Return the tones in audio, in order: None if one is unknown."""
    size = _FRAME_SAMPLES * rate // tone_synth.INPUT_RATE_HERTZ
    frames = samples[: len(samples) // size * size].reshape(-1, size).astype(float)
    loud = np.sqrt((frames**2).mean(1))
    edges = np.flatnonzero(
        np.diff(np.concatenate([[0], (loud > _LOUD_FRACTION * loud.max(initial=0)).astype(int), [0]]))
    )
    tones = []
    for begin, end in zip(edges[::2], edges[1::2], strict=True):
        if end - begin >= _MIN_TONE_FRAMES:
            pitch = _strongest_frequency(frames[begin:end].reshape(-1), rate, 100, 2000)
            tones.append(_nearest_tone(pitch))
    return None if None in tones or not tones else [name for name in tones if name]


def recognize_words(samples: np.ndarray, rate: int = tone_synth.OUTPUT_RATE_HERTZ) -> list[str] | None:
    """Return the spoken words: None if one is unknown.

    The audio must begin with the first word.
    """
    syllable = tone_synth.CODE_SAMPLES * tone_synth.SYLLABLE_CODES
    sounding = (tone_synth.CODE_SAMPLES * (tone_synth.SYLLABLE_CODES - 1)) * rate // tone_synth.OUTPUT_RATE_HERTZ
    length = syllable * rate // tone_synth.OUTPUT_RATE_HERTZ
    count = len(samples) // length
    if not count or count % 2:
        return None
    pitches = [_detect_pitch(samples[place * length : place * length + sounding], rate) for place in range(count)]
    names: dict[tuple[int | None, ...], str] = {pair: word for word, pair in tone_synth.word_pitches().items()}
    words = [names.get((first, second)) for first, second in zip(pitches[::2], pitches[1::2], strict=True)]
    return None if None in words else [word for word in words if word]


def recognize_voice(samples: np.ndarray, rate: int = tone_synth.OUTPUT_RATE_HERTZ) -> str:
    """Return the voice that speaks, recognised by the tone under its pitches."""
    power, frequencies = _power_spectrum(samples, rate)
    high = power[(frequencies > 500) & (frequencies < 1500)].sum()
    low = power[(frequencies > 150) & (frequencies < 250)].sum()
    return "Ethan" if low > 0.1 * high else "Chelsie"


def _detect_pitch(samples: np.ndarray, rate: int) -> int | None:
    frequency = _strongest_frequency(samples, rate, 500, 1500)
    nearest = int(np.abs(np.array(tone_synth.PITCHES) - frequency).argmin())
    return (
        nearest
        if abs(tone_synth.PITCHES[nearest] - frequency) <= _MAX_PITCH_ERROR_HERTZ and np.abs(samples).max() > 0.05
        else None
    )


def _nearest_tone(pitch: float) -> str | None:
    for name, (low, high) in tone_synth.TONES.items():
        if low - _MAX_PITCH_ERROR_HERTZ <= pitch <= high + _MAX_PITCH_ERROR_HERTZ:
            return name
    return None


def _strongest_frequency(samples: np.ndarray, rate: int, low: float, high: float) -> float:
    power, frequencies = _power_spectrum(samples, rate)
    power[(frequencies < low) | (frequencies > high)] = 0
    return float(frequencies[power.argmax()])


def _power_spectrum(samples: np.ndarray, rate: int) -> tuple[np.ndarray, np.ndarray]:
    """Return power and frequencies, finer than 10 Hz."""
    size = max(len(samples), rate // 10)
    power = np.abs(np.fft.rfft(samples * np.hanning(len(samples)), size)) ** 2
    return power, np.fft.rfftfreq(size, 1 / rate)
