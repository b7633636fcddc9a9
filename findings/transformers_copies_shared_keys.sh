#!/usr/bin/env bash
# transformers copies the keys and values of the whole cache for every query head once a mask is given, also on CPUs,
# whose kernel reads shared heads in place with bitwise equal results.
#
# Versions: transformers 5.19.0, torch 2.13.0 (CPU).
# Expected: "sdpa" attention with grouped query heads passes `enable_gqa=True` wherever torch's kernel supports it.
# Happens: with a mask, which every batch of different lengths needs, `use_gqa_in_sdpa` is False on a CPU and
#   `repeat_kv` copies all keys and values in every layer of every step. For 16 sequences of 2,000 positions the
#   copies take more time than the attention.
# Exits with 1 when the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 transformers==5.19.0 numpy
"$folder/venv/bin/python" - <<'PYTHON'
import sys
import time

import torch
import torch.nn.functional as F
from transformers.integrations.sdpa_attention import repeat_kv, use_gqa_in_sdpa

torch.set_num_threads(1)
torch.manual_seed(0)
rows, heads, shared, positions, width = 16, 4, 2, 2000, 16
query = torch.randn(rows, heads, 1, width)
key, value = torch.randn(2, rows, shared, positions + 96, width)[..., :positions, :]  # a view, as of a cache
mask = torch.rand(rows, 1, 1, positions) > 0.1


def copied():
    repeats = heads // shared
    return F.scaled_dot_product_attention(query, repeat_kv(key, repeats), repeat_kv(value, repeats), attn_mask=mask)


def in_place():
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)


def fastest_ms(run):
    times = []
    for _ in range(30):
        began = time.perf_counter()
        run()
        times.append(1000 * (time.perf_counter() - began))
    return min(times)


avoided = use_gqa_in_sdpa(mask, key, value)
equal = torch.equal(copied(), in_place())
slow, fast = fastest_ms(copied), fastest_ms(in_place)
print(f"transformers uses enable_gqa with a mask on a CPU: {avoided}")
print(f"results are bitwise equal: {equal}")
print(f"with copies {slow:.2f} ms, in place {fast:.2f} ms: {slow / fast:.1f} times as long")
sys.exit(0 if equal and not avoided and slow > 1.3 * fast else 1)
PYTHON
