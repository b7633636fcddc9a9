"""Tiny VITS: letters, three voices, noise in durations and samples."""

import json
from pathlib import Path

import torch

from omnibus_models import torchvision_cpu
from omnibus_models.tiny import _weights

torchvision_cpu.install_operators()

VOICES, RATE = 3, 16_000
_MARKS = {"pad_token": "_", "unk_token": " "}
_LETTERS = " abcdefghijklmnopqrstuvwxyz'-"
#: Factor of the weights of the text encoder and of durations, so that lengths follow from words more than from noise.
_GAIN = 0.5


def write(directory: Path, seed: int, llm_seed: int | None = None) -> None:
    """Write model and tokenizer to ``directory``. There is no LLM for an ``llm_seed``."""
    from transformers import VitsConfig, VitsModel, VitsTokenizer

    config = VitsConfig(
        vocab_size=len(_LETTERS) + 1, pad_token_id=0, sampling_rate=RATE,
        hidden_size=32, flow_size=32, spectrogram_bins=33, num_hidden_layers=2, num_attention_heads=2, ffn_dim=64,
        num_speakers=VOICES, speaker_embedding_size=16, upsample_initial_channel=32,
        resblock_kernel_sizes=[3, 5], resblock_dilation_sizes=[[1, 3], [1, 3]],
        duration_predictor_filter_channels=32, duration_predictor_num_flows=2, depth_separable_num_layers=2,
        prior_encoder_num_flows=2, prior_encoder_num_wavenet_layers=2, posterior_encoder_num_wavenet_layers=1,
    )  # fmt: skip
    model = VitsModel(config).eval()
    _weights.redraw_weights(model, seed)
    with torch.no_grad():
        for part in (model.text_encoder, model.duration_predictor):
            for weights in part.parameters():
                weights.mul_(_GAIN)
    model.save_pretrained(directory)
    vocabulary = directory / "letters.json"
    vocabulary.write_text(json.dumps({letter: index for index, letter in enumerate(["_", *_LETTERS])}))
    VitsTokenizer(vocabulary, phonemize=False, **_MARKS).save_pretrained(directory)
    vocabulary.unlink()
