"""Only listed codecs are decoded. Decoding stops on its deadline and on cancellation."""

import io
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import av
import numpy as np
import pytest

from omnibus.errors import BadMedia, StageUnavailable, TooLarge
from omnibus_models import limits, media
from tests.unit.models import files

PIXELS = {"prores": "yuv422p10le", "mjpeg": "yuvj420p"}


def encode_codec_film(codec: str, container: str) -> bytes:
    """Return two seconds of compressible noise, encoded in a separate thread.

    As root, SVT-AV1 makes the thread that opens it a realtime one, which would starve all other processes.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_encode_film, codec, container).result()


def _encode_film(codec: str, container: str) -> bytes:
    out, random = io.BytesIO(), np.random.default_rng(0)
    with av.open(out, "w", format=container) as file:
        options = {"strict": "experimental"} if codec == "snow" else {}
        stream = file.add_stream(codec, rate=4, options=options)
        stream.width, stream.height, stream.pix_fmt = 64, 48, PIXELS.get(codec, "yuv420p")
        for _ in range(8):
            pixels = random.integers(0, 255, (48, 64, 3), dtype=np.uint8)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        file.mux(stream.encode(None))
    return out.getvalue()


@pytest.mark.parametrize(
    ("codec", "container"),
    [
        ("libx264", "matroska"),
        ("libx264", "mp4"),
        ("libx265", "mp4"),
        ("libsvtav1", "mp4"),
        ("libvpx", "webm"),
        ("libvpx-vp9", "webm"),
        ("mpeg4", "mp4"),
        ("mpeg2video", "matroska"),
    ],
)
def test_films_in_usual_codecs_are_read(codec: str, container: str) -> None:
    assert media.decode_video(memoryview(encode_codec_film(codec, container))).frames.shape[1:] == (48, 64, 3)
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


@pytest.mark.parametrize(
    ("codec", "container"),
    [
        ("ffv1", "matroska"),
        ("jpeg2000", "matroska"),
        ("mjpeg", "matroska"),
        ("mjpeg", "avi"),
        ("prores", "mov"),
        ("rawvideo", "avi"),
        ("snow", "matroska"),
    ],
)
def test_a_film_in_any_other_codec_is_refused_before_it_is_decoded(codec: str, container: str) -> None:
    with pytest.raises(BadMedia, match="codec that is not read here; send one of: .*h264"):
        media.decode_video(memoryview(encode_codec_film(codec, container)))


WAV_CODECS = ["pcm_u8", "pcm_s24le", "pcm_f32le", "pcm_f64le", "pcm_alaw", "pcm_mulaw", "adpcm_ms", "adpcm_ima_wav"]


@pytest.mark.parametrize("codec", WAV_CODECS)
def test_a_wav_is_read_however_its_samples_are_stored(codec: str) -> None:
    # ADPCM fills its last block.
    slack = 1100 if codec.startswith("adpcm") else 8
    assert abs(len(media.decode_audio(memoryview(files.encode_tone(1.0, codec, "wav")))) - 16_000) < slack


@pytest.mark.parametrize(
    ("codec", "container"), [("alac", "mp4"), ("aac", "mp4"), ("ac3", "mp4"), ("libopus", "webm"), ("mp2", "matroska")]
)
def test_sound_in_usual_codecs_is_read(codec: str, container: str) -> None:
    assert len(media.decode_audio(memoryview(files.encode_tone(1.0, codec, container, rate=48_000)))) > 15_000


@pytest.mark.parametrize(
    ("codec", "container"), [("wavpack", "matroska"), ("adpcm_yamaha", "wav"), ("tta", "matroska")]
)
def test_sound_in_any_other_codec_is_refused_before_it_is_decoded(codec: str, container: str) -> None:
    with pytest.raises(BadMedia, match="codec that is not read here; send one of: aac"):
        media.decode_audio(memoryview(files.encode_tone(1.0, codec, container)))


FILES = {"video": (media.decode_video, files.make_film(2.0)), "audio": (media.decode_audio, files.make_tone(2.0))}


@pytest.mark.parametrize("modality", FILES)
def test_a_recording_that_takes_too_long_to_decode_is_refused(modality: str) -> None:
    decode, data = FILES[modality]

    with pytest.raises(TooLarge, match="0 seconds to decode"):
        decode(memoryview(data), limits.MediaDecodeLimits(cpu_seconds=0.0))


@pytest.mark.parametrize("modality", FILES)
def test_decoding_ends_when_nobody_waits_for_it(modality: str) -> None:
    decode, data = FILES[modality]
    cancel_event = threading.Event()
    cancel_event.set()

    token = limits.CANCELLED.set(cancel_event)
    try:
        with pytest.raises(StageUnavailable, match="decoding was cancelled"):
            decode(memoryview(data))
    finally:
        limits.CANCELLED.reset(token)
