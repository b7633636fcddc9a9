#!/usr/bin/env bash
# torch 2.13.0 (CPU), tensors on the `meta` device, which have shapes and no memory: the cheap way to build the skeleton of a model.
# One would guess: a conversion of such a tensor costs what it costs on a CPU, next to nothing.
# What happens: `torch.arange(4, device="meta").float()` runs a reference in Python, and imports sympy and hundreds of modules: a
# second and tens of MiB that stay in the process. The same on a CPU imports none of them. Rotary positions of language models
# do such a conversion, so a skeleton on `meta` costs more than it saves for small models.
# Remedy: build small skeletons on the CPU without initializing weights.
# Exits with 1 when the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy
measure() {
    "$folder/venv/bin/python" - "$1" <<'PYTHON'
import resource
import sys
import time

import torch

device = sys.argv[1]
before, memory, began = len(sys.modules), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
torch.arange(4, device=device).float()
spent, grown = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
print(f"{device}: {len(sys.modules) - before} modules, {spent:.2f} s, {grown / 1024:.0f} MiB, sympy: {'sympy' in sys.modules}")
sys.exit(0 if ("sympy" in sys.modules) == (device == "meta") else 1)
PYTHON
}
measure cpu
measure meta
