"""Trials of all models of transformers that embed texts and images.

``python -m tests.auto_families.dual_encoders [--write]`` tries a small copy of each class and prints a row for it.
"""

from typing import Any

import transformers
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

from omnibus_models.families import is_dual_encoder
from omnibus_models.families._dual_towers import ImageProcessor, build_towers, try_towers
from omnibus_models.families._item_processor import sample_items
from tests.auto_families import trials
from tests.auto_families.trials import REFUSED, UNTRIED, Trial

KIND = "dual_encoders"


def list_types() -> list[str]:
    """Return the types of models that the family may serve."""
    return sorted(name for name in MODEL_MAPPING_NAMES if is_dual_encoder(name, {}))


def try_type(model_type: str) -> Trial:
    """Try ``model_type`` in this process."""
    cls = getattr(transformers, MODEL_MAPPING_NAMES[model_type])
    try:
        config = default_config(model_type)
        module = build_towers(cls, config)
        images = sample_features(config)
    except Exception as error:  # noqa: BLE001 whatever a library raises
        return Trial(model_type, cls.__name__, UNTRIED, f"{type(error).__name__}: {error}")
    try:
        towers = try_towers(module, images)
    except Exception as error:  # noqa: BLE001 whatever a library raises
        return Trial(model_type, cls.__name__, REFUSED, f"{type(error).__name__}: {error}")
    ways = ["texts of one length" if towers.reads_padding else "texts of any length"]
    ways += [] if towers.batched else ["images one at a time"]
    return Trial(model_type, cls.__name__, ", ".join(ways), "")


def default_config(model_type: str) -> Any:
    """Return the library's configuration of a type, or that of ViT and BERT together."""
    cls = transformers.CONFIG_MAPPING[model_type]
    if model_type != "vision-text-dual-encoder":
        # The library's configuration has smaller images than its processor.
        return cls(vision_config={"image_size": 960}) if model_type == "owlv2" else cls()
    return cls.from_vision_text_configs(transformers.ViTConfig(), transformers.BertConfig())


def sample_features(config: Any) -> list[Any]:
    """Return two images as the default image processor of ``config`` prepares them."""
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING

    known = IMAGE_PROCESSOR_MAPPING.get(type(config), {"torchvision": transformers.ViTImageProcessor})
    processor = type("Processor", (), {"image_processor": known["torchvision"]()})()
    return [ImageProcessor(processor).process_item(image, "image").features for image in sample_items("image")]


if __name__ == "__main__":
    trials.sweep_types(list_types(), try_type, KIND)
