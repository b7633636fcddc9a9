"""Samples become files that other programs can play."""

import io
import wave
from typing import Any

import av
import numpy as np
import pytest

from services.gateway.openai.audio import encode_audio, pcm16, render, stream_wav_header, wav
from services.gateway.openai.formats.sniff import READERS, sniff
from services.gateway.openai.schema import OutputFormat
from tests.unit.gateway.samples import tone


def decode(data: bytes) -> tuple[np.ndarray, int]:
    """Mono float samples and their rate, by FFmpeg."""
    with av.open(io.BytesIO(data)) as file:
        frames: list[Any] = list(file.decode(audio=0))
    resampler = av.AudioResampler(format="flt", layout="mono", rate=frames[0].sample_rate)
    pieces = [piece.to_ndarray().ravel() for frame in frames for piece in resampler.resample(frame)]
    return np.concatenate(pieces), frames[0].sample_rate


def test_pcm16_clips_and_rounds() -> None:
    samples = np.array([0.0, 1.0, -1.0, 2.0, -2.0, 0.5], np.float32)

    assert np.frombuffer(pcm16(samples), "<i2").tolist() == [0, 32767, -32767, 32767, -32767, 16384]


def test_a_wav_file_is_read_by_the_standard_library() -> None:
    samples = tone(0.25)

    with wave.open(io.BytesIO(encode_audio(samples, 24000, "wav"))) as reader:
        assert (reader.getnchannels(), reader.getsampwidth(), reader.getframerate()) == (1, 2, 24000)
        assert reader.getnframes() == len(samples)
        assert reader.readframes(len(samples)) == pcm16(samples)


def test_pcm16_is_headerless() -> None:
    samples = tone(0.25)

    assert encode_audio(samples, 24000, "pcm16") == pcm16(samples)


def test_an_empty_answer_is_a_valid_wav_file() -> None:
    with wave.open(io.BytesIO(wav(b"", 24000))) as reader:
        assert reader.getnframes() == 0


def test_a_stream_header_is_read_by_ffmpeg() -> None:
    samples = tone(0.25)

    decoded, rate = decode(stream_wav_header(24000) + pcm16(samples))

    assert (len(decoded), rate) == (len(samples), 24000)


FORMATS = [("wav", "audio/wav", 24000), ("flac", "audio/flac", 24000), ("mp3", "audio/mpeg", 44100)]
FORMATS += [("opus", "audio/ogg", 48000), ("aac", "audio/aac", 44100)]


@pytest.mark.parametrize(("format", "mime", "rate"), FORMATS)
async def test_each_format_plays_the_tone(format: OutputFormat, mime: str, rate: int) -> None:
    data = await render(tone(1.0), 24000, format)

    decoded, decoded_rate = decode(data)

    assert sniff(data) == mime
    assert READERS[mime](data).seconds == pytest.approx(1.0, rel=0.2)
    assert decoded_rate == rate
    assert len(decoded) / rate == pytest.approx(1.0, abs=0.1)
    middle = decoded[rate // 4 : rate // 4 + rate // 2]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    assert np.argmax(spectrum) * rate / len(middle) == pytest.approx(440, abs=4)
    assert np.sqrt(np.mean(middle**2)) == pytest.approx(0.5 / np.sqrt(2), rel=0.1)


def test_flac_is_exact() -> None:
    samples = tone(0.5)

    decoded, _ = decode(encode_audio(samples, 24000, "flac"))

    assert np.array_equal((decoded * 32768).round(), np.frombuffer(pcm16(samples), "<i2"))


@pytest.mark.parametrize("count", [0, 1, 100])
@pytest.mark.parametrize("format", ["flac", "mp3", "opus", "aac"])
def test_almost_no_sound_is_still_a_file(format: OutputFormat, count: int) -> None:
    decoded, rate = decode(encode_audio(np.zeros(count, np.float32), 16000, format))

    assert 0.005 <= len(decoded) / rate < 0.1
