#!/usr/bin/env bash
# transformers 5.19.0 (torch 2.13.0, CPU), ConvBERT beside BERT with small random weights.
# One would guess: with an attention mask, the rows of a text do not depend on the padding after it.
# What happens: the convolutions of ConvBERT read the padded positions, so the rows of a text change with the length of
# its batch. BERT is equal to rounding.
# Exits with 1 when the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.19.0 numpy
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import torch
from transformers import BertConfig, BertModel, ConvBertConfig, ConvBertModel

SMALL = {"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
ids = torch.randint(5, 128, (1, 6), generator=torch.Generator().manual_seed(0))
padded = torch.cat([ids, torch.zeros(1, 4, dtype=torch.long)], dim=1)
mask = torch.tensor([[1] * 6 + [0] * 4])
apart = {}
for name, cls, config in (("BERT", BertModel, BertConfig(**SMALL)), ("ConvBERT", ConvBertModel, ConvBertConfig(**SMALL, embedding_size=64))):
    torch.manual_seed(0)
    model = cls(config).eval()
    with torch.no_grad():
        alone = model(ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        beside = model(padded, attention_mask=mask).last_hidden_state[:, :6]
    apart[name] = float((alone - beside).abs().max())
    print(f"{name:9} rows of a text alone and padded with a mask differ by {apart[name]:.1e}")
sys.exit(0 if apart["BERT"] < 1e-5 and apart["ConvBERT"] > 1e-3 else 1)
PYTHON
