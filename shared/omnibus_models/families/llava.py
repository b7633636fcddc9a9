"""LLaVA-1.5: a CLIP tower and a language model (``LlavaForConditionalGeneration``)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omnibus import errors
from omnibus_models.families import _llava_style


class Llava(_llava_style.TowerFamily):
    """See ``contract.ModelFamily``."""

    name = "llava"
    architecture = "LlavaForConditionalGeneration"

    def _load_module(self, checkpoint: Path, drop: Sequence[str], device: str, dtype: str) -> Any:
        if _tower_kind(checkpoint) == "pixtral":
            # Its images are rows with marks at their ends, not tiles.
            raise errors.Fatal(f"{checkpoint} has a Pixtral tower; LLaVA is served with towers of tiles, as CLIP")
        return super()._load_module(checkpoint, drop, device, dtype)


def _tower_kind(checkpoint: Path) -> str:
    from transformers import LlavaConfig

    config: Any = LlavaConfig.from_pretrained(checkpoint, local_files_only=True)
    return str(config.vision_config.model_type)


FAMILY = Llava()
