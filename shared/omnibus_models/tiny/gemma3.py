"""Tiny Gemma 3: ``Gemma3ForConditionalGeneration`` whose windows are little longer than an image."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from omnibus_models import torchvision_cpu
from omnibus_models.tiny import _chat_tokenizer, _qwen, _weights

torchvision_cpu.install_operators()

TOKENS = 16  # of an image
WINDOW = 24
_WIDER = 96  # the width of another size of LLM, whose heads are of 32
_SIDE = 112  # pixels
_SPECIAL = (
    "<pad>",
    "<eos>",
    "<bos>",
    "<unk>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<start_of_image>",
    "<end_of_image>",
    "<image_soft_token>",
)
_NAMES = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
# As that of the real model: a system message goes into the first turn, and turns alternate.
_TEMPLATE = (
    "{{ bos_token }}"
    "{%- set first = '' -%}{%- set turns = messages -%}"
    "{%- if messages[0]['role'] == 'system' -%}"
    "{%- set said = messages[0]['content'] -%}"
    "{%- set first = (said if said is string else said[0]['text']) + '\n\n' -%}"
    "{%- set turns = messages[1:] -%}"
    "{%- endif -%}"
    "{%- for message in turns -%}"
    "{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
    "{%- endif -%}"
    "{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\n' }}"
    "{{ first if loop.first else '' }}"
    "{%- if message['content'] is string -%}{{ message['content'] | trim }}"
    "{%- else -%}"
    "{%- for part in message['content'] -%}"
    "{%- if part['type'] == 'image' -%}{{ '<start_of_image>' }}{%- else -%}{{ part['text'] | trim }}{%- endif -%}"
    "{%- endfor -%}"
    "{%- endif -%}"
    "{{ '<end_of_turn>\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"
)


def write(directory: Path, seed: int, llm_seed: int | None = None, wide: bool = False) -> None:
    """Write model, tokenizer and processor to ``directory``.

    ``llm_seed`` and ``wide`` affect only the LLM. A wide one is another size of the model with the same vision tower.
    """
    from transformers import Gemma3ForConditionalGeneration, Gemma3ImageProcessor, Gemma3Processor

    tokenizer = _chat_tokenizer.train_tokenizer(
        _SPECIAL, _NAMES, _TEMPLATE, bos="<bos>", eos="<end_of_turn>", pad="<pad>"
    )
    model = Gemma3ForConditionalGeneration(build_config(tokenizer, wide)).eval()
    _weights.redraw_weights(model, seed)
    if llm_seed is not None:
        _weights.redraw_weights(nn.ModuleList([model.model.language_model, model.lm_head]), llm_seed)
    _sharpen_attention(model.model.language_model)
    _weights.speak_words(model.lm_head.weight, tokenizer, stop_gain=3.0)
    _qwen.set_ends(model.generation_config, tokenizer)
    model.save_pretrained(directory)
    images = Gemma3ImageProcessor(size={"height": _SIDE, "width": _SIDE})
    Gemma3Processor(images, tokenizer, chat_template=_TEMPLATE, image_seq_length=TOKENS).save_pretrained(directory)


@torch.no_grad()
def _sharpen_attention(llm: nn.Module) -> None:
    """Sharpen attention: queries are normalised, so the size of their projection has no effect."""
    for name, parameter in llm.named_parameters():
        if name.endswith("q_norm.weight"):  # the norm's gain is one more
            parameter.fill_(1.0)


def build_config(tokenizer: Any, wide: bool = False) -> Any:
    """Return the configuration of a tiny Gemma 3 with the ids of ``tokenizer``."""
    from transformers import Gemma3Config

    ids = tokenizer.convert_tokens_to_ids
    width = _WIDER if wide else _qwen.HIDDEN
    language = {
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": WINDOW,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32 if wide else 16,
        "query_pre_attn_scalar": 32 if wide else 16,
        "max_position_embeddings": _qwen.CONTEXT,
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": False,
    }
    vision = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": _SIDE,
        "patch_size": _qwen.PATCH,
        "vision_use_head": False,
    }
    return Gemma3Config(
        text_config=language,
        vision_config=vision,
        mm_tokens_per_image=TOKENS,
        boi_token_index=ids("<start_of_image>"),
        eoi_token_index=ids("<end_of_image>"),
        image_token_index=ids("<image_soft_token>"),
        tie_word_embeddings=False,
    )
