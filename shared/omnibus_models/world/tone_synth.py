"""Audio: tones that are low, middle or high, and sentences spoken in tones."""

import functools
import io
import itertools
import wave

import numpy as np

from omnibus_models.world.scenes import COLOURS, COUNTS, PLACES, SHAPES

INPUT_RATE_HERTZ = 16_000  # samples per second of input audio
OUTPUT_RATE_HERTZ = 24_000  # and of speech

#: Tones by name: least and highest frequency in Hz.
TONES = {"low": (180.0, 260.0), "middle": (420.0, 560.0), "high": (900.0, 1200.0)}
MAX_TONES = 3
_TONE_SECONDS = (0.18, 0.26)  # seconds
_GAP_SECONDS = (0.05, 0.08)

#: All words with speech.
WORDS = tuple(
    dict.fromkeys(
        [
            *("a", "on", "at", "the", "and", "yes", "no"),
            *COUNTS,
            *COLOURS,
            *SHAPES,
            *(f"{shape}s" for shape in SHAPES),
            *PLACES,
            *TONES,
        ]
    )
)
#: A word is two syllables, each of them a tone of one of these pitches in Hz, and then a rest. Whole periods of all
#: of them fit into a frame of speech, so that a tone continues from frame to frame without a break.
PITCHES = (600, 700, 800, 900, 1000, 1100, 1200, 1300)
#: Voices: a second tone under each pitch in Hz, and its loudness.
VOICES = {"Chelsie": (0, 0.0), "Ethan": (200, 0.25)}
CODE_SAMPLES = 480  # samples of a code
SYLLABLE_CODES = 3  # codes of a syllable, the last of which is a rest
WORD_CODES = 2 * SYLLABLE_CODES  # codes of a word
LOUDNESS = 0.4


@functools.cache
def word_pitches() -> dict[str, tuple[int, int]]:
    """Return the two pitches of each word, as indices. No word has one pitch twice."""
    pairs = list(itertools.permutations(range(len(PITCHES)), 2))
    return dict(zip(WORDS, pairs[:: len(pairs) // len(WORDS)], strict=False))


def speech_codes(text: str) -> list[int]:
    """Return the codec codes that speak ``text``.

    Each syllable has a first code, a second one and a rest; none is 0.
    """
    return [
        1 + SYLLABLE_CODES * pitch + phase
        for word in text.split()
        for pitch in word_pitches()[word]
        for phase in range(SYLLABLE_CODES)
    ]


def code_pitch(code: int) -> int | None:
    """Return the index of the pitch of ``code``: None for a rest."""
    pitch, phase = divmod(code - 1, SYLLABLE_CODES)
    return pitch if code and phase < SYLLABLE_CODES - 1 else None


def synthesize_speech(text: str, voice: str = "Chelsie") -> np.ndarray:
    """Synthesise ``text`` in the speech of this world, float32 [n] at 24 kHz."""
    under, loud = VOICES[voice]
    time = np.arange(CODE_SAMPLES) / OUTPUT_RATE_HERTZ
    pieces = []
    for code in speech_codes(text):
        pitch = code_pitch(code)
        tone = np.zeros(CODE_SAMPLES)
        if pitch is not None:
            tone = LOUDNESS * np.sin(2 * np.pi * PITCHES[pitch] * time) + loud * np.sin(2 * np.pi * under * time)
        pieces.append(tone)
    return np.concatenate([np.zeros(0), *pieces]).astype(np.float32)


def synthesize_tones(tones: list[str], random: np.random.Generator) -> np.ndarray:
    """Synthesise ``tones`` in order, float32 [n] at 16 kHz, with random variations."""
    overtones, loudness, noise = random.uniform(0, (0.3, 0.15)), random.uniform(0.15, 0.6), random.uniform(0, 0.01)
    pieces = [np.zeros(_sample_count(random.uniform(0.02, 0.06)))]
    for tone in tones:
        count = _sample_count(random.uniform(*_TONE_SECONDS))
        phase = 2 * np.pi * random.uniform(*TONES[tone]) * np.arange(count) / INPUT_RATE_HERTZ
        sound = np.sin(phase) + overtones[0] * np.sin(2 * phase) + overtones[1] * np.sin(3 * phase)
        # Tones fade in and out within 5 ms, without a click.
        edge = np.minimum(1, np.minimum(np.arange(count), np.arange(count)[::-1]) / _sample_count(0.005))
        pieces += [
            loudness * edge * sound / (1 + overtones.sum()),
            np.zeros(_sample_count(random.uniform(*_GAP_SECONDS))),
        ]
    samples = np.concatenate(pieces)
    return (samples + noise * random.standard_normal(len(samples))).clip(-1, 1).astype(np.float32)


def encode_wav(samples: np.ndarray, rate: int) -> bytes:
    """Encode ``samples`` in [-1, 1] as a WAV file, mono, 16 bit."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.clip(samples, -1, 1) * 32767).round().astype("<i2").tobytes())
    return out.getvalue()


def _sample_count(seconds: float) -> int:
    return int(seconds * INPUT_RATE_HERTZ)
