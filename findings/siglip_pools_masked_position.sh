#!/usr/bin/env bash
# transformers 5.19.0 (torch 2.13.0, CPU), text towers of SigLIP and SigLIP 2 beside CLIP's, with small random weights.
# One would guess: with an attention mask, padding does not change the vector of a text.
# What happens: SigLIP and SigLIP 2 pool the last position even if the mask hides it, so `padding=True` gives a text another
# vector for each length of its longest neighbour. CLIP's stays.
# Remedy: `padding="max_length"` for every text, as in training.
# Exits with 1 when the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.19.0 numpy
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import torch
from transformers import CLIPConfig, CLIPModel, Siglip2Config, Siglip2Model, SiglipConfig, SiglipModel

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXT = {**SMALL, "vocab_size": 100, "max_position_embeddings": 16, "pad_token_id": 1, "bos_token_id": 98, "eos_token_id": 99}
ids = torch.tensor([[98, 5, 9, 7, 99]])
apart = {}
for cls, config in ((CLIPModel, CLIPConfig), (SiglipModel, SiglipConfig), (Siglip2Model, Siglip2Config)):
    torch.manual_seed(0)
    model = cls(config(text_config=TEXT, vision_config=SMALL)).eval()
    with torch.no_grad():
        alone = model.get_text_features(ids, attention_mask=torch.ones_like(ids)).pooler_output
        for count in (1, 4):
            padded = torch.cat([ids, torch.ones(1, count, dtype=torch.long)], dim=1)
            mask = (torch.arange(5 + count) < 5)[None].long()
            beside = model.get_text_features(padded, attention_mask=mask).pooler_output
            apart[cls.__name__, count] = 1 - float(torch.cosine_similarity(alone, beside))
            print(f"{cls.__name__:12} {count} masked positions after a text: cosine distance {apart[cls.__name__, count]:.1e} from alone")
moved = {name for (name, _), distance in apart.items() if distance > 1e-3}
sys.exit(0 if moved == {"SiglipModel", "Siglip2Model"} else 1)
PYTHON
