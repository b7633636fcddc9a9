"""Sizes of a checkpoint's language model by its ``config.json``: heads, by which tensor parallelism can split it, and
tokens."""

import json
from pathlib import Path
from typing import Any

from omnibus.errors import BadRequest

_HEADS = "num_key_value_heads"
#: Of models whose keys and values are one latent row, which all GPUs have.
_LATENT = "kv_lora_rank"
#: Configurations within others that hold the language model, outermost first.
_LANGUAGE_CONFIGS = ("thinker_config", "text_config", "llm_config", "language_config")


def key_value_heads(directory: Path) -> int | None:
    """Return the heads of keys and values that the checkpoint in ``directory`` says; None where it says none."""
    config = _read_language_config(directory)
    return None if config.get(_LATENT) else _positive(config.get(_HEADS))


def vocabulary_size(directory: Path) -> int | None:
    """Return the number of tokens that the checkpoint in ``directory`` says; None where it says none."""
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
    """Raise ``BadRequest`` where a model of so many ``heads`` cannot be split over ``degree`` GPUs."""
    if heads % degree and degree % heads:
        raise BadRequest(
            f"{heads} heads of keys and values cannot be split over {degree} GPUs: the degree of tensor parallelism, "
            f"an option's `gpus`, must divide {heads} or be a multiple of it"
        )
