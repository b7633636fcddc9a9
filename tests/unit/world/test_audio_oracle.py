"""The content of audio is recognised from its spectrum alone."""

import io
import itertools
import wave

import numpy as np
import pytest

from omnibus_models.world import audio_oracle, dialogues, scenes, tone_synth

RATES = (tone_synth.INPUT_RATE_HERTZ, tone_synth.OUTPUT_RATE_HERTZ)


def test_every_row_of_tones_is_told():
    random = np.random.default_rng(0)
    rows = [list(row) for count in (1, 2, 3) for row in itertools.product(tone_synth.TONES, repeat=count)]

    assert [row for row in rows if audio_oracle.recognize_tones(tone_synth.synthesize_tones(row, random)) != row] == []


@pytest.mark.parametrize("voice", tone_synth.VOICES)
def test_every_sentence_is_told_word_by_word_and_so_is_its_voice(voice: str):
    for text in [" ".join(tone_synth.WORDS), *(scene.caption for scene in scenes.held_out_scenes())]:
        speech = tone_synth.synthesize_speech(text, voice)

        assert audio_oracle.recognize_words(speech) == text.split()
        assert audio_oracle.recognize_voice(speech) == voice


def test_noise_under_a_sentence_does_not_change_its_words():
    random, text = np.random.default_rng(0), "a red square on blue"
    speech = tone_synth.synthesize_speech(text)

    assert audio_oracle.recognize_words(0.3 * speech + 0.02 * random.standard_normal(len(speech))) == text.split()


def test_what_is_no_word_is_not_taken_for_one():
    word = 2 * tone_synth.SYLLABLE_CODES * tone_synth.CODE_SAMPLES
    same = np.sin(2 * np.pi * 600 * np.arange(word) / tone_synth.OUTPUT_RATE_HERTZ)

    assert audio_oracle.recognize_words(np.zeros(word)) is None
    assert audio_oracle.recognize_words(np.random.default_rng(0).standard_normal(10) * 0.1) is None
    assert audio_oracle.recognize_words(same) is None  # no word has one pitch twice
    assert (
        audio_oracle.recognize_words(tone_synth.synthesize_speech("red blue")[: word + word // 2]) is None
    )  # half a word does not count


def test_what_is_no_tone_is_not_taken_for_one():
    time = np.arange(tone_synth.INPUT_RATE_HERTZ // 4) / tone_synth.INPUT_RATE_HERTZ

    assert audio_oracle.recognize_tones(np.zeros(1000)) is None
    assert audio_oracle.recognize_tones(np.sin(2 * np.pi * 700 * time)) is None


def test_every_word_has_two_pitches_of_its_own():
    spelling = tone_synth.word_pitches()

    assert set(spelling) == set(tone_synth.WORDS)
    assert len(set(spelling.values())) == len(tone_synth.WORDS)
    assert all(first != second for first, second in spelling.values())


def test_all_that_is_ever_answered_can_be_spoken():
    random = np.random.default_rng(0)
    tones = ("low", "middle", "high")

    for scene, kind in itertools.product(scenes.all_scenes()[::7], dialogues.SHARES):
        assert set(dialogues.sample_question(random, kind, scene, tones).answer.split()) <= set(tone_synth.WORDS)


def test_pitches_fit_into_frames_with_whole_periods():
    frame = tone_synth.CODE_SAMPLES // 2

    assert [pitch for pitch in tone_synth.PITCHES if pitch * frame % tone_synth.OUTPUT_RATE_HERTZ] == []


@pytest.mark.parametrize("rate", RATES)
def test_a_wav_file_holds_the_samples(rate: int):
    samples = tone_synth.synthesize_speech("yes")

    with wave.open(io.BytesIO(tone_synth.encode_wav(samples, rate))) as file:
        read = np.frombuffer(file.readframes(file.getnframes()), "<i2")

    assert (file.getframerate(), file.getnchannels()) == (rate, 1)
    np.testing.assert_allclose(read / 32767, samples, atol=1e-4)
