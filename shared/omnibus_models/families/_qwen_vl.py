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


class QwenVlThinker(_qwen.QwenThinker):
    """A language model that takes images and videos."""

    def __init__(self, module: Any, checkpoint: Path) -> None:
        super().__init__(module, checkpoint, _MODALITIES)

    def _count_positions(self, ids: Tensor, media: Sequence[Encoded]) -> tuple[Tensor, Tensor]:
        kinds = torch.zeros_like(ids)
        for token, modality in self._placeholders.items():
            kinds[ids == token] = _TYPES[modality]
        module: Any = self.module
        return module.model.get_rope_index(
            ids,
            mm_token_type_ids=kinds,
            image_grid_thw=_qwen.media_grids(media, "image"),
            video_grid_thw=_qwen.media_grids(media, "video"),
            attention_mask=torch.ones_like(ids),
            **self._position_arguments(media),
        )

    def _position_arguments(self, media: Sequence[Encoded]) -> Mapping[str, Any]:
        """Return the further arguments from which the library counts positions."""
        return {}


class QwenVlFamily(VisionLanguage):
    """See ``contract.Family``."""

    eyes = ("model.visual",)
    encoder: ClassVar[type[_qwen.QwenVisionEncoder]] = _qwen.QwenVisionEncoder
    thinker: ClassVar[type[QwenVlThinker]] = QwenVlThinker

    def _make_vision_encoder(
        self, module: Any, checkpoint: Path, limits: media.MediaDecodeLimits
    ) -> _qwen.QwenVisionEncoder:
        return _qwen.vision_encoder(module, checkpoint, limits, {}, self.encoder)

    def _make_thinker(self, module: Any, checkpoint: Path) -> QwenVlThinker:
        return self.thinker(module, checkpoint)
