"""Tiny sentence encoder: ``BertModel`` with two layers, and the files of sentence-transformers."""

import json
from pathlib import Path

from omnibus_models.tiny import _wordpiece

_FILES = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ],
    "1_Pooling/config.json": {"word_embedding_dimension": 64, "pooling_mode_mean_tokens": True},
    "sentence_bert_config.json": {"max_seq_length": 64, "do_lower_case": False},
    "config_sentence_transformers.json": {"prompts": {"query": "what is ", "document": ""}},
}


def write(directory: Path, seed: int, llm_seed: int | None = None) -> None:
    """Write model, tokenizer and files to ``directory``. There is no LLM for ``llm_seed``."""
    from transformers import BertModel

    _wordpiece.write(BertModel, directory, seed)
    for name, content in _FILES.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(json.dumps(content))
