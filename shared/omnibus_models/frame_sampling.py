"""Choice of video frames for a model, as in its family's processor.

With a constant rate, frames are chosen by their numbers, as in all processors. Otherwise they are chosen at even times:
counting frames would ignore the pauses of a screen recording. Sources are in docs/models.md.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

#: Frames per second if a processor has no setting.
DEFAULT_FPS = 2.0


@dataclass(frozen=True)
class FrameSampling:
    """Sampling rule of one family: ``fps`` frames per second, or ``count`` frames for any length.

    It takes at least ``least`` and at most ``most`` frames, a multiple of ``multiple``, and never more than the video
    has. ``place`` ``ends`` spreads frames from the first to the last. ``starts`` and ``middles`` cut the video into
    equal parts, and take the frame that is shown at the start or in the middle of each.
    """

    fps: float = DEFAULT_FPS
    count: int | None = None
    least: int = 1
    most: int | None = None
    multiple: int = 1
    place: Literal["ends", "starts", "middles"] = "ends"

    @staticmethod
    def of_processor(processor: Any, **changes: Any) -> "FrameSampling":
        """Return the rule with the settings of a checkpoint's video processor."""
        fps, count = getattr(processor, "fps", None), getattr(processor, "num_frames", None)
        bounds = {"least": getattr(processor, "min_frames", None), "most": getattr(processor, "max_frames", None)}
        known_bounds = {name: int(value) for name, value in bounds.items() if value is not None}
        return FrameSampling(float(fps or DEFAULT_FPS), int(count) if count else None, **{**known_bounds, **changes})

    def frame_count(self, timing: "FrameTiming", limit: int) -> int:
        """Return the number of frames to take, at most ``limit``."""
        total = len(timing.times)
        target = self.count or max(self.least, int(timing.length * Fraction(self.fps).limit_denominator(1000)))
        count = min(target, total, limit, self.most or total)
        # With uneven times, no frame is dropped to reach a multiple, since the processor pads to it.
        multiple = self.multiple if timing.steady or count < total else 1
        return max(1, count // multiple * multiple)

    def choose_frames(self, timing: "FrameTiming", limit: int) -> list[int]:
        """Return the numbers of the frames to take, ascending and distinct."""
        count, total = self.frame_count(timing, limit), len(timing.times)
        if count == total:
            return list(range(total))
        if self.place == "ends":
            spots = [Fraction(number * (total - 1), max(1, count - 1)) for number in range(count)]
            numbers = [round(spot) if timing.steady else timing.nearest(spot) for spot in spots]
        else:
            shift = Fraction(1, 2) if self.place == "middles" else Fraction(0)
            spots = [(number + shift) * total / count for number in range(count)]
            numbers = [int(spot) if timing.steady else timing.shown(spot) for spot in spots]
        return list(dict.fromkeys(numbers))


@dataclass(frozen=True)
class FrameTiming:
    """Times of the frames of a video: ``times`` in seconds, ascending from 0, and its ``length``.

    ``steady`` means that each frame is within half a frame of its time at a constant rate. Containers that count
    milliseconds round the times of a constant rate.
    """

    times: Sequence[Fraction]
    length: Fraction
    steady: bool

    @staticmethod
    def of_stamps(stamps: Sequence[Fraction], last: Fraction, rate: Fraction | None) -> "FrameTiming":
        """Return the timing of frames with ``stamps``.

        The last frame is shown for ``last`` seconds; 0 is unknown. ``rate`` is the container's frames per second.
        """
        times = [stamp - stamps[0] for stamp in stamps]
        gaps, end = len(times) - 1, times[-1]
        if not end:
            return FrameTiming(times, last or (1 / rate if rate else Fraction(1, 25)), len(times) == 1)
        step = end / gaps
        steady = all(abs(time - number * step) * 2 <= step for number, time in enumerate(times))
        length = end + (step if steady and last * 2 < step else last or step)
        if steady and rate and abs(len(times) / rate - length) * 100 <= length:
            length = len(times) / rate
        return FrameTiming(times, length, steady)

    def nearest(self, spot: Fraction) -> int:
        """Return the frame nearest to frame ``spot`` at a constant rate."""
        time = self.times[-1] * spot / max(1, len(self.times) - 1)
        after = min(bisect_right(self.times, time), len(self.times) - 1)
        before = max(0, after - 1)
        return before if time - self.times[before] <= self.times[after] - time else after

    def shown(self, spot: Fraction) -> int:
        """Return the frame on display when ``spot`` would begin at constant rate."""
        return max(0, bisect_right(self.times, self.length * spot / len(self.times)) - 1)

    def seconds(self, number: int) -> float:
        """Return the time of frame ``number``: with a constant rate from that, since stamps may be rounded."""
        return float(number * self.length / len(self.times) if self.steady else self.times[number])
