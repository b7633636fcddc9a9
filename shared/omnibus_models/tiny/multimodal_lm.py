"""A tiny multimodal model without a family of its own: Qwen3.5, with linear attention and M-RoPE."""

from pathlib import Path

from torch import nn

from omnibus_models import torchvision_cpu
from omnibus_models.tiny import _chat_tokenizer, _qwen, _weights, qwen3_vl
from omnibus_models.tiny.qwen2_5_vl import NAMES, SPECIAL, TEMPLATE

torchvision_cpu.install_operators()


def write(directory: Path, seed: int, llm_seed: int | None = None, wide: bool = False) -> None:
    """Write model, tokenizer and processor to ``directory``; ``llm_seed`` is only for the LLM."""
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration, Qwen3VLProcessor

    tokenizer = _chat_tokenizer.train_tokenizer(SPECIAL, NAMES, TEMPLATE)
    fields = qwen3_vl.build_config(tokenizer).to_dict()
    text = {**qwen3_vl.text_config(tokenizer, wide), **_LINEAR}
    vision = {**qwen3_vl.vision_config(), "model_type": "qwen3_5_vision"}
    own = {name: value for name, value in fields.items() if name.endswith("_token_id")}
    model = Qwen3_5ForConditionalGeneration(Qwen3_5Config(text_config=text, vision_config=vision, **own)).eval()
    _weights.redraw_weights(model, seed)
    if llm_seed is not None:
        _weights.redraw_weights(nn.ModuleList([model.model.language_model, model.lm_head]), llm_seed)
    _weights.speak_words(model.lm_head.weight, tokenizer, stop_gain=3.0)
    _qwen.set_ends(model.generation_config, tokenizer)
    model.save_pretrained(directory)
    processor = Qwen3VLProcessor(
        qwen3_vl.image_processor(), tokenizer, qwen3_vl.video_processor(), chat_template=TEMPLATE
    )
    processor.save_pretrained(directory)


#: Two layers of linear attention, and one of full attention.
_LINEAR = {
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
