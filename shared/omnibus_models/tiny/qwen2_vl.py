"""Tiny Qwen2-VL: ``Qwen2VLForConditionalGeneration`` with two layers everywhere."""

from pathlib import Path
from typing import Any

from omnibus_models.tiny import _chat_tokenizer, _qwen, qwen2_5_vl


def write(directory: Path, seed: int, llm_seed: int | None = None, wide: bool = False) -> None:
    """Write model, tokenizer and processor to ``directory``; ``llm_seed`` is only for the LLM."""
    from transformers import Qwen2VLForConditionalGeneration, Qwen2VLProcessor

    tokenizer = _chat_tokenizer.train_tokenizer(qwen2_5_vl.SPECIAL, qwen2_5_vl.NAMES, qwen2_5_vl.TEMPLATE)
    model = Qwen2VLForConditionalGeneration(_build_config(tokenizer, wide)).eval()
    qwen2_5_vl.save_checkpoint(model, Qwen2VLProcessor, tokenizer, directory, seed, llm_seed)


def _build_config(tokenizer: Any, wide: bool) -> Any:
    from transformers import Qwen2VLConfig

    vision = {
        "depth": 2,
        "embed_dim": 32,
        "hidden_size": _qwen.HIDDEN,
        "mlp_ratio": 2,
        "num_heads": 2,
        "patch_size": _qwen.PATCH,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }
    return Qwen2VLConfig(
        text_config=_qwen.text_config(tokenizer, wide), vision_config=vision, **qwen2_5_vl.media_entries(tokenizer)
    )
