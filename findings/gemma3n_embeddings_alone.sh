#!/usr/bin/env bash
# transformers 5.19.0 (torch 2.13.0, CPU), Gemma3nForCausalLM with small random weights.
# One would guess: `inputs_embeds` of the same tokens give the logits of `input_ids`, or an error asks for what is missing.
# What happens: the embeddings that each layer has of its own are left out, without a warning, and the logits are wrong.
# With `per_layer_inputs`, looked up in `embed_tokens_per_layer`, they are equal.
# Exits with 1 when the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.19.0 numpy
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import torch
from transformers import Gemma3nForCausalLM, Gemma3nTextConfig

torch.manual_seed(0)
config = Gemma3nTextConfig(
    vocab_size=128, vocab_size_per_layer_input=128, hidden_size=64, hidden_size_per_layer_input=16, intermediate_size=[64] * 4,
    num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_kv_shared_layers=2,
    layer_types=["sliding_attention", "full_attention"] * 2, activation_sparsity_pattern=[0.0] * 4, laurel_rank=8,
    pad_token_id=0, bos_token_id=1, eos_token_id=2,
)
model = Gemma3nForCausalLM(config).eval()
with torch.no_grad():
    for weights in model.parameters():
        weights.copy_(torch.randn(weights.shape) * (weights[0].numel() ** -0.5 if weights.dim() > 1 else 0.1))
    ids = torch.randint(3, 128, (1, 9))
    by_ids = model(ids).logits
    by_embeddings = model(inputs_embeds=model.get_input_embeddings()(ids)).logits
    rows = model.model.embed_tokens_per_layer(ids).unflatten(-1, (4, 16))
    with_rows = model(inputs_embeds=model.get_input_embeddings()(ids), per_layer_inputs=rows).logits
scale = float(by_ids.abs().max())
alone, complete = (float((by_ids - each).abs().max()) / scale for each in (by_embeddings, with_rows))
print(f"inputs_embeds of the same tokens: logits differ by {alone:.1e} of the largest, without a warning")
print(f"with per_layer_inputs as well: {complete:.1e}")
sys.exit(0 if alone > 1e-2 and complete < 1e-5 else 1)
PYTHON
