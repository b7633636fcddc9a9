"""The two towers of a model that embeds texts and images.

A small random copy shows the modules of each, and how texts are padded, so that classes need no separate code.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from omnibus import errors
from omnibus_models import loading
from omnibus_models.families._item_processor import ItemProcessor, sample_items
from omnibus_models.families._media_parts import unused_modules, used_parameters
from omnibus_models.miniature import VOCABULARY, build_copy, shrink_parts

Features = Mapping[str, Tensor]

#: Lengths of two texts of a trial, and tokens of padding. OWL-ViT takes 16 tokens.
_LENGTHS, _PADDING = (6, 9), 4
#: Largest difference of vectors of length 1 from rounding, and the least one of different inputs.
_ROUNDING, _APART = 1e-5, 1e-3


class Towers(NamedTuple):
    """Two towers of one model.

    ``vision`` and ``text`` are paths of modules that only the image tower or only the text tower uses. If the text
    tower ``reads_padding``, all texts must have the length with which it was trained. ``batched`` images can share a
    pass. The towers have implementations of attention, ``text_attention`` and ``image_attention``.
    """

    vision: Sequence[str]
    text: Sequence[str]
    reads_padding: bool
    batched: bool
    text_attention: str
    image_attention: str


class ImageProcessor(ItemProcessor):
    """The image half of a processor, for models without prompts."""

    def __init__(self, processor: Any) -> None:
        self.processor = processor
        self.placeholders = {"image": ("", 0)}
        self.closer = frozenset()

    def process_item(self, item: Any, modality: str, alone: bool = True) -> Any:
        """Return a decoded image as its tower takes it. Raises ``BadRequest`` for one that is not taken."""
        from omnibus_models.contract import Prepared

        try:
            output = self.processor.image_processor(images=[item], return_tensors="pt")
        except (IndexError, RuntimeError, TypeError, ValueError, ZeroDivisionError) as error:
            raise errors.BadRequest("this model does not take this image; send another one") from error
        features = {name: value for name, value in output.items() if isinstance(value, Tensor)}
        return Prepared(modality, features, {"n_tokens": 1})


def embed_inputs(function: Any, features: Features) -> tuple[Tensor, int]:
    """Call ``get_text_features`` or ``get_image_features``.

    Returns float32 vectors [B, W] of length 1, and the number of positions of an input. Raises ``Fatal`` for an output
    of another shape.
    """
    output = function(**features, return_dict=True)
    vectors = getattr(output, "pooler_output", None)
    if isinstance(vectors, Tensor) and vectors.dim() == 3:  # FLAVA projects all rows; it compares the first ones
        vectors = vectors[:, 0]
    if not isinstance(vectors, Tensor) or vectors.dim() != 2:
        shape = tuple(vectors.shape) if isinstance(vectors, Tensor) else None
        raise errors.Fatal(f"{function.__name__} must give one vector for an input, not {shape}")
    rows = output.last_hidden_state
    positions = int(rows.shape[1] if rows.dim() == 3 else rows.shape[2:].numel())
    return nn.functional.normalize(vectors.float(), dim=-1), positions


def load_processor(checkpoint: Path) -> Any:
    """Load the processor of texts and images. Raises ``Fatal`` if there is none, or if it needs a library."""
    from transformers import AutoProcessor

    try:
        processor = AutoProcessor.from_pretrained(checkpoint, local_files_only=True)
    except (ImportError, OSError, ValueError) as error:
        raise errors.Fatal(f"the processor of {checkpoint} cannot be loaded: {' '.join(str(error).split())}") from error
    if not hasattr(processor, "image_processor") or not hasattr(processor, "tokenizer"):
        raise errors.Fatal(f"{checkpoint} has no processor of texts and images; it cannot be served")
    return processor


def find_class(checkpoint: Path) -> tuple[Any, Any]:
    """Return the class of the model in ``checkpoint``, and its configuration. Raises ``Fatal``."""
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(checkpoint, local_files_only=True)
        [name, *_] = config.architectures or [transformers.AutoModel._model_mapping[type(config)].__name__]
        return getattr(transformers, name), config
    except (AttributeError, ImportError, KeyError, OSError, ValueError) as error:
        raise errors.Fatal(f"transformers has no class of encoders of texts and images for {checkpoint}") from error


@lru_cache(maxsize=4)
def load_towers(checkpoint: Path) -> Towers:
    """Return the towers of the model in ``checkpoint``. Raises ``Fatal`` if no copy of it comes apart."""
    cls, config = find_class(checkpoint)
    processor = load_processor(checkpoint)
    images = [ImageProcessor(processor).process_item(image, "image").features for image in sample_items("image")]
    masked = "attention_mask" in processor.tokenizer.model_input_names
    try:
        return try_towers(build_towers(cls, config), images, masked)
    except Exception as error:
        raise errors.Fatal(f"{cls.__name__} cannot be served: {type(error).__name__}: {error}") from error


def build_towers(cls: Any, config: Any) -> Any:
    """Return a small random copy of a model of ``cls`` with ``config``. Raises ``ValueError`` if it would be large."""
    small = shrink_parts(config)
    if hasattr(small, "text_config") and hasattr(small.text_config, "projection_size"):
        small.text_config.projection_size = small.vision_config.hidden_size
    return build_copy(cls, small)


@torch.no_grad()
def try_towers(module: Any, images: Sequence[Features], masked: bool = True) -> Towers:
    """Return the towers of ``module`` after it has embedded texts and ``images``.

    Texts have a mask if they are ``masked``. Raises ``Fatal`` for a model that cannot be served.
    """
    _settle_norms(module, images)
    attention = module.config._attn_implementation
    texts = _draw_texts(module.config, masked)
    image_used, image_vectors = used_parameters(module, partial(_embed_alone, module, "image", images))
    text_used, text_vectors = used_parameters(module, partial(_embed_alone, module, "text", texts))
    if text_vectors.shape != image_vectors.shape:
        widths = f"{text_vectors.shape[1]} and {image_vectors.shape[1]}"
        raise errors.Fatal(f"vectors of texts and images must have the same width, not {widths}")
    for kind, vectors in (("text", text_vectors), ("image", image_vectors)):
        if _distance(*vectors) < _APART:
            raise errors.Fatal(f"the vector of an input does not depend on the {kind}")
    towers = Towers(
        _unused_towers(module, text_used),
        _unused_towers(module, image_used),
        reads_padding=_reads_padding(module, texts),
        batched=not _is_changed(partial(_embed_together, module, images), image_vectors),
        text_attention=attention,
        image_attention=attention,
    )
    _require_apart(module, "text", texts, towers.vision)
    _require_apart(module, "image", images, towers.text)
    if towers.reads_padding:  # by AIMv2 with one implementation only: it then attends as a whole, without padding
        module.set_attn_implementation("eager")
        if not _reads_padding(module, texts):
            towers = towers._replace(reads_padding=False, text_attention="eager")
    return towers


def _unused_towers(module: Any, used: set[str]) -> list[str]:
    """Return paths of modules without ``used`` parameters.

    Single layers stay, because the library's initialisation of weights reads them.
    """
    return [path for path in unused_modules(module, used, ()) if any(module.get_submodule(path).children())]


def _settle_norms(module: Any, images: Sequence[Features]) -> None:
    """Set the statistics of batch norms to those of ``images``: otherwise deep copies forget their input."""
    norms = [each for each in module.modules() if isinstance(each, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.train().momentum = 1.0
    if norms:
        _embed_together(module, images)
    for norm in norms:
        norm.eval()


def _draw_texts(config: Any, masked: bool) -> list[Features]:
    """Return two texts of random tokens. They end with the highest token and the end of texts: CLIP pools either."""
    text = getattr(config, "text_config", config)
    last = min(text.vocab_size, VOCABULARY) - 1
    eos = getattr(text, "eos_token_id", None)
    generator = torch.Generator().manual_seed(0)
    eos = eos if isinstance(eos, int) and eos <= last else last
    texts: list[Features] = []
    for length in _LENGTHS:
        ids = torch.randint(last // 4, last // 2, (1, length), generator=generator)
        ids[0, -2:] = torch.tensor([last, eos])
        texts.append({"input_ids": ids, **({"attention_mask": torch.ones_like(ids)} if masked else {})})
    return texts


def _embed_alone(module: Any, kind: str, inputs: Sequence[Features]) -> Tensor:
    function = getattr(module, f"get_{kind}_features")
    return torch.cat([embed_inputs(function, features)[0] for features in inputs])


def _embed_together(module: Any, images: Sequence[Features]) -> Tensor:
    features = {name: torch.cat([image[name] for image in images]) for name in images[0]}
    return embed_inputs(module.get_image_features, features)[0]


def _reads_padding(module: Any, texts: Sequence[Features]) -> bool:
    """Return whether vectors change in a pass with padding."""
    return _is_changed(partial(_embed_padded, module, texts), _embed_alone(module, "text", texts))


def _embed_padded(module: Any, texts: Sequence[Features]) -> Tensor:
    pad = getattr(getattr(module.config, "text_config", module.config), "pad_token_id", None) or 0
    width = max(_LENGTHS) + _PADDING
    inputs = {
        name: torch.cat(
            [
                nn.functional.pad(text[name], (0, width - text[name].shape[1]), value=pad if name == "input_ids" else 0)
                for text in texts
            ]
        )
        for name in texts[0]
    }
    return embed_inputs(module.get_text_features, inputs)[0]


def _is_changed(embed: Callable[[], Tensor], alone: Tensor) -> bool:
    """Return whether ``embed`` gives other vectors than ``alone``, or none."""
    try:
        return _distance(embed(), alone) > _ROUNDING
    except Exception:  # noqa: BLE001 whatever a library raises
        return True


def _require_apart(module: Any, kind: str, inputs: Sequence[Features], drop: Sequence[str]) -> None:
    """Raise ``Fatal`` unless a tower gives the same vectors without ``drop``."""
    tower = copy.deepcopy(module)
    for path in drop:
        loading.remove_part(tower, path)
    if _is_changed(partial(_embed_alone, tower, kind, inputs), _embed_alone(module, kind, inputs)):
        raise errors.Fatal(f"the {kind} tower does not run without {', '.join(drop)}")


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())
