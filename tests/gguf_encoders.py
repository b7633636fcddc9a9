"""GGUF files of small random text encoders."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

#: Architectures of the format by the types of models of transformers.
_ARCHITECTURES = {"bert": gguf.MODEL_ARCH.BERT, "nomic_bert": gguf.MODEL_ARCH.NOMIC_BERT}


def write_encoder_gguf(checkpoint: Path, file: Path, pooling: str = "", dtype: str = "F32") -> Path:
    """Write the ``checkpoint`` of a text encoder as ``file``.

    Its tokenizer is a WordPiece. Matrices are in ``dtype``. ``pooling`` is a name of ``gguf.PoolingType``; without one the file has none.
    """
    config = json.loads((checkpoint / "config.json").read_text())
    architecture = _ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[architecture])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    if "rope_parameters" in config:
        writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    if pooling:
        writer.add_pooling_type(gguf.PoolingType[pooling])
    _add_tokenizer(writer, checkpoint, config["vocab_size"])
    kind = gguf.GGMLQuantizationType[dtype]
    for name, weights in _stored_tensors(checkpoint, config, architecture):
        if weights.ndim == 1 or not name.startswith("blk."):
            writer.add_tensor(name, weights)
        else:
            writer.add_tensor(name, gguf.quants.quantize(weights, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _add_tokenizer(writer: gguf.GGUFWriter, checkpoint: Path, size: int) -> None:
    """Write a vocabulary of ``size``.

    The first token of a word begins with a mark, and others do not.
    """
    state = json.loads((checkpoint / "tokenizer.json").read_text())
    special = {token["content"]: token["id"] for token in state["added_tokens"] if token["special"]}
    tokens = sorted(state["model"]["vocab"], key=state["model"]["vocab"].__getitem__)
    unused = [f"[PAD{number}]" for number in range(len(tokens), size)]
    stored = [token if token in special else _mark_word(token) for token in tokens] + unused
    writer.add_token_type_count(2)
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(stored)
    writer.add_token_types([3 if token in special else 1 for token in tokens] + [5] * len(unused))
    writer.add_unk_token_id(special["[UNK]"])
    writer.add_pad_token_id(special["[PAD]"])
    writer.add_mask_token_id(special["[MASK]"])
    writer.add_sep_token_id(special["[SEP]"])
    writer.add_bos_token_id(special["[CLS]"])


def _mark_word(token: str) -> str:
    return token.removeprefix("##") if token.startswith("##") else f"\u2581{token}"


def _stored_tensors(
    checkpoint: Path, config: dict[str, Any], architecture: gguf.MODEL_ARCH
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield names and values of the weights as the format stores them."""
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    for name, weights in load_file(checkpoint / "model.safetensors").items():
        if name.startswith("pooler.") or name == "embeddings.position_ids":
            continue
        stem, _, suffix = name.rpartition(".")
        stored = names.get_name(stem)
        assert stored is not None, name
        yield f"{stored}.{suffix}", weights.astype(np.float32)
