"""Base of the tiny language models that take only text."""

from pathlib import Path
from typing import Any

from omnibus_models import torchvision_cpu
from omnibus_models.tiny import _chat_tokenizer, _qwen, _weights

# The library imports torchvision with its models if it is installed.
torchvision_cpu.install_operators()

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def write(model: Any, config: Any, directory: Path, seed: int, wide: bool, **more: Any) -> None:
    """Write a model of class ``model`` and its tokenizer to ``directory``.

    Its ``config`` takes ``more``.
    """
    tokenizer = _chat_tokenizer.train_tokenizer(SPECIAL, {}, _chat_tokenizer.build_chat_template())
    rope = {"rope_type": "default", "rope_theta": 1e4}
    instance = model(config(**{**_qwen.text_config(tokenizer, wide), "rope_parameters": rope, **more})).eval()
    _weights.redraw_weights(instance, seed)
    _weights.sharpen_attention(instance)
    _weights.speak_words(instance.lm_head.weight, tokenizer, stop_gain=3.0)
    _qwen.set_ends(instance.generation_config, tokenizer)
    instance.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
