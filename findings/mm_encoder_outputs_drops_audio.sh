#!/usr/bin/env bash
# transformers 5.19.0 (torch 2.13.0, CPU), Gemma 4 and the thinker of Qwen2.5-Omni with small random weights.
# One would guess: `mm_encoder_outputs`, a dictionary by modality, takes what `get_audio_features` returned as "audio",
# since "audio" is one of the model's `input_modalities`; or an error names the unknown key.
# What happens: only "image" and "video" are read. The audio is left out without an error or a warning, and the logits
# are those of a text with placeholders alone.
# Remedy: pass the features themselves.
# Exits with 1 when the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.19.0 numpy
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import torch
from transformers import (
    Gemma4Config, Gemma4ForConditionalGeneration, Qwen2_5OmniThinkerConfig, Qwen2_5OmniThinkerForConditionalGeneration,
)

torch.set_num_threads(1)
TEXT = {
    "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 128, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}
GEMMA_HEADS = {"head_dim": 16, "global_head_dim": 16}
PARTS = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
gemma4 = Gemma4ForConditionalGeneration(
    Gemma4Config(
        text_config={
            **TEXT, **GEMMA_HEADS, "vocab_size_per_layer_input": 128, "hidden_size_per_layer_input": 16,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        vision_config={**PARTS, **GEMMA_HEADS, "intermediate_size": 32, "num_key_value_heads": 2},
        audio_config={**PARTS, "subsampling_conv_channels": [128, 8], "output_proj_dims": 64},
        audio_token_id=3, image_token_id=4, video_token_id=5,
    )
)
ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
omni = Qwen2_5OmniThinkerForConditionalGeneration(
    Qwen2_5OmniThinkerConfig(
        text_config={**TEXT, "rope_parameters": ROPE},
        vision_config={"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64},
        audio_config={
            "num_mel_bins": 128, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 64,
            "d_model": 32, "output_dim": 64,
        },
        audio_token_index=3, image_token_index=4, video_token_index=5, audio_start_token_id=6, audio_end_token_id=7,
        vision_start_token_id=8, vision_end_token_id=9,
    )
)
generator = torch.Generator().manual_seed(0)
frames = torch.randn(1, 40, 128, generator=generator)
MODELS = {
    "Gemma 4": (gemma4, gemma4.model, {"input_features": frames, "input_features_mask": torch.ones(1, 40).bool()}),
    "Qwen2.5-Omni": (omni, omni, {"input_features": frames.mT, "feature_attention_mask": torch.ones(1, 40).long()}),
}
ids = torch.tensor([[1, 10, 11, 6, *[3] * 10, 7, 12, 13]])  # 40 frames are 10 rows in both models
holds = True
for name, (model, encoder, audio) in MODELS.items():
    model.eval()
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() >= 2:
                weights.copy_(torch.randn(weights.shape, generator=generator) * weights[0].numel() ** -0.5)
        rows = encoder.get_audio_features(**audio, return_dict=True)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        heard = model(**inputs, **audio).logits[0, -1]
        encoded = model(**inputs, mm_encoder_outputs={"audio": rows}).logits[0, -1]
        unheard = model(**inputs).logits[0, -1]
    scale = float(heard.abs().max())
    apart, same = (float((encoded - each).abs().max()) / scale for each in (heard, unheard))
    print(f"{name:12} takes {model.input_modalities}; logits with encoded audio differ by {apart:.1e} of the largest from "
          f"those with audio, by {same:.1e} from those without any")
    holds &= apart > 1e-2 and same == 0
sys.exit(0 if holds else 1)
PYTHON
