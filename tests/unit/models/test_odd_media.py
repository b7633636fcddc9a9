"""Valid files that few programs write are given to models as other programs show them."""

from pathlib import Path

import numpy as np
import pytest

from omnibus_models import media
from tests.unit.models.odd_images import odd_images
from tests.unit.models.odd_videos import MATRICES, OddVideo, Pixels, odd_videos, show_upright

IMAGES = {image.name: image for image in odd_images()}
VIDEOS = {video.name: video for video in odd_videos()}
#: Matroska counts milliseconds.
_STAMP_SECONDS = 0.0011


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pixels]:
    """All frames of each video as FFmpeg shows them."""
    return dict(zip(VIDEOS, show_upright(list(VIDEOS.values()), tmp_path_factory.mktemp("videos")), strict=True))


def test_there_are_enough_of_them() -> None:
    assert len(IMAGES) + len(VIDEOS) >= 350


@pytest.mark.behaviour(
    "Pillow 13.0",
    "clips grey of 16 bits and floats to 8 bits in convert('RGB'), keeps colours hidden under alpha, and compares a "
    "PNG's colour key with pixels that it scaled before",
    "scales samples by their depth and puts transparent pixels on white",
    source="PNG, third edition, 11.3.1.1 and 13.12",
)
@pytest.mark.parametrize("name", IMAGES)
def test_an_odd_image_is_given_as_it_is_shown(name: str) -> None:
    image = IMAGES[name]

    given = np.asarray(media.decode_image(memoryview(image.data)))

    assert given.shape == image.expected.shape
    assert int(abs(given.astype(int) - image.expected).max()) <= image.tolerance


@pytest.mark.behaviour(
    "PyAV 18.1",
    "decodes past display matrices: VideoFrame.rotation names a multiple of 90 degrees and no mirror",
    "turns and mirrors frames as FFmpeg's autorotate does",
    source="ISO/IEC 14496-12, 8.3.2",
)
@pytest.mark.parametrize("name", VIDEOS)
def test_frames_of_an_odd_video_are_given_as_they_are_shown(name: str, shown: dict[str, Pixels]) -> None:
    video = VIDEOS[name]
    assert len(shown[name]) == len(video.seconds)

    clip = media.decode_video(memoryview(video.data))

    numbers = [nearest_frame(video, second) for second in clip.seconds]
    assert clip.frames.shape == shown[name][numbers].shape
    assert int(abs(clip.frames.astype(int) - shown[name][numbers]).max()) <= video.tolerance


@pytest.mark.parametrize("name", VIDEOS)
def test_frames_of_an_odd_video_are_spread_over_it_and_have_their_times(name: str) -> None:
    video = VIDEOS[name]

    clip = media.decode_video(memoryview(video.data))

    numbers = [nearest_frame(video, second) for second in clip.seconds]
    times = [float(video.seconds[number]) for number in numbers]
    assert max(abs(time - second) for time, second in zip(times, clip.seconds, strict=True)) < _STAMP_SECONDS
    assert abs(len(clip.frames) / clip.fps - float(video.length)) < 2 * _STAMP_SECONDS
    assert clip.steady == video.steady
    assert numbers == expected_numbers(video)


def nearest_frame(video: OddVideo, second: float) -> int:
    """The frame that is shown nearest to ``second``."""
    return min(range(len(video.seconds)), key=lambda number: abs(float(video.seconds[number]) - second))


def expected_numbers(video: OddVideo) -> list[int]:
    """Two frames per second: by number at a constant rate, as processors do, else at even times."""
    total = len(video.seconds)
    count = max(1, min(total, int(float(video.length) * 2 + 1e-6)))
    if video.steady:
        return np.linspace(0, total - 1, count).round().astype(int).tolist()
    spots = np.linspace(0, float(video.seconds[-1]), count)
    return sorted({nearest_frame(video, spot) for spot in spots})


def test_every_matrix_shows_something_else(shown: dict[str, Pixels]) -> None:
    first = [shown[f"mp4 {name}"][0].tobytes() for name in MATRICES]

    assert len(set(first)) == len(MATRICES)
