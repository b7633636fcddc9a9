"""GGUF files of small random models, written with the format's own package."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from omnibus_models import gguf_checkpoint
from omnibus_models.tiny import _language

#: Tensors of llama whose rows are stored in another order, and the field of the configuration with their heads.
_PERMUTED = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}
#: Architectures whose norms are stored as the factors themselves, where the library stores what exceeds 1.
_WHOLE_NORMS = ("gemma2", "gemma3")
#: Tensors of gpt2 that the library stores transposed.
_TRANSPOSED = ("attn_qkv", "attn_output", "ffn_up", "ffn_down")


def write_llama(directory: Path, seed: int = 1) -> Path:
    """Write a random checkpoint of ``LlamaForCausalLM``, and return its directory."""
    from transformers import LlamaConfig, LlamaForCausalLM

    _language.write(LlamaForCausalLM, LlamaConfig, directory, seed, wide=False, head_dim=16)
    return directory


def write_gguf(
    checkpoint: Path,
    file: Path,
    dtype: str = "F32",
    architecture: str = "",
    template: bool = True,
    factors: np.ndarray | None = None,
    **metadata: Any,
) -> Path:
    """Write the ``checkpoint`` of a language model as ``file``, with matrices in ``dtype``.

    ``architecture`` is that of the header if it is another one than the model's. ``metadata`` are further fields. Their
    names have ``__`` for ``.``; a value replaces that of the checkpoint. ``factors`` are those of rotary positions.
    """
    config = json.loads((checkpoint / "config.json").read_text())
    own = config["model_type"].removesuffix("_text").replace("_moe", "moe")
    fields = {
        **dict(_read_fields(config, architecture or own)),
        **{name.replace("__", "."): each for name, each in metadata.items()},
    }
    writer = gguf.GGUFWriter(file, architecture or own)
    writers = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    for name, value in fields.items():
        writers.get(type(value), writer.add_array)(name, value)
    _add_tokenizer(writer, checkpoint, template, fields)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors)
    kind = gguf.GGMLQuantizationType[dtype]
    for name, weights in _stored_tensors(checkpoint, config, own):
        if weights.ndim == 1:  # norms stay as they are
            writer.add_tensor(name, weights)
        else:
            writer.add_tensor(name, gguf.quants.quantize(weights, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _read_fields(config: dict[str, Any], architecture: str) -> Iterator[tuple[str, Any]]:
    """Yield the fields of the header for a configuration of the library."""
    from transformers.integrations import GGUF_CONFIG_MAPPING

    rope = config.get("rope_parameters") or {}
    values = {**config, "rope_theta": rope.get("rope_theta") or rope.get("full_attention", {}).get("rope_theta")}
    values.setdefault("num_experts", config.get("num_local_experts"))
    names = {**gguf_checkpoint._SIZES, **GGUF_CONFIG_MAPPING[config["model_type"].removesuffix("_text")]}
    for name, own_name in names.items():
        if own_name is not None and values.get(own_name) is not None:
            yield f"{architecture}.{name}", values[own_name]


def _add_tokenizer(writer: gguf.GGUFWriter, checkpoint: Path, template: bool, fields: dict[str, Any]) -> None:
    state = json.loads((checkpoint / "tokenizer.json").read_text())
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    special = {token["id"] for token in state["added_tokens"] if token["special"]}
    tokens = [tokenizer.id_to_token(id) for id in range(tokenizer.get_vocab_size())]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if id in special else 1 for id in range(len(tokens))])
    writer.add_token_merges([" ".join(pair) for pair in state["model"]["merges"]])
    names = json.loads((checkpoint / "tokenizer_config.json").read_text())
    writer.add_bos_token_id(tokens.index(names.get("bos_token") or "<|im_start|>"))
    writer.add_eos_token_id(tokens.index(names["eos_token"]))
    writer.add_pad_token_id(tokens.index(names["pad_token"]))
    if "tokenizer.ggml.add_bos_token" not in fields:
        writer.add_add_bos_token(False)
    if template:
        writer.add_chat_template((checkpoint / "chat_template.jinja").read_text())


def _stored_tensors(checkpoint: Path, config: dict[str, Any], architecture: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yield names and values of the weights as the format stores them."""
    [key] = [each for each, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture]
    names = gguf.get_tensor_name_map(key, config.get("num_hidden_layers") or config["n_layer"])
    joined: dict[str, list[np.ndarray]] = {}
    weights = load_file(checkpoint / "model.safetensors")
    for name in sorted(weights, key=lambda each: [int(part) if part.isdigit() else 0 for part in each.split(".")]):
        joined.setdefault(re.sub(r"\.experts\.\d+\.", ".experts.", name), []).append(weights[name].astype(np.float32))
    for name, parts in joined.items():
        stem, suffix = names.get_name(name.rpartition(".")[0]), name.rpartition(".")[2]
        assert stem is not None, name
        values, last = np.stack(parts) if ".experts." in name else parts[0], stem.rpartition(".")[2]
        if architecture == "llama" and last in _PERMUTED:
            pairs = values.reshape(config[_PERMUTED[last]], 2, -1, values.shape[1])
            values = pairs.swapaxes(1, 2).reshape(values.shape)
        if architecture in _WHOLE_NORMS and "norm" in last:
            values = values + 1
        if architecture == "gpt2" and last in _TRANSPOSED and values.ndim > 1:
            values = np.ascontiguousarray(values.T)
        yield f"{stem}.{suffix}", values[0] if last == "ffn_gate_inp_shexp" else values


def write_gguf_adapter(checkpoint: Path, adapter: Path, file: Path, **metadata: Any) -> Path:
    """Write the PEFT ``adapter`` of a ``checkpoint`` as ``file``. ``metadata`` replace fields, see ``write_gguf``."""
    config = json.loads((checkpoint / "config.json").read_text())
    peft = json.loads((adapter / "adapter_config.json").read_text())
    own = config["model_type"]
    fields = {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": float(peft["lora_alpha"])}
    fields |= {name.replace("__", "."): value for name, value in metadata.items()}
    writer = gguf.GGUFWriter(file, fields.pop("general.architecture", own))
    for name, value in fields.items():
        (writer.add_string if isinstance(value, str) else writer.add_float32)(name, value)
    [key] = [each for each, name in gguf.MODEL_ARCH_NAMES.items() if name == own]
    names = gguf.get_tensor_name_map(key, config["num_hidden_layers"])
    for name, values in load_file(adapter / "adapter_model.safetensors").items():
        module, _, kind = name.removeprefix("base_model.model.").removesuffix(".weight").rpartition(".lora_")
        stem = names.get_name(module)
        assert stem is not None, module
        writer.add_tensor(f"{stem}.weight.lora_{kind.lower()}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
