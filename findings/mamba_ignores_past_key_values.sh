#!/usr/bin/env bash
# transformers 5.24.0 (torch 2.13.0, CPU), Mamba and Llama with small random weights.
# One would guess: `past_key_values`, the name of the cache in every release so far, is taken with a warning or rejected,
# now that the argument is called `cache`; models of one library treat it alike.
# What happens: Llama takes it. Mamba swallows it among its keyword arguments without a warning, starts from an empty state,
# and gives the logits of a prompt of one token. Only `cache` and the older `cache_params` reach it.
# Exits with 1 when the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.24.0 numpy
"$folder/venv/bin/python" - <<'PYTHON'
import copy
import sys
import warnings

import torch
from transformers import LlamaConfig, LlamaForCausalLM, MambaConfig, MambaForCausalLM

warnings.simplefilter("ignore")
torch.set_num_threads(1)
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
MODELS = {
    "Llama": (LlamaForCausalLM, LlamaConfig(**SMALL, num_attention_heads=4, intermediate_size=64)),
    "Mamba": (MambaForCausalLM, MambaConfig(**SMALL)),
}
apart = {}
for name, (cls, config) in MODELS.items():
    torch.manual_seed(0)
    model = cls(config).eval()
    ids = torch.randint(3, 128, (1, 12))
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() == 2:
                weights.copy_(torch.randn(weights.shape) * weights[0].numel() ** -0.5)
        whole = model(ids).logits[:, -1]
        begun = model(ids[:, :11], use_cache=True)
        kept = next(value for key, value in begun.items() if "cache" in key or "past" in key)
        for argument in ("cache", "past_key_values"):
            step = model(ids[:, 11:], use_cache=True, **{argument: copy.deepcopy(kept)}).logits[:, -1]
            apart[name, argument] = float((step - whole).abs().max() / whole.abs().max())
            print(f"{name}, {argument:15}: a step differs by {apart[name, argument]:.1e} of the largest logit")
expected = {key: key == ("Mamba", "past_key_values") for key in apart}
sys.exit(0 if {key: value > 1e-2 for key, value in apart.items()} == expected else "the behaviour has changed")
PYTHON
