"""GGUF files of tiny random models, written with the format's own package."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from omnibus_models.tiny import _language

#: Tensors whose rows are stored in another order, and the field of the configuration with their heads.
_PERMUTED = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}


def write_llama(directory: Path, seed: int = 1) -> Path:
    """Write a random checkpoint of ``LlamaForCausalLM``, and return its directory."""
    from transformers import LlamaConfig, LlamaForCausalLM

    _language.write(LlamaForCausalLM, LlamaConfig, directory, seed, wide=False, head_dim=16)
    return directory


def write_gguf(
    checkpoint: Path, file: Path, dtype: str = "F32", architecture: str = "", template: bool = True, **metadata: Any
) -> Path:
    """Write the ``checkpoint`` of a language model as ``file``, with matrices in ``dtype``.

    ``metadata`` are further fields. Their names have ``__`` for ``.``; a value replaces that of the checkpoint.
    """
    config = json.loads((checkpoint / "config.json").read_text())
    writer = gguf.GGUFWriter(file, architecture or config["model_type"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_rope_dimension_count(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    _add_tokenizer(writer, checkpoint, template)
    for name, value in metadata.items():
        _add_field(writer, name.replace("__", "."), value)
    _add_tensors(writer, checkpoint, config, gguf.GGMLQuantizationType[dtype])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _add_tokenizer(writer: gguf.GGUFWriter, checkpoint: Path, template: bool) -> None:
    state = json.loads((checkpoint / "tokenizer.json").read_text())
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    special = {token["id"] for token in state["added_tokens"] if token["special"]}
    tokens = [tokenizer.id_to_token(id) for id in range(tokenizer.get_vocab_size())]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if id in special else 1 for id in range(len(tokens))])
    writer.add_token_merges([" ".join(pair) for pair in state["model"]["merges"]])
    writer.add_bos_token_id(tokens.index("<|im_start|>"))
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_pad_token_id(tokens.index("<|endoftext|>"))
    writer.add_add_bos_token(False)
    if template:
        writer.add_chat_template((checkpoint / "chat_template.jinja").read_text())


def _add_field(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    for fields in writer.kv_data:
        fields.pop(name, None)
    writers = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    writers[type(value)](name, value)


def _add_tensors(
    writer: gguf.GGUFWriter, checkpoint: Path, config: dict[str, Any], kind: gguf.GGMLQuantizationType
) -> None:
    [architecture] = [each for each, name in gguf.MODEL_ARCH_NAMES.items() if name == config["model_type"]]
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    for name, values in load_file(checkpoint / "model.safetensors").items():
        stem, kind_name = names.get_name(name.rpartition(".")[0]), name.rpartition(".")[2]
        assert stem is not None, name
        heads = _PERMUTED.get(stem.rpartition(".")[2]) if config["model_type"] == "llama" else None
        weights = values.astype(np.float32)
        if heads is not None:
            pairs = weights.reshape(config[heads], 2, -1, weights.shape[1])
            weights = pairs.swapaxes(1, 2).reshape(weights.shape)
        if weights.ndim == 1:  # norms stay as they are
            writer.add_tensor(f"{stem}.{kind_name}", weights)
        else:
            writer.add_tensor(f"{stem}.{kind_name}", gguf.quants.quantize(weights, kind), raw_dtype=kind)
