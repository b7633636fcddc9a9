"""What the Qwen2.5 families share: M-RoPE and a vision tower."""

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from omnibus import errors
from omnibus_models import media
from omnibus_models.contract import Encoded, Loaded, Prepared
from omnibus_models.families import _language
from omnibus_models.families._language import control_tokens

__all__ = [
    "AXES",
    "Decoder",
    "Thinker",
    "VisionEncoder",
    "control_tokens",
    "grids",
    "seconds_per_grid",
    "vision_encoder",
]

AXES = 3  # M-RoPE: time, height, width


class Decoder(_language.Decoder):
    """A Qwen2.5 decoder stack, see ``contract.Decoder``."""

    axes = AXES


class Thinker(_language.Thinker, Decoder):
    """A Qwen2.5 language model that takes media embeddings, see ``contract.Thinker``."""

    def _rows(self, meta: Mapping[str, Any]) -> int:
        time, height, width = (operator.index(extent) for extent in meta["grid_thw"])
        if min(time, height, width) < 1 or (meta["modality"] == "image" and time != 1):
            raise ValueError("no such grid")
        if meta["modality"] == "video" and not 0 < float(meta["second_per_grid"]) < math.inf:
            raise ValueError("no such time")
        module: Any = self.module
        merge = module.config.vision_config.spatial_merge_size
        return (height // merge) * (width // merge) * time


@dataclass
class VisionEncoder(Loaded):
    """Images and videos through one Qwen2.5 vision tower, see ``contract.Encoder``.

    ``images`` and ``videos`` are the library's processors, ``video_options`` what the joint processor
    passes to the latter.
    """

    images: Any
    videos: Any
    video_options: Mapping[str, Any]
    limits: media.Limits

    modalities = frozenset({"image", "video"})

    def prepare(self, data: memoryview, modality: str) -> Prepared:
        """Decode and preprocess one file: ``pixels`` [patches, values], ``grid`` [1, 3]."""
        match modality:
            case "image":
                return self._image(data)
            case "video":
                return self._video(data)
        raise errors.BadRequest(f"this encoder takes image and video, not {modality}")

    @torch.no_grad()
    def encode(self, batch: Sequence[Prepared]) -> list[Encoded]:
        """One forward pass: attention never crosses a frame, so a batch equals its items one by one."""
        if not batch:
            return []
        module: Any = self.module
        pixels = torch.cat([item.features["pixels"] for item in batch]).to(module.device)
        grids = torch.cat([item.features["grid"] for item in batch]).to(module.device)
        rows = module.get_image_features(pixels, grids, return_dict=True).pooler_output
        return [Encoded(row, item.meta) for row, item in zip(rows, batch, strict=True)]

    def _image(self, data: memoryview) -> Prepared:
        picture = media.image(data, self.limits)
        out = self.images(images=[picture], return_tensors="pt")
        return self._prepared("image", out["pixel_values"], out["image_grid_thw"], {})

    def _video(self, data: memoryview) -> Prepared:
        clip = media.video(data, self.limits)
        out = self.videos(videos=[clip.frames], do_sample_frames=False, return_tensors="pt", **self.video_options)
        seconds = self.videos.temporal_patch_size / clip.fps
        return self._prepared("video", out["pixel_values_videos"], out["video_grid_thw"], {"second_per_grid": seconds})

    def _prepared(self, modality: str, pixels: Tensor, grid: Tensor, more: Mapping[str, Any]) -> Prepared:
        count = int(grid.prod()) // self.images.merge_size**2
        meta = {"modality": modality, "n_tokens": count, "grid_thw": grid[0].tolist(), **more}
        return Prepared(modality, {"pixels": pixels, "grid": grid}, meta)


def vision_encoder(
    module: Any, checkpoint: Path, limits: media.Limits, video_options: Mapping[str, Any]
) -> VisionEncoder:
    """A vision encoder with the checkpoint's own processors."""
    from transformers import AutoImageProcessor, AutoVideoProcessor

    images = AutoImageProcessor.from_pretrained(checkpoint, local_files_only=True)
    videos = AutoVideoProcessor.from_pretrained(checkpoint, local_files_only=True)
    return VisionEncoder(module, images, videos, video_options, limits)


def grids(media: Sequence[Encoded], modality: str) -> Tensor | None:
    """[n, 3] grids of the items of one modality, or None without any."""
    found = [item.meta["grid_thw"] for item in media if item.meta["modality"] == modality]
    return torch.tensor(found) if found else None


def seconds_per_grid(media: Sequence[Encoded]) -> Tensor | None:
    """Float32 [n]: seconds between temporal patches of each video. The joint processor's precision matters."""
    found = [item.meta["second_per_grid"] for item in media if item.meta["modality"] == "video"]
    return torch.tensor(found, dtype=torch.float32) if found else None
