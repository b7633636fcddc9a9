"""Base of Qwen's vision families: their positions, and loading of their two components.

It builds on ``_qwen``.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from omnibus_models import media
from omnibus_models.contract import Encoded
from omnibus_models.families import _mrope, _qwen
from omnibus_models.families._vision_language import VisionLanguage

_MODALITIES = ("image", "video")


class QwenVlThinker(_qwen.QwenThinker):
    """A language model that takes images and videos."""

    def __init__(self, module: Any, checkpoint: Path) -> None:
        super().__init__(module, checkpoint, _MODALITIES)

    def _count_positions(self, ids: Tensor, media: Sequence[Encoded]) -> tuple[Tensor, int]:
        module: Any = self.module
        vision = module.config.vision_config
        # Frames of Qwen2-VL, whose configuration has no pace, are one position apart.
        pace = getattr(vision, "tokens_per_second", None)
        return _mrope.count_positions(ids, self._placeholders, media, vision.spatial_merge_size, pace)


class QwenVlFamily(VisionLanguage):
    """See ``contract.ModelFamily``."""

    eyes = ("model.visual",)
    encoder: ClassVar[type[_qwen.QwenVisionEncoder]] = _qwen.QwenVisionEncoder
    thinker: ClassVar[type[QwenVlThinker]] = QwenVlThinker

    def _make_vision_encoder(
        self, module: Any, checkpoint: Path, limits: media.MediaDecodeLimits
    ) -> _qwen.QwenVisionEncoder:
        return _qwen.vision_encoder(module, checkpoint, limits, {}, self.encoder)

    def _make_thinker(self, module: Any, checkpoint: Path) -> QwenVlThinker:
        return self.thinker(module, checkpoint)
