#!/usr/bin/env bash
# transformers 5.19.0 (torch 2.13.0, CPU), Mamba, Falcon-Mamba and Jamba with small random weights.
# One would guess: a prompt passed in two parts, the second with the cache of the first, gives the logits of one pass.
# What happens: the scan of the second part starts from an empty state, so the logits differ, by a fifth to a half of the
# largest in Jamba and Falcon-Mamba, without a warning. Mamba-2 and Falcon-H1, which have the same cache, are equal.
# `generate` passes a prompt whole, so it never shows; chunked prefill and continued conversations do.
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
    FalconH1Config, FalconH1ForCausalLM, FalconMambaConfig, FalconMambaForCausalLM, JambaConfig, JambaForCausalLM,
    Mamba2Config, Mamba2ForCausalLM, MambaConfig, MambaForCausalLM,
)

torch.set_num_threads(1)
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64}
MODELS = {
    "Mamba": (MambaForCausalLM, MambaConfig(**SMALL), True),
    "FalconMamba": (FalconMambaForCausalLM, FalconMambaConfig(**SMALL), True),
    "Jamba": (
        JambaForCausalLM,
        JambaConfig(**SMALL, **HEADS, attn_layer_period=2, attn_layer_offset=1, num_experts=2, use_mamba_kernels=False),
        True,
    ),
    "Mamba2": (Mamba2ForCausalLM, Mamba2Config(**SMALL, num_heads=8, head_dim=16, n_groups=1, state_size=16), False),
    "FalconH1": (
        FalconH1ForCausalLM,
        FalconH1Config(**SMALL, **HEADS, mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16, mamba_n_groups=1, mamba_d_state=16),
        False,
    ),
}
changed = []
for name, (cls, config, differs) in MODELS.items():
    torch.manual_seed(0)
    model = cls(config).eval()
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() == 2:
                weights.copy_(torch.randn(weights.shape) * weights[0].numel() ** -0.5)
    ids = torch.randint(3, 128, (1, 12))
    cache_name = "cache_params" if "Mamba" in name else "past_key_values"
    with torch.no_grad():
        whole = model(ids, use_cache=True).logits[:, -1]
        first = model(ids[:, :7], use_cache=True)
        second = model(ids[:, 7:], use_cache=True, **{cache_name: getattr(first, cache_name)})
    apart = float((whole - second.logits[:, -1]).abs().max() / whole.abs().max())
    print(f"{name:12} last logits of a prompt in one pass and in two differ by {apart:.1e} of the largest")
    if (apart > 1e-2) != differs:
        changed.append(name)
sys.exit(f"the behaviour of {changed} has changed" if changed else 0)
PYTHON
