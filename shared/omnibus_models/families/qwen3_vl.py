"""Qwen3-VL: a vision encoder and a language model (``Qwen3VLForConditionalGeneration``).

A video is written into the prompt frame by frame, each with its time in seconds.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from omnibus_models.contract import Encoded, Prepared
from omnibus_models.families import _qwen, _qwen3, _qwen_vl


class Qwen3VlThinker(_qwen3.Qwen3DeepstackThinker, _qwen_vl.QwenVlThinker):
    """The language model of Qwen3-VL."""

    def _check_time(self, meta: Mapping[str, Any]) -> None:
        _qwen.check_seconds(meta["seconds"], meta["grid_thw"][0])

    def _expand_placeholder(self, token: int, item: Encoded) -> list[int]:
        if item.meta["modality"] != "video":
            return super()._expand_placeholder(token, item)
        module: Any = self.module
        begin, end = module.config.vision_start_token_id, module.config.vision_end_token_id
        seconds = item.meta["seconds"]
        frame = [begin, *[token] * (item.embeds.shape[0] // len(seconds)), end]
        # There are special tokens on both sides of a time, so its ids do not depend on the surrounding text.
        times = (
            self._tokenizer.encode(f"<{float(second):.1f} seconds>", add_special_tokens=False) for second in seconds
        )
        return [id for time in times for id in (*time, *frame)]

    def _count_positions(self, ids: Tensor, media: Sequence[Encoded]) -> tuple[Tensor, int]:
        # With text between them, each frame has the positions of an image.
        return super()._count_positions(ids, [frame for item in media for frame in _frames(item)])


class Qwen3VlVisionEncoder(_qwen3.Qwen3DeepstackVisionEncoder):
    """Images and videos, see ``contract.MediaEncoder``. A video's metadata has the ``seconds`` of its frames."""

    frame_multiple = 1

    def _prepare_video(self, data: memoryview) -> Prepared:
        clip = self._decode_video(data)
        size = self.videos.temporal_patch_size
        # Frames are processed ``size`` at a time, and the library rejects fewer.
        frames = clip.frames.repeat(size, 0) if len(clip.frames) < size else clip.frames
        out = self.videos(videos=[frames], do_sample_frames=False, return_tensors="pt", **self.video_options)
        more = {"seconds": _patch_seconds(clip.seconds, size)}
        return self._make_prepared("video", out["pixel_values_videos"], out["video_grid_thw"], more)


def _frames(item: Encoded) -> list[Encoded]:
    frames, height, width = item.meta["grid_thw"]
    meta = {**item.meta, "grid_thw": [1, height, width]}
    return [Encoded(rows, meta) for rows in item.embeds.chunk(frames)]


def _patch_seconds(seconds: Sequence[float], size: int) -> list[float]:
    """Return the middle time of each ``size`` frames; the last frame is repeated to fill up."""
    frame_times = [*seconds, *[seconds[-1]] * (-len(seconds) % size)]
    return [(frame_times[first] + frame_times[first + size - 1]) / 2 for first in range(0, len(frame_times), size)]


class Qwen3VL(_qwen_vl.QwenVlFamily):
    """See ``contract.ModelFamily``."""

    name = "qwen3_vl"
    architecture = "Qwen3VLForConditionalGeneration"
    encoder = Qwen3VlVisionEncoder
    thinker = Qwen3VlThinker


FAMILY = Qwen3VL()
