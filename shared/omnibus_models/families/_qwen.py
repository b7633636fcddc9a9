"""Base of the Qwen families: M-RoPE and a vision tower."""

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from omnibus import errors
from omnibus_models import media
from omnibus_models.contract import Encoded, LoadedComponent, Prepared
from omnibus_models.families import _language
from omnibus_models.families._language import control_tokens
from omnibus_models.families._language_decoder import LanguageDecoder
from omnibus_models.frame_sampling import FrameSampling
from omnibus_models.limits import check_aspect
from omnibus_models.packed_attention import use_packed_attention

__all__ = [
    "AXES",
    "QwenDecoder",
    "QwenThinker",
    "QwenVisionEncoder",
    "check_seconds",
    "control_tokens",
    "vision_encoder",
]

AXES = 3  # M-RoPE: time, height, width


class QwenDecoder(LanguageDecoder):
    """A Qwen decoder stack, see ``contract.Decoder``."""

    axes = AXES


class QwenThinker(_language.LanguageThinker, QwenDecoder):
    """A Qwen language model that takes media embeddings, see ``contract.Thinker``."""

    def _row_count(self, meta: Mapping[str, Any]) -> int:
        time, height, width = (operator.index(extent) for extent in meta["grid_thw"])
        module: Any = self.module
        merge = module.config.vision_config.spatial_merge_size
        if time < 1 or min(height, width) < merge or (meta["modality"] == "image" and time != 1):
            raise ValueError("invalid grid")
        if meta["modality"] == "video":
            self._check_time(meta)
        return (height // merge) * (width // merge) * time

    def _check_time(self, meta: Mapping[str, Any]) -> None:
        """Raise as ``_row_count`` for a video with invalid times."""
        if not 0 < float(meta["second_per_grid"]) < math.inf:
            raise ValueError("invalid time")
        check_seconds(meta.get("seconds", ()), meta["grid_thw"][0] if "seconds" in meta else 0)


@dataclass
class QwenVisionEncoder(LoadedComponent):
    """Images and videos through one Qwen vision tower, see ``contract.MediaEncoder``.

    ``images`` and ``videos`` are the library's processors. ``video_options`` are the joint processor's options for the
    latter.
    """

    images: Any
    videos: Any
    video_options: Mapping[str, Any]
    limits: media.MediaDecodeLimits

    modalities = frozenset({"image", "video"})
    #: Frames come in pairs, as in ``smart_nframes`` of qwen-vl-utils.
    frame_multiple = 2

    def prepare(self, data: memoryview, modality: str) -> Prepared:
        """Decode and preprocess one file: ``pixels`` [patches, values], ``grid`` [1, 3]."""
        match modality:
            case "image":
                return self._prepare_image(data)
            case "video":
                return self._prepare_video(data)
        raise errors.BadRequest(f"this encoder takes image and video, not {modality}")

    @torch.no_grad()
    def encode(self, batch: Sequence[Prepared]) -> list[Encoded]:
        """Run one forward pass. Attention stays within a frame, so a batch equals its single items."""
        if not batch:
            return []
        module: Any = self.module
        pixels = torch.cat([item.features["pixels"] for item in batch]).to(module.device)
        grids = torch.cat([item.features["grid"] for item in batch]).to(module.device)
        rows = self._split_items(module.get_image_features(pixels, grids, return_dict=True))
        return [Encoded(row, item.meta) for row, item in zip(rows, batch, strict=True)]

    def _split_items(self, out: Any) -> Iterable[Tensor]:
        """Return the rows of each item in the tower's output."""
        rows: Iterable[Tensor] = out.pooler_output
        return rows

    def _prepare_image(self, data: memoryview) -> Prepared:
        picture = media.decode_image(data, self.limits)
        check_aspect(*picture.size)
        out = self.images(images=[picture], return_tensors="pt")
        return self._make_prepared("image", out["pixel_values"], out["image_grid_thw"], {})

    def _prepare_video(self, data: memoryview) -> Prepared:
        clip = self._decode_video(data)
        out = self.videos(videos=[clip.frames], do_sample_frames=False, return_tensors="pt", **self.video_options)
        size = self.videos.temporal_patch_size
        more: dict[str, Any] = {"second_per_grid": size / clip.fps}
        if not clip.steady:
            more["seconds"] = list(clip.seconds[::size])
        return self._make_prepared("video", out["pixel_values_videos"], out["video_grid_thw"], more)

    def _decode_video(self, data: memoryview) -> media.Clip:
        sampling = FrameSampling.of_processor(self.videos, multiple=self.frame_multiple)
        clip = media.decode_video(data, self.limits, sampling)
        check_aspect(*clip.frames.shape[1:3])
        return clip

    def _make_prepared(self, modality: str, pixels: Tensor, grid: Tensor, more: Mapping[str, Any]) -> Prepared:
        count = int(grid.prod()) // self.images.merge_size**2
        meta = {"modality": modality, "n_tokens": count, "grid_thw": grid[0].tolist(), **more}
        return Prepared(modality, {"pixels": pixels, "grid": grid}, meta)


def vision_encoder(
    module: Any,
    checkpoint: Path,
    limits: media.MediaDecodeLimits,
    video_options: Mapping[str, Any],
    kind: type[QwenVisionEncoder] = QwenVisionEncoder,
) -> QwenVisionEncoder:
    """Return a vision encoder of ``kind`` with the checkpoint's own processors."""
    from transformers import AutoImageProcessor

    images = AutoImageProcessor.from_pretrained(checkpoint, local_files_only=True)
    use_packed_attention(module)
    return kind(module, images, _load_video_processor(checkpoint), video_options, limits)


def _load_video_processor(checkpoint: Path) -> Any:
    """Return the video processor of a checkpoint.

    ``AutoVideoProcessor`` imports those of all models, which takes 0.3 s and 14 MB, even if the checkpoint names one.
    """
    import transformers

    options, _ = transformers.BaseVideoProcessor.get_video_processor_dict(checkpoint, local_files_only=True)
    name = options.get("video_processor_type") or transformers.AutoVideoProcessor.__name__
    return getattr(transformers, name, transformers.AutoVideoProcessor).from_pretrained(
        checkpoint, local_files_only=True
    )


def check_seconds(seconds: Sequence[Any], count: int) -> None:
    """Raise ``ValueError`` unless ``seconds`` are ``count`` valid times."""
    if len(seconds) != count or not all(0 <= float(second) < math.inf for second in seconds):
        raise ValueError("invalid time")
