"""What the vision families of Qwen share beside ``_qwen``: their positions, and how their two components load."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from omnibus import errors
from omnibus_models import loading, media
from omnibus_models.contract import Encoded
from omnibus_models.families import _qwen

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
        """What else the library counts positions from."""
        return {}


class VisionLanguage:
    """A family of one vision encoder and one language model, see ``contract.Family``.

    ``cls`` is the name of the whole model's class in the library.
    """

    components = ("vision", "thinker")

    def __init__(self, name: str, cls: str, thinker: type[Thinker] = Thinker) -> None:
        self.name = name
        self._cls = cls
        self._thinker = thinker

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
                module = self._load(checkpoint, ["model.language_model", "lm_head"], device, dtype)
                return _qwen.vision_encoder(module, checkpoint, limits, {})
            case "thinker":
                return self._thinker(self._load(checkpoint, ["model.visual"], device, dtype), checkpoint)
        raise errors.NotFound(f"{self.name} has no component {component!r}; it has {', '.join(self.components)}")

    def reader(self, checkpoint: Path, dtype: str = "float32") -> Thinker:
        """See ``contract.Family``."""
        checkpoint = Path(checkpoint)
        drop = ["model.visual", "model.language_model.layers", "lm_head"]
        return self._thinker(self._load(checkpoint, drop, "cpu", dtype), checkpoint)

    def _load(self, checkpoint: Path, drop: Sequence[str], device: str, dtype: str) -> Any:
        import transformers

        return loading.load(getattr(transformers, self._cls), checkpoint, drop=drop, device=device, dtype=dtype)
