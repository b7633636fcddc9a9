"""What a sound holds is told from its spectrum alone."""

import io
import itertools
import wave

import numpy as np
import pytest

from omnibus_models.world import listening, scenes, sounds, talks

RATES = (sounds.HEARD_RATE, sounds.SPOKEN_RATE)


def test_every_row_of_tones_is_told():
    random = np.random.default_rng(0)
    rows = [list(row) for count in (1, 2, 3) for row in itertools.product(sounds.TONES, repeat=count)]

    assert [row for row in rows if listening.tones(sounds.played(row, random)) != row] == []


@pytest.mark.parametrize("voice", sounds.VOICES)
def test_every_sentence_is_told_word_by_word_and_so_is_its_voice(voice: str):
    for text in [" ".join(sounds.WORDS), *(scene.caption for scene in scenes.unseen())]:
        spoken = sounds.spoken(text, voice)

        assert listening.words(spoken) == text.split()
        assert listening.voice(spoken) == voice


def test_noise_under_a_sentence_does_not_change_its_words():
    random, text = np.random.default_rng(0), "a red square on blue"
    spoken = sounds.spoken(text)

    assert listening.words(0.3 * spoken + 0.02 * random.standard_normal(len(spoken))) == text.split()


def test_what_is_no_word_is_not_taken_for_one():
    word = 2 * sounds.SYLLABLE * sounds.CODE
    same = np.sin(2 * np.pi * 600 * np.arange(word) / sounds.SPOKEN_RATE)

    assert listening.words(np.zeros(word)) is None
    assert listening.words(np.random.default_rng(0).standard_normal(10) * 0.1) is None
    assert listening.words(same) is None  # no word has one pitch twice
    assert listening.words(sounds.spoken("red blue")[: word + word // 2]) is None  # half a word is none


def test_what_is_no_tone_is_not_taken_for_one():
    time = np.arange(sounds.HEARD_RATE // 4) / sounds.HEARD_RATE

    assert listening.tones(np.zeros(1000)) is None
    assert listening.tones(np.sin(2 * np.pi * 700 * time)) is None


def test_every_word_has_two_pitches_of_its_own():
    spelling = sounds.spelling()

    assert set(spelling) == set(sounds.WORDS)
    assert len(set(spelling.values())) == len(sounds.WORDS)
    assert all(first != second for first, second in spelling.values())


def test_all_that_is_ever_answered_can_be_spoken():
    random = np.random.default_rng(0)
    tones = ("low", "middle", "high")

    for scene, kind in itertools.product(scenes.every()[::7], talks.SHARES):
        assert set(talks.asked(random, kind, scene, tones).answer.split()) <= set(sounds.WORDS)


def test_pitches_fit_into_frames_with_whole_periods():
    frame = sounds.CODE // 2

    assert [pitch for pitch in sounds.PITCHES if pitch * frame % sounds.SPOKEN_RATE] == []


@pytest.mark.parametrize("rate", RATES)
def test_a_wav_file_holds_the_samples(rate: int):
    samples = sounds.spoken("yes")

    with wave.open(io.BytesIO(sounds.wav(samples, rate))) as file:
        read = np.frombuffer(file.readframes(file.getnframes()), "<i2")

    assert (file.getframerate(), file.getnchannels()) == (rate, 1)
    np.testing.assert_allclose(read / 32767, samples, atol=1e-4)
