"""Tiny Whisper: windows of two seconds, three languages, timestamps."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from omnibus_models import torchvision_cpu
from omnibus_models.tiny import _chat_tokenizer, _weights

torchvision_cpu.install_operators()

VOCABULARY, WINDOW_SECONDS = 400, 2
LANGUAGES = ("en", "de", "fr")
_RATE, _HOP = 16_000, 160
_END = "<|endoftext|>"
#: Weights of the layers beside those of tokens, and of the end of a text beside those of words. The sign turns its row,
#: which points away from all hidden rows.
_LAYER_GAIN, _STOP_GAIN = 4.0, -0.85


def write(directory: Path, seed: int, llm_seed: int | None = None) -> None:
    """Write model, tokenizer and feature extractor to ``directory``. The decoder counts as the LLM of ``llm_seed``."""
    from transformers import (
        WhisperConfig,
        WhisperFeatureExtractor,
        WhisperForConditionalGeneration,
        WhisperProcessor,
        WhisperTokenizer,
    )

    vocabulary, merges = _train_pieces()
    tokenizer = WhisperTokenizer(vocab=vocabulary, merges=merges)
    marks = ["<|startoftranscript|>", *(f"<|{code}|>" for code in LANGUAGES), "<|translate|>", "<|transcribe|>",
             "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]  # fmt: skip
    tokenizer.add_special_tokens({"additional_special_tokens": marks})
    steps = WINDOW_SECONDS * 50
    tokenizer.add_tokens([f"<|{step * 0.02:.2f}|>" for step in range(steps + 1)])
    ids = {mark: tokenizer.convert_tokens_to_ids(mark) for mark in [_END, *marks]}
    config = WhisperConfig(
        vocab_size=len(tokenizer), num_mel_bins=16, d_model=32,
        encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=64,
        decoder_layers=2, decoder_attention_heads=2, decoder_ffn_dim=64,
        max_source_positions=steps, max_target_positions=64,
        decoder_start_token_id=ids["<|startoftranscript|>"],
        bos_token_id=ids[_END], eos_token_id=ids[_END], pad_token_id=ids[_END],
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).eval()
    _weights.redraw_weights(model, seed)
    if llm_seed is not None:
        _weights.redraw_weights(model.model.decoder, llm_seed)
    _make_readable(model.model.decoder, tokenizer, ids)
    model.save_pretrained(directory)
    generation = {
        "decoder_start_token_id": ids["<|startoftranscript|>"], "eos_token_id": ids[_END], "bos_token_id": ids[_END],
        "pad_token_id": ids[_END], "is_multilingual": True, "max_length": config.max_target_positions,
        "lang_to_id": {f"<|{code}|>": ids[f"<|{code}|>"] for code in LANGUAGES},
        "task_to_id": {task: ids[f"<|{task}|>"] for task in ("translate", "transcribe")},
        "no_timestamps_token_id": ids["<|notimestamps|>"], "prev_sot_token_id": ids["<|startofprev|>"],
        "max_initial_timestamp_index": 20, "alignment_heads": [[0, 1], [1, 0]], "return_timestamps": False,
        "suppress_tokens": [1, 2, ids["<|startoftranscript|>"], *(ids[mark] for mark in marks[4:9])],
        "begin_suppress_tokens": [vocabulary["Ġ"], ids[_END]],
    }  # fmt: skip
    (directory / "generation_config.json").write_text(json.dumps(generation))
    features = WhisperFeatureExtractor(
        feature_size=config.num_mel_bins, sampling_rate=_RATE, hop_length=_HOP, chunk_length=WINDOW_SECONDS
    )
    WhisperProcessor(features, tokenizer).save_pretrained(directory)


@torch.no_grad()
def _make_readable(decoder: Any, tokenizer: Any, ids: Mapping[str, int]) -> None:
    """Let words depend on the audio, and texts end.

    See ``_weights.speak_words``.
    """
    for layer in decoder.layers:
        for part in (layer.encoder_attn.out_proj, layer.self_attn.out_proj, layer.fc2):
            part.weight.mul_(_LAYER_GAIN)
    decoder.embed_positions.weight.mul_(_LAYER_GAIN)
    table = decoder.embed_tokens.weight
    marks = table[min(ids.values()) :].clone()
    _weights.speak_words(table, tokenizer, _STOP_GAIN)
    table[min(ids.values()) + 1 :] = marks[1:]


def _train_pieces() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Train byte-level pieces; returns their ids, with the end of texts last, and the merges."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    bpe.train_from_iterator(_chat_tokenizer.TEXTS, trainer)
    content = json.loads(bpe.to_str())["model"]
    return {**content["vocab"], _END: len(content["vocab"])}, [tuple(pair) for pair in content["merges"]]
