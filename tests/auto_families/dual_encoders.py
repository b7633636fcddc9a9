"""Trials of all models of transformers that embed texts and images.

``python -m tests.auto_families.dual_encoders [--write]`` tries a small copy of each class and prints a row for it.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
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
    """Return the library's configuration of a type."""
    cls = transformers.CONFIG_MAPPING[model_type]
    if model_type != "vision-text-dual-encoder":
        # The library's configuration has smaller images than its processor.
        return cls(vision_config={"image_size": 960}) if model_type == "owlv2" else cls()
    return cls.from_vision_text_configs(transformers.ViTConfig(), transformers.BertConfig())


def sample_features(config: Any) -> list[Any]:
    """Return two images as the default image processor of ``config`` prepares them."""
    processor = type("Processor", (), {"image_processor": default_image_processor(config)})()
    return [ImageProcessor(processor).process_item(image, "image").features for image in sample_items("image")]


def default_image_processor(config: Any) -> Any:
    """Return the library's image processor for models with ``config``."""
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING

    known = IMAGE_PROCESSOR_MAPPING.get(type(config), {"torchvision": transformers.ViTImageProcessor})
    return known["torchvision"]()


TEXTS = ("the cat", "the small white cat sleeps on the warm red mat", "a dog")
#: Types whose tokenizers give no mask.
_UNMASKED = ("siglip", "siglip2")


def write_checkpoint(model_type: str, directory: Path) -> Path:
    """Write a small random checkpoint of ``model_type`` to ``directory``."""
    config = default_config(model_type)
    module = build_towers(getattr(transformers, MODEL_MAPPING_NAMES[model_type]), config)
    module.save_pretrained(directory)
    default_image_processor(config).save_pretrained(directory)
    _make_tokenizer(model_type, module.config.text_config).save_pretrained(directory)
    return directory


def _make_tokenizer(model_type: str, config: Any) -> Any:
    """Return a tokenizer of words, with the marks of ``config``."""
    marks = {
        f"{name}_token": (f"<{name}>", token)
        for name, usual in (("pad", 0), ("bos", 1), ("eos", 2), ("unk", 3))
        for token in [getattr(config, f"{name}_token_id", None)]
        for token in [usual if token is None else token]
    }
    used = {token for _, token in marks.values()}
    words = sorted({word for text in TEXTS for word in text.split()})
    free = (token for token in range(4, 250) if token not in used)
    vocabulary = dict([*marks.values(), *zip(words, free, strict=False)])
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.normalizer, backend.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[(text, token) for text, token in marks.values()]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=getattr(config, "max_position_embeddings", 64),
        model_input_names=["input_ids"] if model_type in _UNMASKED else ["input_ids", "attention_mask"],
        **{name: text for name, (text, _) in marks.items()},
    )


def embed_texts(model: Any, processor: Any, texts: Sequence[str], **options: Any) -> torch.Tensor:
    """Return the library's unit vectors [texts, width], each computed alone."""
    inputs = [processor.tokenizer([text], return_tensors="pt", **options) for text in texts]
    with torch.inference_mode():
        return _join_vectors([model.get_text_features(**each).pooler_output for each in inputs])


def embed_images(model: Any, processor: Any, files: Sequence[bytes]) -> torch.Tensor:
    """Return the library's unit vectors [files, width], each computed alone."""
    images = [Image.open(io.BytesIO(file)).convert("RGB") for file in files]
    inputs = [processor.image_processor(images=[image], return_tensors="pt") for image in images]
    with torch.inference_mode():
        return _join_vectors([model.get_image_features(**each).pooler_output for each in inputs])


def _join_vectors(vectors: Sequence[torch.Tensor]) -> torch.Tensor:
    rows = [vector[:, 0] if vector.dim() == 3 else vector for vector in vectors]  # FLAVA compares the first ones
    return torch.nn.functional.normalize(torch.cat(rows), dim=-1)


def draw_files() -> list[bytes]:
    """Return two PNG files of noise, wide and high."""
    noise = np.random.default_rng(0)
    files = []
    for size in ((40, 64), (90, 30)):
        out = io.BytesIO()
        Image.fromarray(noise.integers(0, 255, (*size, 3), dtype=np.uint8)).save(out, "PNG")
        files.append(out.getvalue())
    return files


if __name__ == "__main__":
    trials.sweep_types(list_types(), try_type, KIND)
