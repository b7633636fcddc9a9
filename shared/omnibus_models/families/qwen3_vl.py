"""Qwen3-VL: a vision encoder and a language model (``Qwen3VLForConditionalGeneration``).

A video is written into the prompt frame by frame, each with the second at which it is seen.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from omnibus import errors
from omnibus_models import loading, media
from omnibus_models.contract import Encoded, Prepared
from omnibus_models.families import _qwen, _qwen3

_TYPES = {"text": 0, "image": 1, "video": 2}  # the library's mm_token_type_ids


class Thinker(_qwen3.Thinker):
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

    def _positions(self, ids: Tensor, media: Sequence[Encoded]) -> tuple[Tensor, Tensor]:
        kinds = torch.zeros_like(ids)
        for token, modality in self._placeholders.items():
            kinds[ids == token] = _TYPES[modality]
        module: Any = self.module
        return module.model.get_rope_index(
            ids,
            mm_token_type_ids=kinds,
            image_grid_thw=_qwen.grids(media, "image"),
            video_grid_thw=_qwen.grids(media, "video"),
            attention_mask=torch.ones_like(ids),
        )


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


class Qwen3VL:
    """See ``contract.Family``."""

    name = "qwen3_vl"
    components = ("vision", "thinker")

    def load(
        self,
        component: str,
        checkpoint: Path,
        device: str = "cpu",
        dtype: str = "float32",
        limits: media.Limits = media.DEFAULT,
    ) -> Any:
        """Load ``vision`` or ``thinker`` alone. ``limits`` bound the media that ``vision`` accepts."""
        checkpoint = Path(checkpoint)
        match component:
            case "vision":
                module = _load(checkpoint, ["model.language_model", "lm_head"], device, dtype)
                return _qwen.vision_encoder(module, checkpoint, limits, {}, VisionEncoder)
            case "thinker":
                return Thinker(_load(checkpoint, ["model.visual"], device, dtype), checkpoint, ("image", "video"))
        raise errors.NotFound(f"{self.name} has no component {component!r}; it has {', '.join(self.components)}")

    def reader(self, checkpoint: Path, dtype: str = "float32") -> Thinker:
        """See ``contract.Family``."""
        checkpoint = Path(checkpoint)
        drop = ["model.visual", "model.language_model.layers", "lm_head"]
        return Thinker(_load(checkpoint, drop, "cpu", dtype), checkpoint, ("image", "video"))


def _load(checkpoint: Path, drop: Sequence[str], device: str, dtype: str) -> Any:
    from transformers import Qwen3VLForConditionalGeneration

    return loading.load(Qwen3VLForConditionalGeneration, checkpoint, drop=drop, device=device, dtype=dtype)


FAMILY = Qwen3VL()
