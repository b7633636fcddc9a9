"""Qwen2.5-VL: a vision encoder and a language model (``Qwen2_5_VLForConditionalGeneration``)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from omnibus import errors
from omnibus_models import loading, media
from omnibus_models.contract import Encoded
from omnibus_models.families import _qwen

_TYPES = {"text": 0, "image": 1, "video": 2}  # the library's mm_token_type_ids


class Thinker(_qwen.Thinker):
    """The language model of Qwen2.5-VL."""

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
            second_per_grid_ts=_qwen.seconds_per_grid(media),
            attention_mask=torch.ones_like(ids),
        )


class Qwen25VL:
    """See ``contract.Family``."""

    name = "qwen2_5_vl"
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
                return _qwen.vision_encoder(module, checkpoint, limits, {})
            case "thinker":
                return Thinker(_load(checkpoint, ["model.visual"], device, dtype), checkpoint, ("image", "video"))
        raise errors.NotFound(f"{self.name} has no component {component!r}; it has {', '.join(self.components)}")

    def reader(self, checkpoint: Path, dtype: str = "float32") -> Thinker:
        """See ``contract.Family``."""
        checkpoint = Path(checkpoint)
        drop = ["model.visual", "model.language_model.layers", "lm_head"]
        return Thinker(_load(checkpoint, drop, "cpu", dtype), checkpoint, ("image", "video"))


def _load(checkpoint: Path, drop: Sequence[str], device: str, dtype: str) -> Any:
    from transformers import Qwen2_5_VLForConditionalGeneration

    return loading.load(Qwen2_5_VLForConditionalGeneration, checkpoint, drop=drop, device=device, dtype=dtype)


FAMILY = Qwen25VL()
