#!/usr/bin/env bash
# transformers 5.19: text after a video of Qwen2-VL and Qwen2.5-VL begins inside the video's positions.
#
# Versions: transformers 5.19.0, torch 2.13.0, torchvision 0.28.0 (CPU).
# Expected: text begins at the largest position of the video plus one, as the paper says (Qwen2-VL, arXiv:2409.12191,
#   section 2.1) and as transformers 4.57 counted.
# Happens: `get_rope_index` moves on by max(height, width) of the grid alone. After 30 s of video at 2 frames per second
#   text shares positions with the frames, and every generated token is far behind the prompt.
# Exits with 1 when the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q transformers==5.19.0 torch==2.13.0 pillow==13.0.0
"$folder/venv/bin/python" - <<'PYTHON'
import sys
from types import MethodType, SimpleNamespace

import torch
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel as Model

counter = SimpleNamespace(config=Qwen2_5_VLConfig())
counter.get_vision_position_ids = MethodType(Model.get_vision_position_ids, counter)
frames, grid = 30, [[30, 8, 8]]  # 30 s: pairs of frames, 4 x 4 rows each
kinds = torch.tensor([[0] * 5 + [2] * (frames * 16) + [0] * 5])
positions, delta = Model.get_rope_index(
    counter, kinds, kinds, video_grid_thw=torch.tensor(grid), second_per_grid_ts=torch.tensor([1.0])
)
video, text = positions[0, 0, 5:-5], positions[0, 0, -5:]
print("positions of the video in time:", int(video.min()), "to", int(video.max()))
print("positions of the text after it:", text.tolist())
print("expected:", [int(video.max()) + 1 + number for number in range(5)])
sys.exit(0 if int(text[0]) <= int(video.max()) else 1)
PYTHON
