"""Qwen3-VL: a vision encoder and a language model (``Qwen3VLForConditionalGeneration``).

A video is written into the prompt frame by frame, each with the second at which it is seen.
"""

import math
from collections.abc import Mapping
from typing import Any

from omnibus_models import media
from omnibus_models.contract import Encoded, Prepared
from omnibus_models.families import _qwen3, _qwen_vl


class Qwen3VlThinker(_qwen3.Qwen3DeepstackThinker, _qwen_vl.QwenVlThinker):
    """The language model of Qwen3-VL."""

    def _check_time(self, meta: Mapping[str, Any]) -> None:
        frames, seconds = meta["grid_thw"][0], meta["seconds"]
        if len(seconds) != frames or not all(0 <= float(second) < math.inf for second in seconds):
            raise ValueError("no such time")

    def _expand_placeholder(self, token: int, item: Encoded) -> list[int]:
        if item.meta["modality"] != "video":
            return super()._expand_placeholder(token, item)
        module: Any = self.module
        begin, end = module.config.vision_start_token_id, module.config.vision_end_token_id
        seconds = item.meta["seconds"]
        frame = [begin, *[token] * (item.embeds.shape[0] // len(seconds)), end]
        # There are special tokens on both sides of a time, so its ids do not depend on what is around it.
        times = (
            self._tokenizer.encode(f"<{float(second):.1f} seconds>", add_special_tokens=False) for second in seconds
        )
        return [id for time in times for id in (*time, *frame)]


class Qwen3VlVisionEncoder(_qwen3.Qwen3DeepstackVisionEncoder):
    """Images and videos, see ``contract.Encoder``. The meta data of a video say the ``seconds`` of its frames."""

    def _prepare_video(self, data: memoryview) -> Prepared:
        clip = media.decode_video(data, self.limits)
        size = self.videos.temporal_patch_size
        # Frames are taken ``size`` at a time, and the library does not take fewer.
        frames = clip.frames.repeat(size, 0) if len(clip.frames) < size else clip.frames
        out = self.videos(videos=[frames], do_sample_frames=False, return_tensors="pt", **self.video_options)
        more = {"seconds": _frame_seconds(len(clip.frames), clip.fps, size)}
        return self._make_prepared("video", out["pixel_values_videos"], out["video_grid_thw"], more)


def _frame_seconds(count: int, fps: float, size: int) -> list[float]:
    """The middle of each ``size`` of ``count`` frames; the last frame fills up."""
    times = [min(index, count - 1) / fps for index in range(-(-count // size) * size)]
    return [(times[first] + times[first + size - 1]) / 2 for first in range(0, len(times), size)]


class Qwen3VL(_qwen_vl.QwenVlFamily):
    """See ``contract.Family``."""

    name = "qwen3_vl"
    architecture = "Qwen3VLForConditionalGeneration"
    encoder = Qwen3VlVisionEncoder
    thinker = Qwen3VlThinker


FAMILY = Qwen3VL()
