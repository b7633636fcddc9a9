"""Sizes of a checkpoint's language model from its ``config.json``: heads and tokens. Tensor parallelism splits a model
by its heads."""

import json
from pathlib import Path
from typing import Any

from omnibus.errors import BadRequest

_HEADS = "num_key_value_heads"
#: Field of models whose keys and values are one latent row, which all GPUs store.
_LATENT = "kv_lora_rank"
#: Nested configurations that contain that of the language model, outermost first.
_LANGUAGE_CONFIGS = ("thinker_config", "text_config", "llm_config", "language_config")


def key_value_heads(directory: Path) -> int | None:
    """Return the number of key-value heads in the configuration, or None. The checkpoint is in ``directory``."""
    config = _read_language_config(directory)
    return None if config.get(_LATENT) else _positive(config.get(_HEADS))


def vocabulary_size(directory: Path) -> int | None:
    """Return the number of tokens in the configuration, or None. The checkpoint is in ``directory``."""
    return _positive(_read_language_config(directory).get("vocab_size"))


def _read_language_config(directory: Path) -> dict[str, Any]:
    try:
        config: Any = json.loads((directory / "config.json").read_text())
    except (OSError, ValueError):
        return {}
    for name in _LANGUAGE_CONFIGS:
        config = config[name] if isinstance(config, dict) and isinstance(config.get(name), dict) else config
    return config if isinstance(config, dict) else {}


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def require_whole_heads(heads: int, degree: int) -> None:
    """Raise ``BadRequest`` if ``degree`` GPUs cannot share the ``heads``."""
    if heads % degree and degree % heads:
        raise BadRequest(
            f"{heads} heads of keys and values cannot be split over {degree} GPUs: set the option's `gpus` to a "
            f"divisor or a multiple of {heads}"
        )
