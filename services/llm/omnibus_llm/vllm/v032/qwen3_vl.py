"""Qwen3-VL without its vision tower."""

from typing import Any

import torch
from vllm.config import VllmConfig

#: Classes whose first layers get rows of media as well.
DEEP = frozenset({"Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration"})


class DeepRows:
    """Takes the deeper levels of embeddings as well: an item is [n, H * (1 + levels)].

    vLLM 0.32 reads from the tower, which is absent here, if there are levels. The configuration contains that as well.
    """

    def __init__(self: Any, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)  # type: ignore[call-arg]
        config = vllm_config.model_config.hf_config
        levels = len(getattr(config.vision_config, "deepstack_visual_indexes", ()))
        if not levels or getattr(self, "use_deepstack", False):
            return
        self.use_deepstack = True
        self.deepstack_num_level = levels
        self.multiscale_dim = self.visual_dim * levels
        tokens = vllm_config.scheduler_config.max_num_batched_tokens
        self.deepstack_input_embeds = [torch.zeros(tokens, config.text_config.hidden_size) for _ in range(levels)]
        self.deepstack_input_embeds_num_tokens = 0


def make_towerless_class(cls: Any) -> Any:
    """Return a subclass of ``cls``, one of ``DEEP``, that takes rows with deeper levels."""
    return type(f"{cls.__name__}WithoutTower", (DeepRows, cls), {"__module__": __name__})
