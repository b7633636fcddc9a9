"""A WordPiece tokenizer as BERT's, trained offline."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from omnibus_models import torchvision_cpu
from omnibus_models.tiny import _chat_tokenizer, _weights

# The library imports torchvision with its models if it is installed.
torchvision_cpu.install_operators()

VOCABULARY, CONTEXT = 400, 128
_MARKS = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}


def train_tokenizer() -> PreTrainedTokenizerFast:
    """Train the tokenizer. It marks a text as ``[CLS] text [SEP]`` and gives the second one of a pair its own type."""
    pieces = Tokenizer(models.WordPiece(unk_token=_MARKS["unk_token"]))
    pieces.normalizer = normalizers.BertNormalizer(lowercase=True)
    pieces.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=VOCABULARY, special_tokens=[*_MARKS.values()], show_progress=False)
    pieces.train_from_iterator(_chat_tokenizer.TEXTS, trainer)
    pieces.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(mark, pieces.token_to_id(mark)) for mark in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=pieces,
        model_max_length=CONTEXT,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **_MARKS,
    )


def write(model: Any, directory: Path, seed: int, **more: Any) -> None:
    """Write a BERT of class ``model`` and its tokenizer to ``directory``; its configuration takes ``more``."""
    from transformers import BertConfig

    tokenizer = train_tokenizer()
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=CONTEXT,
        pad_token_id=tokenizer.pad_token_id,
        **more,
    )
    instance = model(config).eval()
    _weights.redraw_weights(instance, seed)
    instance.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
