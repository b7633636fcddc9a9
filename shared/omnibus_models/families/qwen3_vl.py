"""Qwen3-VL: a vision encoder and a language model (``Qwen3VLForConditionalGeneration``).

A video is written into the prompt frame by frame, each with the second at which it is seen.
"""

import math
from collections.abc import Mapping
from typing import Any

from omnibus_models import media
from omnibus_models.contract import Encoded, Prepared
from omnibus_models.families import _qwen3, _qwen_vl


class Thinker(_qwen3.Thinker, _qwen_vl.Thinker):
    """The language model of Qwen3-VL."""

    def _check_time(self, meta: Mapping[str, Any]) -> None:
        frames, seconds = meta["grid_thw"][0], meta["seconds"]
        if len(seconds) != frames or not all(0 <= float(second) < math.inf for second in seconds):
            raise ValueError("no such time")

    def _expanded(self, token: int, item: Encoded) -> list[int]:
        if item.meta["modality"] != "video":
            return super()._expanded(token, item)
        module: Any = self.module
        begin, end = module.config.vision_start_token_id, module.config.vision_end_token_id
        seconds = item.meta["seconds"]
        frame = [begin, *[token] * (item.embeds.shape[0] // len(seconds)), end]
        # There are special tokens on both sides of a time, so its ids do not depend on what is around it.
        times = (
            self._tokenizer.encode(f"<{float(second):.1f} seconds>", add_special_tokens=False) for second in seconds
        )
        return [id for time in times for id in (*time, *frame)]


class VisionEncoder(_qwen3.VisionEncoder):
    """Images and videos, see ``contract.Encoder``. The meta data of a video say the ``seconds`` of its frames."""

    def _video(self, data: memoryview) -> Prepared:
        clip = media.video(data, self.limits)
        size = self.videos.temporal_patch_size
        # Frames are taken ``size`` at a time, and the library does not take fewer.
        frames = clip.frames.repeat(size, 0) if len(clip.frames) < size else clip.frames
        out = self.videos(videos=[frames], do_sample_frames=False, return_tensors="pt", **self.video_options)
        more = {"seconds": _seconds(len(clip.frames), clip.fps, size)}
        return self._prepared("video", out["pixel_values_videos"], out["video_grid_thw"], more)


def _seconds(count: int, fps: float, size: int) -> list[float]:
    """The middle of each ``size`` of ``count`` frames; the last frame fills up."""
    times = [min(index, count - 1) / fps for index in range(-(-count // size) * size)]
    return [(times[first] + times[first + size - 1]) / 2 for first in range(0, len(times), size)]


class Qwen3VL(_qwen_vl.Family):
    """See ``contract.Family``."""

    name = "qwen3_vl"
    architecture = "Qwen3VLForConditionalGeneration"
    encoder = VisionEncoder
    thinker = Thinker


FAMILY = Qwen3VL()
