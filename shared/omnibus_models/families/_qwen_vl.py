"""Base of the vision families of Qwen, beside ``_qwen``: their positions, and the loading of their two components."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from omnibus_models import media
from omnibus_models.contract import Encoded
from omnibus_models.families import _qwen
from omnibus_models.families._vision_language import VisionLanguage

_TYPES = {"text": 0, "image": 1, "video": 2}  # the library's mm_token_type_ids
_MODALITIES = ("image", "video")


class Thinker(_qwen.Thinker):
    """A language model that takes images and videos."""

    def __init__(self, module: Any, checkpoint: Path) -> None:
        super().__init__(module, checkpoint, _MODALITIES)

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
            **self._pace(media),
        )

    def _pace(self, media: Sequence[Encoded]) -> Mapping[str, Any]:
        """Return the further arguments from which the library counts positions."""
        return {}


class Family(VisionLanguage):
    """See ``contract.Family``."""

    eyes = ("model.visual",)
    encoder: ClassVar[type[_qwen.VisionEncoder]] = _qwen.VisionEncoder
    thinker: ClassVar[type[Thinker]] = Thinker

    def _vision(self, module: Any, checkpoint: Path, limits: media.Limits) -> _qwen.VisionEncoder:
        return _qwen.vision_encoder(module, checkpoint, limits, {}, self.encoder)

    def _thinker(self, module: Any, checkpoint: Path) -> Thinker:
        return self.thinker(module, checkpoint)
