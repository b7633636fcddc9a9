#!/usr/bin/env bash
# transformers 5.19.0 (torch 2.13.0, CPU), text tower of AIMv2 with small random weights.
# One would guess: with an attention mask, the vector of a text is the same alone and beside a longer text.
# What happens: without padding there is no mask, and the text attends both ways; with padding the mask is causal. So the
# vector of a text alone is not the one in a batch. With eager attention it is causal in both.
# Exits with 1 when the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.19.0 numpy
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import torch
from transformers import Aimv2Config, Aimv2Model

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
torch.manual_seed(0)
text = {**SMALL, "vocab_size": 100, "eos_token_id": 99, "max_position_embeddings": 16}
vision = {**SMALL, "image_size": 28, "patch_size": 14}
model = Aimv2Model(Aimv2Config(text_config=text, vision_config=vision, projection_dim=32)).eval()
ids = torch.tensor([[5, 9, 7, 20, 99]])
padded = torch.cat([ids, torch.zeros(1, 2, dtype=torch.long)], dim=1)
apart = {}
for kernel in ("sdpa", "eager"):
    model.set_attn_implementation(kernel)
    with torch.no_grad():
        alone = model.get_text_features(ids, attention_mask=torch.ones_like(ids)).pooler_output
        beside = model.get_text_features(padded, attention_mask=(padded > 0).long()).pooler_output
    apart[kernel] = float((alone - beside).abs().max() / alone.abs().max())
    print(f"{kernel:6} the vector of a text alone and with two masked positions after it differ by {apart[kernel]:.1e} of it")
sys.exit(0 if apart["sdpa"] > 1e-2 and apart["eager"] < 1e-5 else 1)
PYTHON
