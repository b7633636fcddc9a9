"""Tiny Janus: ``JanusForConditionalGeneration`` with two layers everywhere.

Its images have 64 x 64 pixels.
"""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from omnibus_models import torchvision_cpu
from omnibus_models.tiny import _chat_tokenizer, _llava_style, _qwen, _weights

torchvision_cpu.install_operators()

_BEGIN, _END, _PAD = "<|begin|>", "<|end|>", "<|pad|>"
SPECIAL = (_BEGIN, _END, _PAD, "<image_placeholder>", "<begin_of_image>", "<end_of_image>")
NAMES = {"image_token": "<image_placeholder>", "boi_token": "<begin_of_image>", "eoi_token": "<end_of_image>"}
# Like the released one: only parts, each speaker by name.
TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'user' -%}<|User|>: {% elif message['role'] == 'assistant' -%}<|Assistant|>: {% "
    "else -%}{{ message['role'] | capitalize }}: {% endif -%}"
    "{%- for part in message['content'] -%}"
    "{%- if part['type'] == 'image' -%}<image_placeholder>{{ '\\n' }}{%- else -%}{{ part['text'] }}{%- endif -%}"
    "{%- endfor -%}"
    f"{{%- if message['role'] == 'user' -%}}{{{{ '\\n\\n' }}}}{{%- else -%}}{_END}{{%- endif -%}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|Assistant|>:{%- endif -%}"
)
_PATCH, _GRID = 16, 4
_CODES = 64


def write(directory: Path, seed: int, llm_seed: int | None = None) -> None:
    """Write model, tokenizer and processor to ``directory``; ``llm_seed`` is only for the LLM."""
    from transformers import JanusForConditionalGeneration, JanusImageProcessor, JanusProcessor

    tokenizer = _chat_tokenizer.train_tokenizer(SPECIAL, NAMES, TEMPLATE, bos=_BEGIN, eos=_END, pad=_PAD)
    model = JanusForConditionalGeneration(_build_config(tokenizer)).eval()
    _weights.redraw_weights(model, seed)
    if llm_seed is not None:
        _weights.redraw_weights(nn.ModuleList([model.model.language_model, model.lm_head]), llm_seed)
    _damp_decoder(model.model.vqmodel)
    _weights.speak_words(model.lm_head.weight, tokenizer, stop_gain=3.0)
    _qwen.set_ends(model.generation_config, tokenizer)
    model.generation_config.bos_token_id = tokenizer.bos_token_id
    model.generation_config.guidance_scale = 5.0
    model.generation_config.generation_kwargs = {"boi_token_id": tokenizer.boi_token_id}
    model.save_pretrained(directory)
    side = _PATCH * _GRID
    eyes = JanusImageProcessor(size={"height": side, "width": side}, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    processor = JanusProcessor(eyes, tokenizer, chat_template=TEMPLATE, num_image_tokens=_GRID**2)
    processor.save_pretrained(directory)


@torch.no_grad()
def _damp_decoder(vqmodel: Any) -> None:
    """Make colours follow the tokens, which random residual branches alone would ignore."""
    for name, parameter in vqmodel.decoder.named_parameters():
        if name.endswith(("conv2.weight", "proj_out.weight")):
            parameter *= 0.1


def _build_config(tokenizer: Any) -> Any:
    from transformers import JanusConfig

    return JanusConfig(
        text_config=_llava_style.language_config("llama", tokenizer),
        vision_config={
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "mlp_ratio": 2,
            "image_size": _PATCH * _GRID,
            "patch_size": _PATCH,
            "num_image_tokens": _GRID**2,
            "projection_dim": _qwen.HIDDEN,
            "depth": 2,
        },
        vq_config={
            "embed_dim": 8,
            "num_embeddings": _CODES,
            "latent_channels": 8,
            "num_patches": _GRID,
            "base_channels": 32,  # the library normalises in groups of 32
            "channel_multiplier": [1, 1, 1, 1, 1],
            "num_res_blocks": 1,
            "projection_dim": _qwen.HIDDEN,
            "image_token_embed_dim": _qwen.HIDDEN,
            "num_hidden_layers": 2,
        },
        image_token_id=tokenizer.image_token_id,
        tie_word_embeddings=False,
    )
