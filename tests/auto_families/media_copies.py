"""A configuration and a processor of any multimodal model that transformers knows, without a checkpoint.

They are the library's own defaults, with a small tokenizer. What a type needs besides these is in ``SETTINGS``.
"""

import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import transformers
from transformers.models.auto import feature_extraction_auto, image_processing_auto, video_processing_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

from omnibus_models.families._item_processor import ItemProcessor
from omnibus_models.tiny._chat_tokenizer import build_chat_template, train_tokenizer
from tests.auto_families.media_settings import SETTINGS, Settings

VOCABULARY = 1024
_SIDE = 8  # patches of an image
#: Fields of encoders that are the width of the language model.
_TEXT_WIDTHS = (
    "out_hidden_size",
    "text_hidden_size",
    "llm_hidden_size",
    "lm_hidden_size",
    "output_proj_dims",
    "mm_embed_dim",
)
_AUDIO_WIDTHS = ("output_dim",)
#: Fields of image processors, and of encoders.
_GEOMETRY = {
    "patch_size": "patch_size",
    "merge_size": "spatial_merge_size",
    "temporal_patch_size": "temporal_patch_size",
}
_SPECIAL = ("<unk>", "<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>", "<image>", "<video>", "<audio>")
_MARK = re.compile(r"""["'f](<[^"'\s<>{}]{1,40}>|\[[A-Z_]{2,20}\])["']|(<\|?[a-zA-Z_0-9/]{1,30}\|?>)""")
_ATTRIBUTE = re.compile(r"(?:attribute|attributes:?) '?\[?'?(\w+?_token)(?:_id)?s?'?\]?$")
_MAPPINGS = {
    "image": image_processing_auto.IMAGE_PROCESSOR_MAPPING_NAMES,
    "video": video_processing_auto.VIDEO_PROCESSOR_MAPPING_NAMES,
    "audio": feature_extraction_auto.FEATURE_EXTRACTOR_MAPPING_NAMES,
}


def has_processor(model_type: str) -> bool:
    """Return whether transformers lists a processor for ``model_type``, or the settings name one."""
    settings = SETTINGS.get(model_type, Settings())
    return bool(settings.processor_class) or (settings.processor or model_type) in PROCESSOR_MAPPING_NAMES


def make_copy(model_type: str) -> tuple[Any, Any]:
    """Return a configuration and a processor of ``model_type``. Raises what libraries raise."""
    settings = SETTINGS.get(model_type, Settings())
    config = settings.config() if settings.config else CONFIG_MAPPING[model_type]()
    for part in walk_configs(config):
        for field in ("vocab_size", "vocab_size_per_layer_input"):
            if isinstance(getattr(part, field, None), int) and part is not getattr(config, "vq_config", None):
                setattr(part, field, VOCABULARY)
    if not settings.keeps_sizes:
        _fit_sizes(config)
    for path, value in settings.fields.items():
        owner, _, field = path.rpartition(".")
        setattr(_find_part(config, owner), field, value)
    processor = make_processor(model_type, config, settings)
    set_tokens(config, processor)
    if hasattr(config, "image_grid_pinpoints") and hasattr(processor.image_processor, "image_grid_pinpoints"):
        config.image_grid_pinpoints = [list(each) for each in processor.image_processor.image_grid_pinpoints]
    settings.finish(config, processor)
    places = {kind: text for kind, (text, _) in ItemProcessor(processor).placeholders.items()}
    processor.chat_template = build_chat_template(**{**places, **settings.places})
    return config, processor


def make_processor(model_type: str, config: Any, settings: Settings) -> Any:
    """Return the processor that transformers has for ``model_type``, or for the type in its ``settings``."""
    sibling = settings.processor or model_type
    cls = getattr(transformers, settings.processor_class or PROCESSOR_MAPPING_NAMES[sibling])
    module = importlib.import_module(cls.__module__)
    marks = {next(filter(None, groups)) for groups in _MARK.findall(inspect.getsource(module))}
    attributes = dict(settings.tokens)
    for _ in range(30):
        special = [*dict.fromkeys([*_SPECIAL, *sorted(marks), *attributes.values(), *settings.special])]
        tokenizer = train_tokenizer(
            special, attributes, "", bos="<s>", eos="</s>", pad="<pad>", vocabulary=min(900, 600 + len(special))
        )
        for name, value in settings.tokenizer.items():
            setattr(tokenizer, name, value)
        parts = {name: _make_part(name, sibling, tokenizer, settings, config) for name in cls.get_attributes()}
        try:
            processor = cls(**parts, **{**_find_arguments(cls, config, parts), **settings.arguments(config)})
        except (AttributeError, ValueError) as error:
            missing = _ATTRIBUTE.search(str(error).strip())
            if missing is None or missing[1] in attributes:
                raise
            attributes[missing[1]] = f"<|{missing[1]}|>"
            continue
        strange = [text for text in _token_texts(processor) if tokenizer.convert_tokens_to_ids(text) in (None, 0)]
        if not {*strange} - {*special}:
            return processor
        marks |= {*strange}
    raise LookupError(f"no tokenizer fits the processor of {model_type}")


def _fit_sizes(config: Any) -> None:
    """Set small images, and widths that must be those of the language model but are not in default configurations."""
    text = config.get_text_config(decoder=True)
    width = next((getattr(text, name) for name in ("hidden_size", "d_model") if hasattr(text, name)), 0)
    for part in walk_configs(config):
        size, patch = getattr(part, "image_size", None), getattr(part, "patch_size", None)
        if isinstance(size, int) and isinstance(patch, int):
            part.image_size = min(size, _SIDE * patch)
        elif isinstance(size, list | tuple) and isinstance(patch, list | tuple):
            part.image_size = [_SIDE * each for each in patch]
        for name in (*_TEXT_WIDTHS, *(_AUDIO_WIDTHS if part is getattr(config, "audio_config", None) else ())):
            if part is not text and isinstance(vars(part).get(name), int) and width:
                setattr(part, name, width)


def _find_arguments(cls: Any, config: Any, parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a processor that its configuration has, by their names."""
    found = {}
    for name in inspect.signature(cls.__init__).parameters:
        for part in walk_configs(config):
            value = getattr(part, name, None)
            value = getattr(part, "image_size", None) if name == "img_size" else value
            if name not in parts and isinstance(value, int | str) and not name.endswith("_token"):
                found.setdefault(name, value)
    return found


def _make_part(name: str, model_type: str, tokenizer: Any, settings: Settings, config: Any) -> Any:
    if name.endswith("tokenizer"):
        return tokenizer
    kind = next((kind for kind in ("image", "video") if kind in name), "audio")
    names = _MAPPINGS[kind].get(model_type)
    names = [*names.values()] if isinstance(names, dict) else [names]
    names.sort(key=lambda each: "Pil" in str(each))
    cls = getattr(transformers, settings.classes.get(kind) or str(names[0]))
    options = dict(settings.parts.get(kind, {}))
    if kind != "audio":
        tower = next((part for part in walk_configs(config) if hasattr(part, "patch_size")), config)
        return _make_image_part(cls, tower, options, keeps_sizes=settings.keeps_sizes)
    bins = next((part.num_mel_bins for part in walk_configs(config) if hasattr(part, "num_mel_bins")), None)
    takes_bins = bins and "feature_size" in inspect.signature(cls.__init__).parameters
    return cls(**({"feature_size": bins} if takes_bins else {}), **options)


def _make_image_part(cls: Any, tower: Any, options: dict[str, Any], *, keeps_sizes: bool) -> Any:
    """Return a processor of images or videos for the encoder ``tower``."""
    part = cls(**options)
    side = getattr(tower, "image_size", None)
    side = side[0] if isinstance(side, list | tuple) else side
    if isinstance(side, int) and not keeps_sizes and part.size is not None and "size" not in options:
        options["size"] = _fit_size(dict(part.size), side)
        if getattr(part, "crop_size", None):
            options["crop_size"] = {"height": side, "width": side}
        if getattr(part, "image_grid_pinpoints", None):
            options["image_grid_pinpoints"] = [[side, 2 * side], [2 * side, side], [2 * side, 2 * side]]
        part = cls(**options)
    for field, source in _GEOMETRY.items():
        value = getattr(tower, source, None)
        if isinstance(getattr(part, field, None), int) and isinstance(value, int) and field not in options:
            setattr(part, field, value)
    if isinstance(side, int) and isinstance(getattr(tower, "patch_size", None), int):
        part.image_seq_length = (side // tower.patch_size) ** 2
    return part


def _fit_size(size: dict[str, int], side: int) -> dict[str, int]:
    """Return ``size``, an argument of an image processor, for images of ``side`` pixels."""
    if {"shortest_edge", "longest_edge"} <= size.keys():
        return size
    return dict.fromkeys(size, side)


def set_tokens(config: Any, processor: Any) -> None:
    """Set all ids of tokens in ``config``: those of the processor's tokens of the same name, or unused ones."""
    tokenizer = processor.tokenizer
    unused = iter(range(VOCABULARY - 1, 0, -1))
    chosen: dict[str, int] = {"eos_token": 2, "bos_token": 1, "pad_token": 3, "decoder_start_token": 1}
    for part in walk_configs(config):
        for field in [*vars(part)]:
            name = re.match(r"(\w+_token)_(id|index)$", field)
            if not name or not isinstance(getattr(part, field, None), int | None):
                continue
            is_medium = name[1].startswith(("image", "video", "audio", "vision"))
            if name[1] not in chosen and getattr(part, field, None) is None and not is_medium:
                continue
            if name[1] not in chosen:
                chosen[name[1]] = next(_known_ids(processor, tokenizer, name[1]), None) or next(unused)
            if getattr(part, field, None) is not None or name[1] not in ("eos_token", "bos_token", "pad_token"):
                setattr(part, field, chosen[name[1]])


def _known_ids(processor: Any, tokenizer: Any, name: str) -> Iterator[int]:
    for owner in (processor, tokenizer):
        number = getattr(owner, f"{name}_id", None)
        if isinstance(number, int) and number > 0:
            yield number
        text = _token_text(owner, name)
        if text and tokenizer.convert_tokens_to_ids(text) not in (None, 0):
            yield tokenizer.convert_tokens_to_ids(text)


def _token_texts(processor: Any) -> Iterator[str]:
    for name in dir(processor):
        if name.endswith("_token"):
            text = _token_text(processor, name)
            if text:
                yield text


def _token_text(owner: Any, name: str) -> str:
    text = getattr(owner, name, None)
    text = getattr(text, "content", text)
    return text if isinstance(text, str) else ""


def walk_configs(config: Any) -> Iterator[Any]:
    """Yield ``config`` and the configurations of its parts."""
    yield config
    for value in [*vars(config).values()]:
        if isinstance(value, transformers.PreTrainedConfig):
            yield from walk_configs(value)


def _find_part(config: Any, path: str) -> Any:
    for name in filter(None, path.split(".")):
        config = getattr(config, name)
    return config
