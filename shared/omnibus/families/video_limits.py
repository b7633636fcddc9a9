"""Limits of a family's videos, for gateways and engines: sizes, lengths and steps."""

import msgspec

from omnibus.errors import BadRequest


class VideoLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits that all models of a family have in common.

    Sides are multiples of ``side_multiple`` pixels, at least ``min_side``. The number of frames is one more than a
    multiple of ``frame_group``. ``audio_rate`` is the number of audio latents per second, of which a video has at least
    one, or 0 without audio. ``min_fps`` and ``max_fps`` are frames per second, ``min_steps`` and ``max_steps``
    denoising steps.
    """

    side_multiple: int = 1
    min_side: int = 1
    frame_group: int = 1
    min_fps: float = 1.0
    max_fps: float = 120.0
    min_steps: int = 1
    max_steps: int = 1000
    audio_rate: float = 0.0

    def check_frames(self, width: int, height: int, frames: int, fps: float) -> None:
        """Raise ``BadRequest`` with the limits; its ``param`` is the name of the argument."""
        for name, pixels in (("width", width), ("height", height)):
            if pixels % self.side_multiple or pixels < self.min_side:
                raise BadRequest(
                    f"{name} must be a multiple of {self.side_multiple} from {self.min_side} on, not {pixels}; "
                    f"the nearest is {self._nearest_side(pixels)}",
                    param=name,
                )
        if frames < 1 or (frames - 1) % self.frame_group:
            raise BadRequest(
                f"frames must be one more than a multiple of {self.frame_group}, not {frames}", param="frames"
            )
        if not self.min_fps <= fps <= self.max_fps:
            raise BadRequest(f"fps must be {self.min_fps:g} to {self.max_fps:g}, not {fps:g}", param="fps")
        if self.audio_rate and not self.audio_length(frames, fps):
            raise BadRequest(
                f"{frames} frames at {fps:g} per second are too short to have audio; send more seconds, or a lower fps",
                param="frames",
            )

    def check_steps(self, steps: int) -> None:
        """Raise ``BadRequest`` for an unsupported number of denoising steps."""
        if not self.min_steps <= steps <= self.max_steps:
            raise BadRequest(f"steps must be {self.min_steps} to {self.max_steps}, not {steps}", param="steps")

    def audio_length(self, frames: int, fps: float) -> int:
        """Return the number of audio latents for ``frames``."""
        return round(frames / fps * self.audio_rate)

    def _nearest_side(self, pixels: int) -> int:
        least = -(-self.min_side // self.side_multiple) * self.side_multiple
        return max(least, round(pixels / self.side_multiple) * self.side_multiple)


#: LTX-2, by its pipeline and schedule. Checkpoints whose latents are larger than 16 pixels need longer sides.
LTX2 = VideoLimits(
    side_multiple=32,
    min_side=32,
    frame_group=8,
    min_fps=1.0,
    max_fps=120.0,
    min_steps=2,
    max_steps=1000,
    audio_rate=25.0,
)

#: Pipelines of diffusers that have blocks and no family: what most of them share.
MODULAR = VideoLimits(side_multiple=16, min_side=16, frame_group=4)
