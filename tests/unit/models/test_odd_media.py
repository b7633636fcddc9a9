"""Rare valid files reach models as other programs show them."""

from typing import NamedTuple

import numpy as np
import pytest

from omnibus_models import media
from tests.unit.models.odd_images import odd_images
from tests.unit.models.odd_videos import MATRICES, OddVideo, Pixels, odd_videos, show_upright

#: Matroska counts milliseconds.
_STAMP_SECONDS = 0.0011


class OddVideos(NamedTuple):
    """Videos, their frames as FFmpeg shows them, and the models' clips."""

    videos: list[OddVideo]
    shown: list[Pixels]
    clips: list[media.Clip]


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> OddVideos:
    folder = tmp_path_factory.mktemp("videos")
    videos = odd_videos(folder)
    clips = [media.decode_video(memoryview(video.data)) for video in videos]
    return OddVideos(videos, show_upright(videos, folder), clips)


@pytest.mark.behaviour(
    "Pillow 13.0",
    "clips grey of 16 bits and floats to 8 bits in convert('RGB'), keeps colours hidden under alpha, and compares a "
    "PNG's colour key with pixels that it scaled before",
    "scales samples by their depth and puts transparent pixels on white",
    source="PNG, third edition, 11.3.1.1 and 13.12",
)
def test_odd_images_are_given_as_they_are_shown() -> None:
    images = list(odd_images())
    assert len(images) > 300

    for image in images:
        given = np.asarray(media.decode_image(memoryview(image.data)))

        assert given.shape == image.expected.shape, image.name
        assert largest_difference(given, image.expected) <= image.tolerance, image.name


@pytest.mark.behaviour(
    "PyAV 18.1",
    "decodes past display matrices: VideoFrame.rotation names a multiple of 90 degrees and no mirror",
    "turns and mirrors frames as FFmpeg's autorotate does",
    source="ISO/IEC 14496-12, 8.3.2",
)
def test_frames_of_odd_videos_are_given_as_they_are_shown(odd: OddVideos) -> None:
    assert len(odd.videos) > 80

    for video, shown, clip in zip(*odd, strict=True):
        assert len(shown) == len(video.seconds), video.name
        expected = shown[[nearest_frame(video, second) for second in clip.seconds]]
        assert clip.frames.shape == expected.shape, video.name
        assert largest_difference(clip.frames, expected) <= video.tolerance, video.name


@pytest.mark.behaviour(
    "PyAV 18.1",
    "gives frames of H.264 in AVI times that go back and forth, as the container knows the times of packets alone",
    "takes the times of the packets where those of the frames are out of order, as the ffmpeg command does",
    source="FFmpeg, libavcodec/decode.c, guess_correct_pts",
)
def test_frames_of_odd_videos_are_spread_over_them_and_have_their_times(odd: OddVideos) -> None:
    for video, _, clip in zip(*odd, strict=True):
        numbers = [nearest_frame(video, second) for second in clip.seconds]
        times = [float(video.seconds[number]) for number in numbers]

        assert clip.seconds == pytest.approx(times, abs=_STAMP_SECONDS), video.name
        assert len(clip.frames) / clip.fps == pytest.approx(float(video.length), abs=2 * _STAMP_SECONDS), video.name
        assert clip.steady == video.steady, video.name
        assert numbers == expected_numbers(video), video.name


def test_every_display_matrix_shows_something_else(odd: OddVideos) -> None:
    turned = [shown[0].tobytes() for video, shown, _ in zip(*odd, strict=True) if video.name.startswith("mov ")]

    assert len(set(turned)) >= len(MATRICES)


def largest_difference(given: Pixels, expected: Pixels) -> int:
    """Return the largest difference of two images in levels."""
    return int(abs(given.astype(int) - expected).max())


def nearest_frame(video: OddVideo, second: float) -> int:
    """Return the frame that is shown nearest to ``second``."""
    return min(range(len(video.seconds)), key=lambda number: abs(float(video.seconds[number]) - second))


def expected_numbers(video: OddVideo) -> list[int]:
    """Return the numbers of two frames per second.

    At a constant rate they are chosen by number, as processors do, otherwise at even times.
    """
    total = len(video.seconds)
    count = max(1, min(total, int(float(video.length) * 2 + 1e-6)))
    if video.steady:
        return np.linspace(0, total - 1, count).round().astype(int).tolist()
    if count == total:
        return list(range(total))
    spots = np.linspace(0, float(video.seconds[-1]), count)
    return sorted({nearest_frame(video, spot) for spot in spots})
