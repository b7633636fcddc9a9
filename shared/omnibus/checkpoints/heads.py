"""Heads of keys and values of a checkpoint's language model, by which tensor parallelism can split it."""

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
    """Return the heads that ``config.json`` of the checkpoint in ``directory`` says; None where it says none."""
    try:
        config: Any = json.loads((directory / "config.json").read_text())
    except (OSError, ValueError):
        return None
    for name in _LANGUAGE_CONFIGS:
        config = config[name] if isinstance(config, dict) and isinstance(config.get(name), dict) else config
    if not isinstance(config, dict) or config.get(_LATENT):
        return None
    found = config.get(_HEADS)
    return found if isinstance(found, int) and found > 0 else None


def require_whole_heads(heads: int, degree: int) -> None:
    """Raise ``BadRequest`` where a model of so many ``heads`` cannot be split over ``degree`` GPUs."""
    if heads % degree and degree % heads:
        raise BadRequest(
            f"{heads} heads of keys and values cannot be split over {degree} GPUs: the degree of tensor parallelism, "
            f"an option's `gpus`, must divide {heads} or be a multiple of it"
        )
