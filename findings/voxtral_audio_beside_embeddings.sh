#!/usr/bin/env bash
# transformers 5.19.0 (torch 2.13.0, CPU), Voxtral and GLM-ASR beside Qwen2.5-Omni with small random weights.
# One would guess: audio with the `inputs_embeds` of a text gives the logits of audio with its `input_ids`, since
# `get_placeholder_mask` finds placeholders in embeddings as well; or an error asks for ids.
# What happens: Voxtral and GLM-ASR leave the audio out without a warning. Qwen2.5-Omni is equal.
# Remedy: scatter the rows of `get_audio_features` into `inputs_embeds`.
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
    GlmAsrConfig, GlmAsrForConditionalGeneration, Qwen2_5OmniThinkerConfig, Qwen2_5OmniThinkerForConditionalGeneration,
    VoxtralConfig, VoxtralForConditionalGeneration,
)

torch.set_num_threads(1)
TEXT = {
    "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 128, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}
AUDIO = {
    "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
    "intermediate_size": 128, "num_mel_bins": 16, "max_source_positions": 20, "head_dim": 16,
}
ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
OMNI = {
    "num_mel_bins": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 64, "d_model": 32,
    "output_dim": 64,
}
VISION = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64}
MODELS = {
    "Voxtral": VoxtralForConditionalGeneration(VoxtralConfig(text_config=TEXT, audio_config=AUDIO, audio_token_id=3)),
    "GLM-ASR": GlmAsrForConditionalGeneration(GlmAsrConfig(text_config=TEXT, audio_config=AUDIO, audio_token_id=3)),
    "Qwen2.5-Omni": Qwen2_5OmniThinkerForConditionalGeneration(
        Qwen2_5OmniThinkerConfig(
            text_config={**TEXT, "rope_parameters": ROPE}, audio_config=OMNI, vision_config=VISION,
            audio_token_index=3, image_token_index=4, video_token_index=5, audio_start_token_id=6, audio_end_token_id=7,
            vision_start_token_id=8, vision_end_token_id=9,
        )
    ),
}
MASKS = {"GLM-ASR": "input_features_mask", "Qwen2.5-Omni": "feature_attention_mask"}
generator = torch.Generator().manual_seed(0)
frames = torch.randn(1, 16, 40, generator=generator)
apart = {}
for name, model in MODELS.items():
    count = 10 if name == "Qwen2.5-Omni" else 5  # rows of 40 frames
    ids = torch.tensor([[1, 10, 11, *[3] * count, 12, 13]])
    model.eval()
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() >= 2:
                weights.copy_(torch.randn(weights.shape, generator=generator) * weights[0].numel() ** -0.5)
        audio = {"input_features": frames, "attention_mask": torch.ones_like(ids)}
        if name in MASKS:
            audio[MASKS[name]] = torch.ones(1, 40).long()
        embeddings = model.get_input_embeddings()(ids)
        by_ids = model(ids, **audio).logits[0, -1]
        by_embeddings = model(inputs_embeds=embeddings, **audio).logits[0, -1]
        unheard = model(inputs_embeds=embeddings, attention_mask=audio["attention_mask"]).logits[0, -1]
    scale = float(by_ids.abs().max())
    apart[name] = [float((by_embeddings - each).abs().max()) / scale for each in (by_ids, unheard)]
    print(f"{name:12} audio with inputs_embeds: logits differ by {apart[name][0]:.1e} of the largest from those with "
          f"input_ids, by {apart[name][1]:.1e} from those without audio")
expected = {"Voxtral": True, "GLM-ASR": True, "Qwen2.5-Omni": False}
seen = {name: ids > 1e-2 and unheard == 0 for name, (ids, unheard) in apart.items()}
sys.exit(0 if seen == expected and apart["Qwen2.5-Omni"][0] < 1e-5 else 1)
PYTHON
