"""Tiny LLaVA-NeXT: ``LlavaNextForConditionalGeneration`` with CLIP and Mistral."""

from pathlib import Path

from omnibus_models import torchvision_cpu
from omnibus_models.tiny import _chat_tokenizer, _llava_style

torchvision_cpu.install_operators()

SPECIAL = ("<unk>", "<s>", "</s>", "<pad>", "<image>")
# Like those of Llama 3 and Mistral, it writes the begin token itself.
TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' }}{% endif %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<image>\\n' }}{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}"
    "{% if message['role'] == 'user' %}{{ ' [/INST]' }}{% else %}{{ '\\n' }}{% endif %}"
    "{% endfor %}"
)
_GRID = [
    [_llava_style.SIDE * height, _llava_style.SIDE * width]
    for height, width in ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3))
]


def write(directory: Path, seed: int, llm_seed: int | None = None) -> None:
    """Write model, tokenizer and processor to ``directory``; ``llm_seed`` is only for the LLM."""
    from transformers import (
        LlavaNextConfig,
        LlavaNextForConditionalGeneration,
        LlavaNextImageProcessor,
        LlavaNextProcessor,
    )

    names = {"image_token": "<image>"}
    tokenizer = _chat_tokenizer.train_tokenizer(SPECIAL, names, TEMPLATE, bos="<s>", eos="</s>", pad="<pad>")
    config = LlavaNextConfig(
        vision_config=_llava_style.clip_config(),
        text_config={**_llava_style.language_config("mistral", tokenizer), "sliding_window": None},
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_grid_pinpoints=_GRID,
        image_seq_length=(_llava_style.SIDE // _llava_style.PATCH) ** 2,
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
    )
    size = {"height": _llava_style.SIDE, "width": _llava_style.SIDE}
    processor = LlavaNextProcessor(
        LlavaNextImageProcessor(size={"shortest_edge": _llava_style.SIDE}, crop_size=size, image_grid_pinpoints=_GRID),
        tokenizer,
        patch_size=_llava_style.PATCH,
        num_additional_image_tokens=1,
        vision_feature_select_strategy="default",
        chat_template=TEMPLATE,
    )
    _llava_style.save_checkpoint(directory, LlavaNextForConditionalGeneration(config), processor, seed, llm_seed)
