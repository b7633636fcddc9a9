"""Tiny Llama 3.2 Vision: ``MllamaForConditionalGeneration``, two of four layers with cross-attention."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from omnibus_models import torchvision_cpu
from omnibus_models.tiny import _chat_tokenizer, _qwen, _weights

torchvision_cpu.install_operators()

TILES = 4  # most of an image
_SIDE = 4 * _qwen.PATCH  # pixels of a tile
_SPECIAL = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
    "<|finetune_right_pad_id|>",
)
_IMAGE = "<|image|>"
# Like that of the real model: no system message with images.
_TEMPLATE = (
    "{{ bos_token }}"
    "{%- set seen = namespace(images=false) -%}"
    "{%- for message in messages -%}{%- if message['content'] is not string -%}"
    "{%- for part in message['content'] -%}"
    "{%- if part['type'] == 'image' -%}{%- set seen.images = true -%}{%- endif -%}"
    "{%- endfor -%}"
    "{%- endif -%}{%- endfor -%}"
    "{%- if seen.images and messages[0]['role'] == 'system' -%}"
    "{{ raise_exception('Prompting with images is incompatible with system messages.') }}"
    "{%- endif -%}"
    "{%- for message in messages -%}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
    "{%- if message['content'] is string -%}{{ message['content'] }}"
    "{%- else -%}"
    "{%- for part in message['content'] -%}"
    "{%- if part['type'] == 'image' -%}{{ '<|image|>' }}{%- else -%}{{ part['text'] }}{%- endif -%}"
    "{%- endfor -%}"
    "{%- endif -%}"
    "{{ '<|eot_id|>' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif -%}"
)


def write(directory: Path, seed: int, llm_seed: int | None = None) -> None:
    """Write model, tokenizer and processor to ``directory``; ``llm_seed`` is only for the LLM."""
    from transformers import MllamaForConditionalGeneration, MllamaImageProcessor, MllamaProcessor

    # The placeholder is not part of the vocabulary: as in the real model it follows it.
    names = {"image_token": _IMAGE}
    tokenizer = _chat_tokenizer.train_tokenizer(
        _SPECIAL, names, _TEMPLATE, bos="<|begin_of_text|>", eos="<|eot_id|>", pad="<|finetune_right_pad_id|>"
    )
    model = MllamaForConditionalGeneration(build_config(tokenizer)).eval()
    _weights.redraw_weights(model, seed)
    if llm_seed is not None:
        _weights.redraw_weights(nn.ModuleList([model.model.language_model, model.lm_head]), llm_seed)
    _open_gates(model)
    _weights.speak_words(model.lm_head.weight, tokenizer, stop_gain=3.0)
    _qwen.set_ends(model.generation_config, tokenizer)
    model.save_pretrained(directory)
    images = MllamaImageProcessor(size={"height": _SIDE, "width": _SIDE}, max_image_tiles=TILES)
    MllamaProcessor(images, tokenizer, chat_template=_TEMPLATE).save_pretrained(directory)


@torch.no_grad()
def _open_gates(model: nn.Module) -> None:
    """Open all gates, which the library closes, so that images count."""
    for name, parameter in model.named_parameters():
        if "gate" in name.rpartition(".")[2] and parameter.numel() == 1:
            parameter.fill_(0.7)


def build_config(tokenizer: Any) -> Any:
    """Return the configuration of a tiny Llama 3.2 Vision with ``tokenizer``'s ids."""
    from transformers import MllamaConfig

    language = {
        **_qwen.text_config(tokenizer),
        "vocab_size": tokenizer.convert_tokens_to_ids(_IMAGE),
        "num_hidden_layers": 4,
        "cross_attention_layers": [1, 3],
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        "bos_token_id": tokenizer.bos_token_id,
    }
    vision = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "attention_heads": 2,
        "num_hidden_layers": 2,
        "num_global_layers": 1,
        "intermediate_layers_indices": [0, 1],
        "vision_output_dim": 3 * 32,
        "image_size": _SIDE,
        "patch_size": _qwen.PATCH,
        "max_num_tiles": TILES,
        "supported_aspect_ratios": [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]],
    }
    return MllamaConfig(
        text_config=language, vision_config=vision, image_token_index=tokenizer.convert_tokens_to_ids(_IMAGE)
    )
