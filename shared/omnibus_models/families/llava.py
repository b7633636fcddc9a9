"""LLaVA-1.5: a CLIP tower and a language model (``LlavaForConditionalGeneration``)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omnibus import errors
from omnibus_models.families import _plain


class Llava(_plain.Family):
    """See ``contract.Family``."""

    name = "llava"
    architecture = "LlavaForConditionalGeneration"

    def _load(self, checkpoint: Path, drop: Sequence[str], device: str, dtype: str) -> Any:
        module = super()._load(checkpoint, drop, device, dtype)
        tower = module.config.vision_config.model_type
        if tower == "pixtral":
            # Its pictures are rows with marks at their ends, not tiles.
            raise errors.Fatal(f"{checkpoint} has a {tower} tower; LLaVA is served with towers of fixed pictures")
        return module


FAMILY = Llava()
