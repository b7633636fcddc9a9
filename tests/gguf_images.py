"""GGUF files of small random models with images, each with its projector."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

from omnibus_models import tiny
from omnibus_models.tiny import _chat_tokenizer, _llava_style, _weights
from tests.gguf_files import write_gguf

#: By which positions of layers without a window are divided.
SCALE = 8.0
#: Classes of language models in whole ones, by the types of projectors.
_LANGUAGES = {
    "gemma3": "Gemma3ForCausalLM",
    "idefics3": "LlamaForCausalLM",
    "mlp": "LlamaForCausalLM",
    "qwen2vl_merger": "Qwen2ForCausalLM",
    "qwen2.5vl_merger": "Qwen2ForCausalLM",
}
#: What a file of the language model has besides its own fields.
_FIELDS: dict[str, dict[str, Any]] = {
    "gemma3": {"gemma3__rope__scaling__type": "linear", "gemma3__rope__scaling__factor": SCALE},
    "mlp": {"tokenizer__ggml__add_bos_token": True},
}
#: Names of tensors that the format's table lacks.
_NAMES = {
    "multi_modal_projector.linear_1": "mm.0",
    "multi_modal_projector.linear_2": "mm.2",
    "visual.merger.mlp.2": "mm.2",
    "vision_tower.embeddings.class_embedding": "v.class_embd",
    "multi_modal_projector.mm_input_projection_weight": "mm.input_projection.weight",
}
_TILE, _PATCH = 128, 16


def build_gemma(directory: Path) -> Path:
    """Write a tiny Gemma 3 with layers and scaled positions as those of the real model: five with windows, one without."""
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    checkpoint = tiny.build("gemma3", directory)
    fields = json.loads((checkpoint / "config.json").read_text())
    positions = fields["text_config"]["rope_parameters"]
    positions["full_attention"] |= {"rope_type": "linear", "factor": SCALE}
    fields["text_config"] |= {"num_hidden_layers": 6, "layer_types": ["sliding_attention"] * 5 + ["full_attention"]}
    model = Gemma3ForConditionalGeneration(Gemma3Config(**fields))
    _weights.redraw_weights(model, 1)
    model.save_pretrained(checkpoint)
    return checkpoint


def build_qwen2_5_vl(directory: Path) -> Path:
    """Write a tiny Qwen2.5-VL with the windows of the real model, which llama.cpp takes for granted."""
    checkpoint = tiny.build("qwen2_5_vl", directory)
    fields = json.loads((checkpoint / "config.json").read_text())
    fields["vision_config"]["window_size"] = 112
    (checkpoint / "config.json").write_text(json.dumps(fields))
    return checkpoint


def build_smolvlm(directory: Path) -> Path:
    """Write a tiny Idefics3, of which SmolVLM is a copy. Its images have up to four tiles of 16 rows each."""
    from transformers import Idefics3Config, Idefics3ForConditionalGeneration, Idefics3ImageProcessor, Idefics3Processor

    tiles = [f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)]
    special = ("<|endoftext|>", "<|im_start|>", "<end_of_utterance>", "<fake_token_around_image>", "<image>")
    tokenizer = _chat_tokenizer.train_tokenizer(
        (*special, "<global-img>", *tiles),
        {"image_token": "<image>", "fake_image_token": "<fake_token_around_image>", "global_image_tag": "<global-img>"},
        _chat_tokenizer.build_chat_template("<image>").replace("<|im_end|>", "<end_of_utterance>"),
        eos="<end_of_utterance>",
        texts=(*_chat_tokenizer.TEXTS, *["\n\n"] * 50),
    )
    vision = {
        **_llava_style.siglip_config(),
        "model_type": "idefics3_vision",
        "image_size": _TILE,
        "patch_size": _PATCH,
    }
    config = Idefics3Config(
        vision_config=vision,
        text_config=_llava_style.language_config("llama", tokenizer),
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=2,
        tie_word_embeddings=False,
    )
    processor = Idefics3Processor(
        Idefics3ImageProcessor(size={"longest_edge": 2 * _TILE}, max_image_size={"longest_edge": _TILE}),
        tokenizer,
        image_seq_len=(_TILE // _PATCH // 2) ** 2,
        chat_template=tokenizer.chat_template,
    )
    directory.mkdir(parents=True, exist_ok=True)
    _llava_style.save_checkpoint(directory, Idefics3ForConditionalGeneration(config), processor, 1, None)
    return directory


def write_pair(checkpoint: Path, directory: Path, kind: str = "gemma3") -> Path:
    """Write the language model of ``checkpoint`` and its projector into ``directory``; return the former's file."""
    import transformers

    whole = transformers.AutoModelForImageTextToText.from_pretrained(checkpoint)
    language = getattr(transformers, _LANGUAGES[kind])
    fields = whole.config.text_config.to_dict()
    rope = whole.config.text_config.rope_parameters
    if kind.startswith("qwen"):
        fields["rope_parameters"] = {"rope_type": "default", "rope_theta": rope["rope_theta"]}
    text = language(language.config_class(**{**fields, "model_type": language.config_class.model_type}))
    inner = getattr(whole.model, "text_model", None) or whole.model.language_model
    text.model.load_state_dict(inner.state_dict())
    text.lm_head.load_state_dict(whole.lm_head.state_dict())
    directory.mkdir(parents=True, exist_ok=True)
    text.save_pretrained(directory / "text")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(checkpoint / name, directory / "text")
    write_projector(checkpoint, directory / "mmproj-it.gguf", kind)
    if kind.startswith("qwen"):
        more = {"architecture": "qwen2vl", "qwen2vl__rope__dimension_sections": [*rope["mrope_section"], 0]}
    else:
        more = _FIELDS.get(kind, {})
    return write_gguf(directory / "text", directory / "it.gguf", **more)


def write_projector(checkpoint: Path, file: Path, kind: str = "gemma3", legacy: bool = False) -> Path:
    """Write the encoder of images of ``checkpoint`` as a projector of the type ``kind``.

    With ``legacy``, it is one of LLaVA as those of 2023: without a type, with two names the other way round.
    """
    config = json.loads((checkpoint / "config.json").read_text())
    vision, text = config["vision_config"], config["text_config"]
    width = vision.get("embed_dim") or vision["hidden_size"]
    writer = gguf.GGUFWriter(file, "clip")
    writer.add_type("mmproj")
    writer.add_clip_has_vision_encoder(True)
    if not legacy:
        writer.add_clip_projector_type(kind)
    writer.add_vision_image_size(vision.get("image_size", 560))
    writer.add_vision_patch_size(vision["patch_size"])
    writer.add_vision_embedding_length(width)
    writer.add_vision_feed_forward_length(vision.get("intermediate_size") or vision["mlp_ratio"] * width)
    writer.add_vision_projection_dim(768 if legacy else text["hidden_size"])
    layers = vision.get("num_hidden_layers") or vision["depth"]
    if kind == "mlp":  # the last one is not used: such files lack it
        layers -= 1
    writer.add_vision_block_count(layers)
    writer.add_vision_head_count(vision.get("num_attention_heads") or vision["num_heads"])
    writer.add_vision_attention_layernorm_eps(vision.get("layer_norm_eps", 1e-6))
    means, deviations = _read_normalization(checkpoint)
    writer.add_vision_image_mean(means)
    writer.add_vision_image_std(deviations)
    _add_own_fields(writer, kind, config)
    for name, values in load_file(checkpoint / "model.safetensors").items():
        for own_name, part in _stored_tensors(name, values.astype(np.float32), layers, kind):
            if legacy:
                own_name = own_name.replace("ffn_up", "ffn").replace("ffn_down", "ffn_up").replace("ffn.", "ffn_down.")
            writer.add_tensor(own_name, np.ascontiguousarray(part))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _read_normalization(checkpoint: Path) -> tuple[list[float], list[float]]:
    from transformers import AutoImageProcessor

    processor = AutoImageProcessor.from_pretrained(checkpoint)
    return list(processor.image_mean), list(processor.image_std)


def _add_own_fields(writer: gguf.GGUFWriter, kind: str, config: dict[str, Any]) -> None:
    vision = config["vision_config"]
    if kind in ("gemma3", "idefics3"):
        writer.add_vision_use_gelu(True)
    if kind == "gemma3":
        side = vision["image_size"] // vision["patch_size"]
        writer.add_vision_projector_scale_factor(side // round(config["mm_tokens_per_image"] ** 0.5))
    if kind == "idefics3":
        writer.add_vision_projector_scale_factor(config["scale_factor"])
        writer.add_vision_preproc_image_size(2 * _TILE)
    if kind == "qwen2.5vl_merger":
        writer.add_vision_use_silu(True)
        writer.add_vision_n_wa_pattern(vision["fullatt_block_indexes"][0] + 1)


def _stored_tensors(name: str, values: np.ndarray, layers: int, kind: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yield names and values of the parts of a tensor as the format stores them; none for the language model."""
    name = name.removeprefix("model.")
    if not name.startswith(("vision", "visual.", "multi_modal_projector.", "connector.")):
        return
    if name in _NAMES:
        yield _NAMES[name], values
        return
    stem, _, suffix = name.rpartition(".")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, layers)
    spellings = (stem, f"model.{stem}", stem.replace("vision_tower.", "vision_tower.vision_model."))
    stored = _NAMES.get(stem) or next(filter(None, map(names.get_name, spellings)), None)
    if kind == "mlp" and (f".layers.{layers}." in name or stored == "v.post_ln"):
        return
    assert stored is not None, name
    if stored == "mm.soft_emb_norm":
        values = values + 1
    if values.ndim == 5:  # frames of a video
        yield f"{stored}.{suffix}", values[:, :, 0]
        yield f"{stored}.{suffix}.1", values[:, :, 1]
    elif stored.endswith("attn_qkv"):
        for part, each in zip("qkv", np.split(values, 3), strict=True):
            yield f"{stored.removesuffix('qkv')}{part}.{suffix}", each
    else:
        yield f"{stored}.{suffix}", values
