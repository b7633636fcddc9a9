"""Tiny cross-encoder: ``BertForSequenceClassification`` with two layers and one label."""

from pathlib import Path

from omnibus_models.tiny import _wordpiece


def write(directory: Path, seed: int, llm_seed: int | None = None) -> None:
    """Write model and tokenizer to ``directory``. There is no LLM for ``llm_seed``."""
    from transformers import BertForSequenceClassification

    _wordpiece.write(BertForSequenceClassification, directory, seed, num_labels=1)
