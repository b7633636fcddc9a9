"""Families of modular pipelines of diffusers that have no code of their own."""

import json
from pathlib import Path
from typing import Any

from omnibus import errors
from omnibus_models import loading
from omnibus_models.contract import no_component
from omnibus_models.modular import blocks as modular_blocks
from omnibus_models.modular import trial
from omnibus_models.modular.components import (
    ModularDecoder,
    ModularDenoiser,
    ModularImageEncoder,
    ModularTextEncoder,
    side_multiple,
)

_INDEXES = ("modular_model_index.json", "model_index.json")
_KINDS = {
    "text_encoder": ModularTextEncoder,
    "vae_encoder": ModularImageEncoder,
    "dit": ModularDenoiser,
    "vae": ModularDecoder,
}


class ModularFamily:
    """See ``contract.ModelFamily``. Its components are the blocks of the pipeline."""

    components = tuple(_KINDS)

    def __init__(self, name: str) -> None:
        self.name = name

    def load(self, component: str, checkpoint: Path, device: str = "cpu", dtype: str = "float32") -> Any:
        """Load the models that the blocks of one component name."""
        if component not in self.components:
            raise no_component(self.name, self.components, component)
        checkpoint = Path(checkpoint)
        cls = find_class(checkpoint)
        if loading.stand_in.get() is None:
            trial.admit_pipeline(cls)
        pipeline = modular_blocks.open_pipeline(cls, checkpoint)
        names = modular_blocks.split_blocks(pipeline.blocks)[component]
        return _KINDS[component](modular_blocks.ModularPart(pipeline, checkpoint, names, device, dtype))

    def image_defaults(self, checkpoint: Path) -> dict[str, int | bool]:
        """Return the fields of ``omnibus.model_defaults.ImageDefaults``.

        They follow from the inputs of blocks and from the checkpoint's models.
        """
        if self.name != "modular_image":
            return {}
        pipeline = modular_blocks.open_pipeline(find_class(checkpoint), checkpoint)
        readers = modular_blocks.split_blocks(pipeline.blocks)["vae_encoder"]
        part = modular_blocks.ModularPart(pipeline, checkpoint, [], "cpu", "float32")
        width, height = ModularDenoiser(part).default_size
        steps = getattr(part.inputs.get("num_inference_steps"), "default", None)
        reads_image = bool(readers) and "image" in part.inputs
        return {
            "width": width,
            "height": height,
            "steps": steps or 0,
            "side_multiple": side_multiple(pipeline),
            "negative_prompt": "negative_prompt" in part.inputs,
            "image": reads_image,
            "strength": reads_image and "strength" in part.inputs,
            "mask": reads_image and "mask_image" in part.inputs and not trial.find_verdict(type(pipeline)).mask,
        }


def find_class(checkpoint: Path) -> Any:
    """Return the class of the modular pipeline of ``checkpoint``. Raises ``Fatal`` if there is none."""
    for name in _INDEXES:
        if (checkpoint / name).is_file():
            cls = modular_blocks.find_pipeline_class(json.loads((checkpoint / name).read_text()))
            if cls is not None:
                return cls
    raise errors.Fatal(f"{checkpoint} is not a pipeline that diffusers has in blocks")
