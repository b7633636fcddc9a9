"""Tiny LLaVA-OneVision: ``LlavaOnevisionForConditionalGeneration`` with SigLIP and Qwen2."""

from pathlib import Path

from omnibus_models import torchvision_cpu
from omnibus_models.tiny import _chat_tokenizer, _llava_style

torchvision_cpu.install_operators()

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>", "<video>")
# Like the released one: only parts, and the images of a message before its videos, both before its text.
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + ' ' }}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>' }}{% endfor %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'video') %}{{ '<video>' }}{% endfor %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}{{ '\\n' + part['text'] }}{% endfor %}"
    "{{ '<|im_end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_MAX_TILES_PER_SIDE = 3
_GRID = [
    [_llava_style.SIDE * height, _llava_style.SIDE * width]
    for height in range(1, _MAX_TILES_PER_SIDE + 1)
    for width in range(1, _MAX_TILES_PER_SIDE + 1)
]
_RATIO = "anyres_max_4"  # more than four tiles are thinned out to the rows of four


def write(directory: Path, seed: int, llm_seed: int | None = None) -> None:
    """Write model, tokenizer and processor to ``directory``; ``llm_seed`` is only for the LLM."""
    from transformers import (
        LlavaOnevisionConfig,
        LlavaOnevisionForConditionalGeneration,
        LlavaOnevisionImageProcessor,
        LlavaOnevisionProcessor,
        LlavaOnevisionVideoProcessor,
    )

    names = {"image_token": "<image>", "video_token": "<video>"}
    tokenizer = _chat_tokenizer.train_tokenizer(SPECIAL, names, TEMPLATE)
    config = LlavaOnevisionConfig(
        vision_config=_llava_style.siglip_config(),
        text_config=_llava_style.language_config("qwen2", tokenizer),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        video_token_index=tokenizer.convert_tokens_to_ids("<video>"),
        image_grid_pinpoints=_GRID,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        vision_aspect_ratio=_RATIO,
    )
    size = {"height": _llava_style.SIDE, "width": _llava_style.SIDE}
    processor = LlavaOnevisionProcessor(
        LlavaOnevisionImageProcessor(size=size, image_grid_pinpoints=_GRID),
        tokenizer,
        LlavaOnevisionVideoProcessor(size=size),
        num_image_tokens=(_llava_style.SIDE // _llava_style.PATCH) ** 2,
        vision_feature_select_strategy="full",
        vision_aspect_ratio=_RATIO,
        chat_template=TEMPLATE,
    )
    _llava_style.save_checkpoint(directory, LlavaOnevisionForConditionalGeneration(config), processor, seed, llm_seed)
