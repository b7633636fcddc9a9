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
def odd_video_set(tmp_path_factory: pytest.TempPathFactory) -> OddVideos:
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
        pixels = np.asarray(media.decode_image(memoryview(image.data)))

        assert pixels.shape == image.expected.shape, image.name
        assert largest_difference(pixels, image.expected) <= image.tolerance, image.name


@pytest.mark.behaviour(
    "PyAV 18.1",
    "decodes past display matrices: VideoFrame.rotation names a multiple of 90 degrees and no mirror",
    "turns and mirrors frames as FFmpeg's autorotate does",
    source="ISO/IEC 14496-12, 8.3.2",
)
def test_frames_of_odd_videos_are_given_as_they_are_shown(odd_video_set: OddVideos) -> None:
    assert len(odd_video_set.videos) > 80

    for video, shown_frames, clip in zip(*odd_video_set, strict=True):
        assert len(shown_frames) == len(video.seconds), video.name
        reference = shown_frames[[nearest_frame(video, second) for second in clip.seconds]]
        assert clip.frames.shape == reference.shape, video.name
        assert largest_difference(clip.frames, reference) <= video.tolerance, video.name


@pytest.mark.behaviour(
    "PyAV 18.1",
    "gives frames of H.264 in AVI times that go back and forth, as the container knows the times of packets alone",
    "takes the times of the packets where those of the frames are out of order, as the ffmpeg command does",
    source="FFmpeg, libavcodec/decode.c, guess_correct_pts",
)
def test_frames_of_odd_videos_are_spread_over_them_and_have_their_times(odd_video_set: OddVideos) -> None:
    for video, _, clip in zip(*odd_video_set, strict=True):
        numbers = [nearest_frame(video, second) for second in clip.seconds]
        times = [float(video.seconds[number]) for number in numbers]

        assert clip.seconds == pytest.approx(times, abs=_STAMP_SECONDS), video.name
        assert len(clip.frames) / clip.fps == pytest.approx(float(video.length), abs=2 * _STAMP_SECONDS), video.name
        assert clip.steady == video.steady, video.name
        assert numbers == expected_numbers(video), video.name


def test_every_display_matrix_shows_something_else(odd_video_set: OddVideos) -> None:
    first_frames = [
        frames[0].tobytes() for video, frames, _ in zip(*odd_video_set, strict=True) if video.name.startswith("mov ")
    ]

    assert len(set(first_frames)) >= len(MATRICES)


def largest_difference(actual: Pixels, reference: Pixels) -> int:
    """Return the largest difference of two images in levels."""
    return int(abs(actual.astype(int) - reference).max())


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
