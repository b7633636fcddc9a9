"""Tiny InternVL3: ``InternVLForConditionalGeneration`` with two layers of its tower and of Qwen2."""

from pathlib import Path

from omnibus_models import torchvision_cpu
from omnibus_models.tiny import _chat_tokenizer, _llava_style

torchvision_cpu.install_operators()

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<img>", "</img>", "<IMG_CONTEXT>", "<video>")
NAMES = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}
TEMPLATE = _chat_tokenizer.build_chat_template(image="<IMG_CONTEXT>{{ '\\n' }}", video="<video>{{ '\\n' }}")


def write(directory: Path, seed: int, llm_seed: int | None = None) -> None:
    """Write model, tokenizer and processor to ``directory``; ``llm_seed`` is only for the LLM."""
    from transformers import (
        GotOcr2ImageProcessor,
        InternVLConfig,
        InternVLForConditionalGeneration,
        InternVLProcessor,
        InternVLVideoProcessor,
    )

    tokenizer = _chat_tokenizer.train_tokenizer(SPECIAL, NAMES, TEMPLATE)
    rows = (_llava_style.SIDE // _llava_style.PATCH // 2) ** 2
    config = InternVLConfig(
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": [_llava_style.SIDE, _llava_style.SIDE],
            "patch_size": [_llava_style.PATCH, _llava_style.PATCH],
        },
        text_config=_llava_style.language_config("qwen2", tokenizer),
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=rows,
        downsample_ratio=0.5,
        tie_word_embeddings=False,
    )
    size = {"height": _llava_style.SIDE, "width": _llava_style.SIDE}
    processor = InternVLProcessor(
        GotOcr2ImageProcessor(size=size, max_patches=6),
        tokenizer,
        InternVLVideoProcessor(size=size),
        image_seq_length=rows,
        chat_template=TEMPLATE,
    )
    _llava_style.save_checkpoint(directory, InternVLForConditionalGeneration(config), processor, seed, llm_seed)
