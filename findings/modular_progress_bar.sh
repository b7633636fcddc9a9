#!/usr/bin/env bash
# diffusers 0.42.1 (torch 2.13.0, CPU), modular Flux pipeline with small random weights.
# One would guess: `set_progress_bar_config(disable=True)` of a pipeline silences its bar, as in other pipelines, and so
# does the same call on the blocks below `pipe.blocks`.
# What happens: only direct blocks of the pipeline are told, and the loop of steps lies deeper. `pipe.blocks` is a deep
# copy at each access, so changes of it are lost. Both calls succeed, and the bar is drawn.
# Remedy: change the blocks before `init_pipeline`.
# Exits with 1 when the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.19.0 diffusers==0.42.1 numpy
"$folder/venv/bin/python" - <<'PYTHON'
import io
import logging
import sys
from contextlib import redirect_stderr

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxTransformer2DModel
from diffusers.modular_pipelines import FluxAutoBlocks

logging.disable(logging.WARNING)
torch.set_num_threads(1)
torch.manual_seed(0)
blocks = FluxAutoBlocks()
for name in ("text_encoder", "decode"):
    del blocks.sub_blocks[name]
components = {
    "transformer": FluxTransformer2DModel(
        in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=(4, 4, 8), guidance_embeds=True,
    ).eval(),
    "scheduler": FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
}
pipe = blocks.init_pipeline()
pipe.update_components(**components)
inputs = {"prompt_embeds": torch.randn(1, 6, 32), "pooled_prompt_embeds": torch.randn(1, 32), "height": 64, "width": 64}


def draws_bar():
    """Return whether a call of three steps writes a full bar."""
    with redirect_stderr(io.StringIO()) as written:
        pipe(**inputs, num_inference_steps=3, output="latents")
    return "3/3" in written.getvalue()


def disable_all(block):
    """Disable the bars of all blocks below one."""
    for each in block.sub_blocks.values():
        disable_all(each)
        if hasattr(each, "set_progress_bar_config"):
            each.set_progress_bar_config(disable=True)


seen = [draws_bar()]
print(f"bar of the steps: {seen[0]}")
pipe.set_progress_bar_config(disable=True)
seen.append(draws_bar())
print(f"after pipe.set_progress_bar_config(disable=True): {seen[1]}")
disable_all(pipe.blocks)
seen.append(draws_bar())
print(f"after set_progress_bar_config(disable=True) of every block below pipe.blocks: {seen[2]}")
disable_all(blocks)
pipe = blocks.init_pipeline()
pipe.update_components(**components)
seen.append(draws_bar())
print(f"of a new pipeline made of blocks changed before `init_pipeline`: {seen[3]}")
sys.exit(0 if seen == [True, True, True, False] else 1)
PYTHON
