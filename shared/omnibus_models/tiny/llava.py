"""Tiny LLaVA-1.5: ``LlavaForConditionalGeneration`` with CLIP and Llama, two effective layers of each."""

from pathlib import Path

from omnibus_models import torchvision_cpu
from omnibus_models.tiny import _chat_tokenizer, _llava_style

torchvision_cpu.install_operators()

SPECIAL = ("<unk>", "<s>", "</s>", "<pad>", "<image>")
# Like the released one: only parts, and the images of a message before its text.
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] != 'system' %}{{ message['role'].upper() + ': ' }}{% endif %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\\n' }}{% endfor %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}{{ part['text'] + ' ' }}{% endfor %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)


def write(directory: Path, seed: int, llm_seed: int | None = None, wide: bool = False) -> None:
    """Write model, tokenizer and processor to ``directory``; ``llm_seed`` is only for the LLM."""
    from transformers import CLIPImageProcessor, LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor

    names = {"image_token": "<image>"}
    tokenizer = _chat_tokenizer.train_tokenizer(SPECIAL, names, TEMPLATE, bos="<s>", eos="</s>", pad="<pad>")
    config = LlavaConfig(
        vision_config=_llava_style.clip_config(),
        text_config=_llava_style.language_config("llama", tokenizer, wide),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_seq_length=(_llava_style.SIDE // _llava_style.PATCH) ** 2,
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
    )
    size = {"height": _llava_style.SIDE, "width": _llava_style.SIDE}
    processor = LlavaProcessor(
        CLIPImageProcessor(size={"shortest_edge": _llava_style.SIDE}, crop_size=size),
        tokenizer,
        patch_size=_llava_style.PATCH,
        num_additional_image_tokens=1,
        vision_feature_select_strategy="default",
        chat_template=TEMPLATE,
    )
    _llava_style.save_checkpoint(directory, LlavaForConditionalGeneration(config), processor, seed, llm_seed)
