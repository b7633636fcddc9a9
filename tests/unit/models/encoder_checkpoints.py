"""Tiny random checkpoints of any class of text encoders, with the files of sentence-transformers."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoModelForTextEncoding

from omnibus_models.tiny import _weights, _wordpiece

#: By the names that configurations use; each takes those that it has.
_SIZES: dict[str, Any] = {
    "vocab_size": 400, "hidden_size": 32, "dim": 32, "d_model": 32, "embedding_size": 32, "emb_dim": 32,
    "num_hidden_layers": 2, "n_layers": 2, "num_layers": 2, "num_attention_heads": 4, "n_heads": 4, "num_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "d_kv": 8, "intermediate_size": 64, "hidden_dim": 64, "d_ff": 64,
    "max_position_embeddings": 130, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2,
    "sep_token_id": 3, "dropout": 0.0, "layer_types": None, "num_experts": None, "local_attention": 8,
}  # fmt: skip


def write_checkpoint(model_type: str, directory: Path, *, classifies: bool = False, **more: Any) -> Path:
    """Write a tiny checkpoint; ``more`` is passed to the configuration. Returns ``directory``."""
    torch.manual_seed(0)
    plain = AutoConfig.for_model(model_type)
    sizes = {name: size for name, size in _SIZES.items() if name in plain.attribute_map or hasattr(plain, name)}
    labels = {"num_labels": 1} if classifies else {}
    config = AutoConfig.for_model(model_type, **{**sizes, **labels, **more})
    encoders: Any = AutoModelForTextEncoding if config.is_encoder_decoder else AutoModel
    model = (AutoModelForSequenceClassification if classifies else encoders).from_config(config)
    _weights.redraw_weights(model, 0)
    model.save_pretrained(directory)
    tokenizer = _wordpiece.train_tokenizer()
    if model_type not in ("bert", "electra", "albert"):  # others have no second type of tokens
        tokenizer.model_input_names = ["input_ids", "attention_mask"]
    tokenizer.save_pretrained(directory)
    return directory


def write_modules(directory: Path, pooling: dict[str, Any], *kinds: str, **text: Any) -> None:
    """Write the files of sentence-transformers: ``pooling``, further modules, and the limits ``text``."""
    names = ["Transformer", "Pooling", *kinds]
    entries = [
        {
            "idx": at,
            "name": str(at),
            "path": f"{at}_{kind}" if at else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for at, kind in enumerate(names)
    ]
    (directory / "modules.json").write_text(json.dumps(entries))
    (directory / "1_Pooling").mkdir(exist_ok=True)
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (directory / "sentence_bert_config.json").write_text(json.dumps(text))
