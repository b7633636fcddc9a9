#!/usr/bin/env bash
# transformers 5.19.0 (torch 2.13.0, CPU), MiniMax-M3-VL beside Qwen2.5-VL with small random weights.
# One would guess: two requests of a batch, each with its own image, have the logits of each alone.
# What happens: the vision tower of MiniMax-M3-VL attends over the patches of all images of a call, without a mask, so
# the logits of a request change with its neighbours' images, without a warning. Qwen2.5-VL is equal to rounding.
# Remedy: encode images one by one with `get_image_features`, and pass all rows as `mm_encoder_outputs`: bitwise equal.
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
    MiniMaxM3SparseForConditionalGeneration, MiniMaxM3VLConfig, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration,
)

torch.set_num_threads(1)
TEXT = {
    "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 128, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}
ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
VISION = {"hidden_size": 32, "intermediate_size": 64, "patch_size": 4}
MODELS = {
    "MiniMax-M3-VL": MiniMaxM3SparseForConditionalGeneration(
        MiniMaxM3VLConfig(
            text_config={
                **TEXT, "head_dim": 16, "rotary_dim": 8, "dense_intermediate_size": 64, "shared_intermediate_size": 64,
                "num_local_experts": 2, "num_experts_per_tok": 1, "mlp_layer_types": ["dense", "dense"],
            },
            vision_config={**VISION, "num_hidden_layers": 2, "num_attention_heads": 2},
            image_token_index=3, video_token_index=4, projector_hidden_size=64,
        )
    ),
    "Qwen2.5-VL": Qwen2_5_VLForConditionalGeneration(
        Qwen2_5_VLConfig(
            text_config={**TEXT, "rope_parameters": ROPE},
            vision_config={**VISION, "depth": 2, "num_heads": 2, "out_hidden_size": 64, "fullatt_block_indexes": [0]},
            image_token_id=3, video_token_id=4, vision_start_token_id=5, vision_end_token_id=6,
        )
    ),
}
ids = torch.tensor([[1, 10, 11, 5, 3, 3, 3, 3, 6, 12, 13]] * 2)  # two requests with the same text and an image each
grid = torch.tensor([[1, 4, 4]] * 2)  # 4 x 4 patches, merged to 4 rows
generator = torch.Generator().manual_seed(0)
first, second, other = torch.randn(3, 16, 3 * 2 * 4 * 4, generator=generator)
apart = {}
for name, model in MODELS.items():
    model.eval()
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() >= 2:
                weights.copy_(torch.randn(weights.shape, generator=generator) * weights[0].numel() ** -0.5)

        def read(rows, *images):
            types = (ids[:rows] == 3).int()
            pixels = torch.cat(images)
            media = {"pixel_values": pixels, "image_grid_thw": grid[:rows], "mm_token_type_ids": types}
            return model(ids[:rows], **media).logits[0, -1]

        alone, beside, beside_other = read(1, first), read(2, first, second), read(2, first, other)
    scale = float(alone.abs().max())
    apart[name] = [float((a - b).abs().max()) / scale for a, b in ((alone, beside), (beside, beside_other))]
    print(f"{name:14} logits of a request alone and beside another: {apart[name][0]:.1e} of the largest apart; "
          f"when the other's image changes: {apart[name][1]:.1e}")
sys.exit(0 if min(apart["MiniMax-M3-VL"]) > 1e-3 and max(apart["Qwen2.5-VL"]) < 1e-5 else 1)
PYTHON
