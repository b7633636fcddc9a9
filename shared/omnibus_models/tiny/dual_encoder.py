"""Tiny CLIP: two towers with two layers each, images of 32 pixels, texts of at most 32 tokens."""

import json
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from omnibus_models import torchvision_cpu
from omnibus_models.tiny import _chat_tokenizer, _weights

torchvision_cpu.install_operators()

VOCABULARY, CONTEXT, IMAGE_PIXELS = 700, 32, 32
_WORD_END = "</w>"
_MARKS = ("<|startoftext|>", "<|endoftext|>")


def write(directory: Path, seed: int, llm_seed: int | None = None) -> None:
    """Write model, tokenizer and image processor to ``directory``. There is no LLM for ``llm_seed``."""
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor, CLIPTokenizer

    vocabulary, merges = _train_pieces()
    tokenizer = CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=CONTEXT)
    tower = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "projection_dim": 48}
    text = {**tower, "hidden_size": 32, "vocab_size": len(tokenizer), "max_position_embeddings": CONTEXT}
    marks = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": 1}
    vision = {**tower, "hidden_size": 64, "image_size": IMAGE_PIXELS, "patch_size": 8}
    model = CLIPModel(CLIPConfig(text_config={**text, **marks}, vision_config=vision, projection_dim=48)).eval()
    _weights.redraw_weights(model, seed)
    model.save_pretrained(directory)
    side = {"height": IMAGE_PIXELS, "width": IMAGE_PIXELS}
    images = CLIPImageProcessor(size={"shortest_edge": IMAGE_PIXELS}, crop_size=side)
    CLIPProcessor(images, tokenizer).save_pretrained(directory)


def _train_pieces() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Train byte-level pieces with a mark at ends of words; returns ids and merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe = Tokenizer(models.BPE(end_of_word_suffix=_WORD_END))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, initial_alphabet=alphabet, end_of_word_suffix=_WORD_END, show_progress=False
    )
    bpe.train_from_iterator((word for text in _chat_tokenizer.TEXTS for word in text.split()), trainer)
    merges = [(one, other) for one, other in json.loads(bpe.to_str())["model"]["merges"]]
    pieces = [*alphabet, *(f"{letter}{_WORD_END}" for letter in alphabet), *(f"{a}{b}" for a, b in merges), *_MARKS]
    return {piece: id for id, piece in enumerate(dict.fromkeys(pieces))}, merges
