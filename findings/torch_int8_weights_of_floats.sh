#!/usr/bin/env bash
# torch 2.13.0 (CPU, x86 with VNNI), one thread, layers that do not fit into the cache.
# One would guess: a decode step reads weights, so weights in int8 (`_weight_int8pack_mm`) are faster than float32.
# What happens: with float32 activations the kernel is slower, for eight rows several times. Only the product of
# integers (`_int_mm`), with activations that are rounded as well, is faster than float32.
# Seen: 1.6 to 2.0 (one row) and 4.2 to 6.2 times (eight rows) the time of float32 weights; 0.4 of it with integers alone.
# Exits with 1 when the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy
"$folder/venv/bin/python" - <<'PYTHON'
import sys
import time

import torch

torch.set_num_threads(1)
weights = [torch.randn(1536, 576) for _ in range(40)]
scales = [weight.abs().amax(1) / 127 for weight in weights]
integers = [(weight / scale[:, None]).round().to(torch.int8) for weight, scale in zip(weights, scales)]


def products(rows: torch.Tensor) -> dict[str, float]:
    rounded = (rows * 30).round().clamp(-127, 127).to(torch.int8)
    kinds = {
        "float32": lambda: [torch.nn.functional.linear(rows, weight) for weight in weights],
        "int8 weights": lambda: [torch.ops.aten._weight_int8pack_mm(rows, *pair) for pair in zip(integers, scales)],
        "integers": lambda: [torch._int_mm(rounded, weight.t()) for weight in integers],
    }
    best = dict.fromkeys(kinds, float("inf"))
    for _ in range(15):
        for name, call in kinds.items():
            begin = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - begin)
    return {name: seconds / best["float32"] for name, seconds in best.items()}


exact = torch.nn.functional.linear(weights[0][:8], weights[0])
given = torch.ops.aten._weight_int8pack_mm(weights[0][:8], integers[0], scales[0])
print(f"both kinds of weights give the same product within {float((given - exact).abs().max() / exact.abs().max()):.1e}")
for count in (1, 8):
    ratios = products(torch.randn(count, 576))
    print(f"{count} rows, time over that of float32 weights:", {name: round(ratio, 2) for name, ratio in ratios.items()})
sys.exit(0 if ratios["int8 weights"] > 1.5 and ratios["integers"] < 0.8 else 1)
PYTHON
