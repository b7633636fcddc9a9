#!/usr/bin/env bash
# transformers 5.19.0 (torch 2.13.0, CPU), Llama and gpt-oss with small random weights.
# One would guess: a boolean attention mask of four axes means the same to each attention implementation.
# What happens: "sdpa" takes True as allowed; "eager" adds the mask to the scores, so True adds 1, False adds 0, and every
# position attends to later ones, without an error. Classes without "sdpa", such as gpt-oss, know nothing else.
# Exits with 1 when the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.19.0 numpy
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import torch
from transformers import GptOssConfig, GptOssForCausalLM, LlamaConfig, LlamaForCausalLM

SMALL = {
    "vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "intermediate_size": 64,
}
moe = GptOssConfig(**SMALL, num_local_experts=4, num_experts_per_tok=2, layer_types=["full_attention"] * 2, pad_token_id=0)
ids = torch.randint(3, 128, (1, 9), generator=torch.Generator().manual_seed(0))
allowed = torch.ones(1, 1, 9, 9, dtype=torch.bool).tril()
added = torch.zeros(1, 1, 9, 9).masked_fill(~allowed, torch.finfo(torch.float32).min)
apart = {}
for name, cls, config, kernel in (
    ("Llama, sdpa", LlamaForCausalLM, LlamaConfig(**SMALL), "sdpa"),
    ("Llama, eager", LlamaForCausalLM, LlamaConfig(**SMALL), "eager"),
    ("gpt-oss, eager (it has no sdpa)", GptOssForCausalLM, moe, "eager"),
):
    torch.manual_seed(0)
    config._attn_implementation = kernel
    model = cls(config).eval()
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() >= 2:
                weights.copy_(torch.randn(weights.shape) * weights[0].numel() ** -0.5)
        plain, by_bool, by_added = (model(ids, attention_mask=mask).logits for mask in (None, allowed, added))
    apart[name] = [float((plain - each).abs().max()) for each in (by_bool, by_added)]
    print(f"{name:32} causal mask as bool: {apart[name][0]:.1e} off, as numbers to add: {apart[name][1]:.1e}")
sdpa, *eager = apart.values()
wrong = [by_bool > 1e-2 and by_added < 1e-4 for by_bool, by_added in eager]
sys.exit(0 if sdpa[0] < 1e-4 and all(wrong) else 1)
PYTHON
