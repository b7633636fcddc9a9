"""Encoded videos, decoded by FFmpeg: their size, duration, frames and audio."""

from pathlib import Path
from typing import NamedTuple

import av
import numpy as np
import pytest

from omnibus.encoding.video import VideoWriter
from omnibus.errors import BadRequest, Fatal, StorageFull

RATE = 8000


class VideoFileContents(NamedTuple):
    frames: np.ndarray
    fps: float
    sound: np.ndarray | None
    rate: int
    codecs: list[str]


def read_video(path: Path) -> VideoFileContents:
    with av.open(str(path)) as file:
        [pictures] = file.streams.video
        tracks = file.streams.audio
        frames = np.stack([frame.to_ndarray(format="rgb24") for frame in file.decode(pictures)])
        fps, codecs = float(pictures.average_rate), [each.codec_context.name for each in file.streams]
    if not tracks:
        return VideoFileContents(frames, fps, None, 0, codecs)
    with av.open(str(path)) as file:
        [track] = file.streams.audio
        sound = np.concatenate([frame.to_ndarray() for frame in file.decode(track)], -1)
        return VideoFileContents(frames, fps, sound.T, track.rate, codecs)


def make_frames(count: int, height: int = 32, width: int = 64) -> np.ndarray:
    """Return frames of a bright bar that moves right over a colour."""
    frames = np.full((count, height, width, 3), (40, 90, 160), np.uint8)
    for number, frame in enumerate(frames):
        frame[:, 4 * number : 4 * number + 8] = (200, 180, 60)
    return frames


def make_tone(seconds: float, rate: int = RATE) -> np.ndarray:
    """Return stereo audio with a different note in each channel."""
    time = np.arange(int(seconds * rate)) / rate
    return np.stack([np.sin(2 * np.pi * note * time) for note in (440, 660)], 1).astype(np.float32) * 0.5


def measure_note(samples: np.ndarray, rate: int) -> float:
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(np.fft.rfftfreq(len(samples), 1 / rate)[spectrum.argmax()])


def test_a_silent_film_has_its_frames_in_order(tmp_path: Path):
    film, frames = VideoWriter(tmp_path / "film", 24.0), make_frames(9)

    film.add_frames(frames[:4])
    film.add_frames(frames[4:])
    film.close()

    video = read_video(tmp_path / "film")
    assert (video.frames.shape, video.fps, video.sound, video.codecs) == (frames.shape, 24.0, None, ["h264"])
    assert np.abs(video.frames.astype(int) - frames).mean() < 6


@pytest.mark.parametrize("fps", [12.5, 23.976, 30.0, 120.0])
def test_a_film_has_its_pace(tmp_path: Path, fps: float):
    film = VideoWriter(tmp_path / "film", fps)

    film.add_frames(make_frames(17))
    film.close()

    assert read_video(tmp_path / "film").fps == pytest.approx(fps, rel=1e-3)


@pytest.mark.parametrize("first", ["frames", "sound"])
def test_sound_is_heard_whichever_comes_first(tmp_path: Path, first: str):
    film, frames, sound = VideoWriter(tmp_path / "film", 24.0, sound=True), make_frames(25), make_tone(1.0)
    parts = [
        lambda: film.add_frames(frames),
        lambda: (film.add_audio(sound[:3000], RATE), film.add_audio(sound[3000:], RATE)),
    ]

    for part in parts if first == "frames" else reversed(parts):
        part()
    film.close()

    video = read_video(tmp_path / "film")
    assert video.frames.shape == frames.shape
    assert sorted(video.codecs) == ["aac", "h264"]
    assert (video.rate, video.sound.shape[1]) == (RATE, 2)
    assert len(video.sound) == pytest.approx(RATE, abs=2048)
    assert [measure_note(video.sound[:, ear], RATE) for ear in (0, 1)] == [
        pytest.approx(440, abs=8),
        pytest.approx(660, abs=8),
    ]


@pytest.mark.parametrize(("rate", "expected_rate"), [(24000, 24000), (25000, 48000)])
def test_sound_of_one_channel_has_a_rate_that_players_know(tmp_path: Path, rate: int, expected_rate: int):
    film = VideoWriter(tmp_path / "film", 24.0, sound=True)

    film.add_audio(make_tone(0.5, rate)[:, 0], rate)
    film.add_frames(make_frames(9))
    film.close()

    video = read_video(tmp_path / "film")
    assert (video.rate, video.sound.shape[1]) == (expected_rate, 1)
    assert measure_note(video.sound[:, 0], video.rate) == pytest.approx(440, abs=8)


def test_sound_that_never_came_leaves_a_silent_film(tmp_path: Path):
    film = VideoWriter(tmp_path / "film", 24.0, sound=True)

    film.add_frames(make_frames(9))
    film.close()

    assert read_video(tmp_path / "film").codecs == ["h264"]


def test_the_index_comes_first(tmp_path: Path):
    film = VideoWriter(tmp_path / "film", 24.0)

    film.add_frames(make_frames(9))
    film.close()

    data = (tmp_path / "film").read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")


@pytest.mark.parametrize(
    "frames",
    [np.zeros((1, 31, 64, 3), np.uint8), np.zeros((1, 32, 64, 3), np.float32), np.zeros((32, 64, 3), np.uint8)],
)
def test_what_is_no_frame_is_refused(tmp_path: Path, frames: np.ndarray):
    film = VideoWriter(tmp_path / "film", 24.0)

    with pytest.raises(BadRequest, match="frames must be"):
        film.add_frames(frames)


def test_what_is_no_sound_is_refused(tmp_path: Path):
    film = VideoWriter(tmp_path / "film", 24.0, sound=True)

    with pytest.raises(BadRequest, match="audio must be"):
        film.add_audio(np.zeros((10, 6), np.float32), RATE)


def test_a_film_without_frames_is_none(tmp_path: Path):
    film = VideoWriter(tmp_path / "film", 24.0)

    with pytest.raises(BadRequest, match="at least one frame"):
        film.close()


def test_a_place_that_takes_no_files_is_said(tmp_path: Path):
    film = VideoWriter(tmp_path / "nowhere" / "film", 24.0)

    with pytest.raises(Fatal, match="cannot write the video"):
        film.add_frames(make_frames(60, 64, 256))
    film.abort()


def test_a_full_disk_is_said():
    film = VideoWriter(Path("/dev/full"), 24.0)

    with pytest.raises(StorageFull, match="is full"):
        film.add_frames(np.random.default_rng(0).integers(0, 255, (64, 64, 256, 3), np.uint8))
    film.abort()
