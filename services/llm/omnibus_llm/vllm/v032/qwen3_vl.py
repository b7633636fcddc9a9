"""Qwen3-VL without its vision tower."""

import torch
from vllm.config import VllmConfig
from vllm.model_executor.models.qwen3_vl import Qwen3VLForConditionalGeneration


class Qwen3VLWithoutTower(Qwen3VLForConditionalGeneration):
    """Takes the deeper levels of embeddings as well: an item is [n, H * (1 + levels)].

    vLLM 0.32 reads from the tower, which is absent here, if there are levels. The configuration contains that as well.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
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
