"""Video through PyAV: the sampled frames, upright, in RGB. Private to ``media``, the error boundary."""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from omnibus import errors
from omnibus_models import _av
from omnibus_models import limits as bounds
from omnibus_models.frame_sampling import FrameSampling, FrameTiming

if TYPE_CHECKING:
    from numpy.typing import NDArray

_UNKNOWN_RATE = Fraction(25)
#: Entries of a display matrix that are less than this part of the largest are 0: ffmpeg tolerates one degree.
_RIGHT_ANGLE = math.sin(math.radians(1))
#: Packets per frame; some codecs have packets without a visible frame.
_PACKETS_PER_FRAME = 4


def decode_video(data: memoryview, limits: bounds.MediaDecodeLimits, sampling: FrameSampling) -> bounds.Clip:
    """See ``media.decode_video``.

    A first pass reads the times of frames without decoding them, and chooses among them. If the decoder returns other
    frames than the container lists, another pass chooses among those.
    """
    budget = bounds.DecodeBudget(limits)
    frame_numbers = _choose_by_packets(data, limits, budget, sampling)
    for _ in range(2):
        reel = _decode_frames(data, limits, budget, frame_numbers)
        timing = reel.make_timing()
        new_numbers = sampling.choose_frames(timing, reel.room)
        if new_numbers == list(reel.kept):
            break
        frame_numbers = new_numbers
    frames = np.stack([reel.kept.pop(number) for number in new_numbers])
    return bounds.Clip(
        frames, float(len(frames) / timing.length), tuple(timing.seconds(each) for each in new_numbers), timing.steady
    )


def _choose_by_packets(
    data: memoryview, limits: bounds.MediaDecodeLimits, budget: bounds.DecodeBudget, sampling: FrameSampling
) -> list[int]:
    with _av.open_track(data, "video") as (container, stream):
        _check_header(stream, limits)
        stamps, last = [], Fraction(0)
        for number, packet in enumerate(container.demux(stream)):
            budget.raise_if_spent()
            if number > limits.frames * _PACKETS_PER_FRAME:
                raise _too_many_frames(limits)
            if packet.pts is None or packet.is_discard:  # the end, or a packet that an edit list excludes
                continue
            stamps.append(packet.pts * stream.time_base)
            last = (packet.duration or 0) * stream.time_base
        if not stamps:
            return []
        timing = FrameTiming.of_stamps(sorted(stamps), last, stream.average_rate)
        return sampling.choose_frames(timing, _frames_that_fit(stream.codec_context, limits))


def _check_header(stream: Any, limits: bounds.MediaDecodeLimits) -> None:
    bounds.check_pixels(stream.codec_context.width, stream.codec_context.height, limits)
    bounds.check_seconds(_av.declared_seconds(stream), limits)


def _decode_frames(
    data: memoryview, limits: bounds.MediaDecodeLimits, budget: bounds.DecodeBudget, frame_numbers: Sequence[int]
) -> "_DecodedTimes":
    with _av.open_track(data, "video") as (container, stream):
        _check_header(stream, limits)
        context = stream.codec_context
        # One thread, so that its CPU time is the whole cost of the video.
        context.thread_count = 1
        # Later frames may be larger than the header states; the decoder itself rejects those.
        context.options = {"max_pixels": str(limits.pixels)}
        reel = _DecodedTimes(limits, stream.average_rate or _UNKNOWN_RATE, frozenset(frame_numbers))
        for frame in container.decode(stream):
            budget.raise_if_spent()
            reel.add_frame(frame)
        _av.require_complete(container, stream, reel.end)
    return reel


def _frames_that_fit(size: Any, limits: bounds.MediaDecodeLimits) -> int:
    """Return the number of frames of ``size`` that may be kept."""
    return max(2, min(limits.sampled, limits.video_pixels // max(1, size.width * size.height)))


def _too_many_frames(limits: bounds.MediaDecodeLimits) -> errors.TooLarge:
    return errors.TooLarge(f"the video has more than {limits.frames} frames; send a shorter one")


class _DecodedTimes:
    """Result of one decoder pass: the times of all frames, and those ``frame_numbers`` by number.

    ``room`` limits the memory, even if the header was wrong.
    """

    def __init__(self, limits: bounds.MediaDecodeLimits, rate: Fraction, frame_numbers: frozenset[int]) -> None:
        self._limits = limits
        self._rate = rate
        self._chosen = frame_numbers
        self._ticks: list[tuple[int | None, int | None]] = []  # of presentation, and of reading
        self._unit = Fraction(1)  # seconds per tick
        self._first = self._last = Fraction(0)  # when the first frame is shown, and for how long the last one
        self._decoded = 0  # pixels
        self._size = (0, 0)  # upright
        self._turn = _Turn(False, False, False)  # codecs name it now and then, and mean it until the next one
        self.kept: dict[int, NDArray[np.uint8]] = {}
        self.room = 0
        self.end = 0.0  # seconds after the first frame

    def add_frame(self, frame: Any) -> None:
        """Record when ``frame`` is shown, and keep it if it was chosen."""
        number = len(self._ticks)
        self._add_time(frame)
        self._check_amount(frame)
        turn = self._turn = _Turn.of_frame(frame) or self._turn
        if not number:
            bounds.check_pixels(frame.width, frame.height, self._limits)
            self.room = _frames_that_fit(frame, self._limits)
            self._size = turn.swap_sides(frame.width, frame.height)
        if number in self._chosen and len(self.kept) < self.room:
            # Later frames may have another size.
            pixels = frame.reformat(*turn.swap_sides(*self._size), "rgb24").to_ndarray()
            self.kept[number] = turn.apply(pixels)

    def make_timing(self) -> FrameTiming:
        """Return the times at which all frames are shown. Raises ``BadMedia`` without any."""
        if not self._ticks:
            raise errors.BadMedia("the video holds no frames")
        # Frames arrive in display order. In AVI, their packets' times are in that order, but their own times are not.
        ticks = min(zip(*self._ticks, strict=True), key=_count_faults)
        stamps = [tick * self._unit for tick in _fill_unknown(ticks, 1 / self._rate / self._unit)]
        return FrameTiming.of_stamps(list(accumulate(stamps, max)), self._last, self._rate)

    def _add_time(self, frame: Any) -> None:
        self._ticks.append((frame.pts, frame.dts))
        self._unit = frame.time_base or self._unit
        self._last = (frame.duration or 0) * self._unit
        times = [tick * self._unit for tick in self._ticks[-1] if tick is not None]
        stamp = times[0] if times else len(self._ticks) / self._rate
        self._first = stamp if len(self._ticks) == 1 else self._first
        self.end = max(self.end, float(stamp - self._first + self._last))
        bounds.check_seconds(self.end, self._limits)

    def _check_amount(self, frame: Any) -> None:
        if len(self._ticks) > self._limits.frames:
            raise _too_many_frames(self._limits)
        self._decoded += frame.width * frame.height
        if self._decoded > self._limits.decoded:
            most = f"{self._limits.decoded} pixels in all its frames"
            raise errors.TooLarge(f"the video has more than {most}; send a smaller or shorter one")


def _count_faults(ticks: Sequence[int | None]) -> int:
    """Count the ``ticks`` that are unknown or not after the previous one.

    FFmpeg's ``guess_correct_pts`` counts in the same way.
    """
    return ticks.count(None) + sum(
        before is not None and after is not None and after <= before for before, after in pairwise(ticks)
    )


def _fill_unknown(ticks: Sequence[int | None], step: Fraction) -> Iterator[Fraction]:
    """Yield ``ticks`` with unknown ones filled at the pace of the rest.

    Without known ones, the pace is ``step``. A decoder's last ticks may be unknown.
    """
    known_ticks = [tick for tick in ticks if tick is not None]
    pace = Fraction(known_ticks[-1] - known_ticks[0], len(known_ticks) - 1) if len(known_ticks) > 1 else step
    following = Fraction(known_ticks[0] if known_ticks else 0)
    for tick in ticks:
        yield (current := following if tick is None else Fraction(tick))
        following = current + pace


class _Turn:
    """Effect of a display matrix on a frame: an exchange of its axes, then mirrors.

    Phone cameras write such matrices, and PyAV ignores them. Matrices without right angles leave a frame unchanged.
    Source: ISO/IEC 14496-12, 6.2.2, and ``ffmpeg_filter.c`` of FFmpeg (autorotate).
    """

    def __init__(self, swap: bool, mirror_x: bool, mirror_y: bool) -> None:
        self._swap, self._mirror_x, self._mirror_y = swap, mirror_x, mirror_y

    @staticmethod
    def of_frame(frame: Any) -> "_Turn | None":
        """Return the turn that brings ``frame`` upright, or None without a matrix."""
        matrix = frame.side_data.get("DISPLAYMATRIX")
        if not matrix:
            return None
        a, b, _, c, d = np.frombuffer(bytes(matrix), "<i4")[:5].tolist()
        straight, across = min(abs(a), abs(d)), min(abs(b), abs(c))
        if max(abs(b), abs(c)) <= _RIGHT_ANGLE * straight:
            return _Turn(False, a < 0, d < 0)
        if max(abs(a), abs(d)) <= _RIGHT_ANGLE * across:
            return _Turn(True, c < 0, b < 0)
        return _Turn(False, False, False)

    def swap_sides(self, width: int, height: int) -> tuple[int, int]:
        """Swap the sides of a frame if the turn does so."""
        return (height, width) if self._swap else (width, height)

    def apply(self, pixels: "NDArray[np.uint8]") -> "NDArray[np.uint8]":
        """Turn ``pixels`` [height, width, 3]; return a view of them."""
        if self._swap:
            pixels = pixels.transpose(1, 0, 2)
        return pixels[:: -1 if self._mirror_y else 1, :: -1 if self._mirror_x else 1]
