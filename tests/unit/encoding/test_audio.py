"""Encoding samples to files for other programs, whole or in pieces."""

import io
import wave
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from omnibus.encoding.audio import (
    MAX_SPEED,
    MIME,
    MIN_SPEED,
    SoundFormat,
    StreamingAudioEncoder,
    encode_audio,
    encode_wav,
    to_pcm16,
)
from omnibus_gateway.media.inspect import READERS, sniff_mime
from tests.unit.gateway.samples import make_sample_tone

FORMATS: list[tuple[SoundFormat, str, int]] = [
    ("wav", "audio/wav", 24000),
    ("flac", "audio/flac", 24000),
    ("mp3", "audio/mpeg", 44100),
    ("opus", "audio/ogg", 48000),
    ("aac", "audio/aac", 44100),
]
COMPRESSED: list[SoundFormat] = ["flac", "mp3", "opus", "aac"]


def decode_audio(data: bytes) -> tuple[np.ndarray, int]:
    """Decode to mono float samples and their rate with FFmpeg."""
    with av.open(io.BytesIO(data)) as file:
        frames: list[Any] = list(file.decode(audio=0))
    resampler = av.AudioResampler(format="flt", layout="mono", rate=frames[0].sample_rate)
    pieces = [piece.to_ndarray().ravel() for frame in frames for piece in resampler.resample(frame)]
    return np.concatenate(pieces), frames[0].sample_rate


def encode_pieces(format: SoundFormat, samples: NDArray[np.float32], speed: float = 1.0) -> list[bytes]:
    """Return the encoder's output for each 0.1 s, and at the end."""
    encoder = StreamingAudioEncoder(format, 24000, speed)
    return [*(encoder.push(samples[at : at + 2400]) for at in range(0, len(samples), 2400)), encoder.close()]


def measure_pitch(samples: NDArray[Any], rate: int) -> float:
    """Return the loudest frequency in the middle, in Hz."""
    middle = samples[len(samples) // 4 : 3 * len(samples) // 4].astype(float)
    return float(np.argmax(np.abs(np.fft.rfft(middle * np.hanning(len(middle))))) * rate / len(middle))


def test_pcm16_clips_and_rounds():
    samples = np.array([0.0, 1.0, -1.0, 2.0, -2.0, 0.5], np.float32)

    assert np.frombuffer(to_pcm16(samples), "<i2").tolist() == [0, 32767, -32767, 32767, -32767, 16384]


def test_a_wav_file_is_read_by_the_standard_library():
    samples = make_sample_tone(0.25)

    with wave.open(io.BytesIO(encode_audio(samples, 24000, "wav"))) as reader:
        assert (reader.getnchannels(), reader.getsampwidth(), reader.getframerate()) == (1, 2, 24000)
        assert reader.getnframes() == len(samples)
        assert reader.readframes(len(samples)) == to_pcm16(samples)


def test_pcm16_is_headerless():
    samples = make_sample_tone(0.25)

    assert encode_audio(samples, 24000, "pcm16") == b"".join(encode_pieces("pcm16", samples)) == to_pcm16(samples)


def test_an_empty_answer_is_a_valid_wav_file():
    with wave.open(io.BytesIO(encode_wav(b"", 24000))) as reader:
        assert reader.getnframes() == 0


@pytest.mark.parametrize(("format", "mime", "rate"), FORMATS)
def test_each_format_plays_the_tone(format: SoundFormat, mime: str, rate: int):
    data = encode_audio(make_sample_tone(1.0), 24000, format)

    sound, decoded_rate = decode_audio(data)

    assert sniff_mime(data) == mime == MIME[format]
    assert READERS[mime](data).seconds == pytest.approx(1.0, rel=0.2)
    assert decoded_rate == rate
    assert len(sound) / rate == pytest.approx(1.0, abs=0.1)
    assert measure_pitch(sound, rate) == pytest.approx(440, abs=4)
    middle = sound[rate // 4 : rate // 4 + rate // 2]
    assert np.sqrt(np.mean(middle**2)) == pytest.approx(0.5 / np.sqrt(2), rel=0.1)


def test_flac_is_exact():
    samples = make_sample_tone(0.5)

    sound, _ = decode_audio(encode_audio(samples, 24000, "flac"))

    assert np.array_equal((sound * 32768).round(), np.frombuffer(to_pcm16(samples), "<i2"))


@pytest.mark.parametrize("count", [0, 1, 100])
@pytest.mark.parametrize("format", COMPRESSED)
def test_almost_no_sound_is_still_a_file(format: SoundFormat, count: int):
    sound, rate = decode_audio(encode_audio(np.zeros(count, np.float32), 16000, format))

    assert 0.005 <= len(sound) / rate < 0.1


# Piece by piece


@pytest.mark.parametrize(("format", "mime", "rate"), FORMATS)
def test_a_file_that_comes_in_pieces_plays_the_tone(format: SoundFormat, mime: str, rate: int):
    data = b"".join(encode_pieces(format, make_sample_tone(2.0)))

    sound, decoded_rate = decode_audio(data)

    assert (sniff_mime(data), decoded_rate) == (mime, rate)
    assert len(sound) / rate == pytest.approx(2.0, abs=0.1)
    assert measure_pitch(sound, rate) == pytest.approx(440, abs=4)


@pytest.mark.parametrize("format", COMPRESSED)
def test_pieces_come_while_the_sound_is_being_made(format: SoundFormat):
    chunks = encode_pieces(format, make_sample_tone(2.0))

    before = len(b"".join(chunks[:10]))
    assert 0.3 < before / len(b"".join(chunks)) < 0.7
    sound, rate = decode_audio(b"".join(chunks[:10]))  # the first second is playable
    assert len(sound) / rate > 0.5


def test_a_streamed_wav_file_is_read_by_others_as_far_as_it_is_there():
    samples = make_sample_tone(0.5)

    file = b"".join(encode_pieces("wav", samples))

    sound, rate = decode_audio(file)
    assert (len(sound), rate) == (len(samples), 24000)
    with wave.open(io.BytesIO(file)) as reader:
        assert reader.readframes(len(samples) + 100) == to_pcm16(samples)


@pytest.mark.parametrize("format", COMPRESSED)
def test_a_stream_of_nothing_is_still_a_file(format: SoundFormat):
    sound, rate = decode_audio(StreamingAudioEncoder(format, 16000).close())

    assert 0.005 <= len(sound) / rate < 0.15


def test_only_what_takes_a_while_is_slow():
    assert [StreamingAudioEncoder(format, 24000).slow for format in MIME] == [False, False, True, True, True, True]
    assert StreamingAudioEncoder("wav", 24000, 1.5).slow


# Speed


@pytest.mark.parametrize("speed", [MIN_SPEED, 0.5, 0.8, 1.5, MAX_SPEED])
def test_another_speed_is_another_length_with_the_same_pitch(speed: float):
    samples = make_sample_tone(2.0)

    sound = np.frombuffer(b"".join(encode_pieces("pcm16", samples, speed)), "<i2")

    assert len(sound) / len(samples) == pytest.approx(1 / speed, rel=0.05)
    assert measure_pitch(sound, 24000) == pytest.approx(440, abs=5)


def test_another_speed_of_nothing_is_nothing():
    assert encode_pieces("pcm16", make_sample_tone(0.0), 2.0) == [b""]
