#!/usr/bin/env bash
# diffusers 0.42.1 (transformers 5.19.0, torch 2.13.0, CPU), modular LTX pipeline with small random weights.
# One would guess: a guider that ends halfway works at every call, and one that is off needs no negative prompt.
# What happens: the text encoder asks the guider whether the current step is guided. After a call, its state is still
# that of the last step, so the second call encodes no negative prompt, which denoising requires: it raises. With a
# guider that is disabled every call raises.
# Remedy: `guider.set_state(step=0, ...)` before each call, as below, or a new guider for each.
# Exits with 1 when the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.19.0 diffusers==0.42.1 numpy
"$folder/venv/bin/python" - <<'PYTHON'
import logging
import sys

import torch
from diffusers import ClassifierFreeGuidance, FlowMatchEulerDiscreteScheduler, LTXVideoTransformer3DModel
from diffusers.modular_pipelines.ltx import LTXBlocks
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, T5Config, T5EncoderModel

logging.disable(logging.ERROR)
torch.set_num_threads(1)


def make_pipe(guider):
    """Return a tiny pipeline of random weights from a prompt to latents."""
    torch.manual_seed(0)
    vocabulary = {"<pad>": 0, "</s>": 1, "<unk>": 2, "a": 3, "red": 4, "fox": 5}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    config = T5Config(vocab_size=6, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4)
    blocks = LTXBlocks()
    del blocks.sub_blocks["decode"]
    pipe = blocks.init_pipeline()
    pipe.update_components(
        text_encoder=T5EncoderModel(config).eval(),
        tokenizer=PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="</s>"),
        transformer=LTXVideoTransformer3DModel(
            in_channels=8, out_channels=8, num_attention_heads=4, attention_head_dim=8, cross_attention_dim=32,
            num_layers=1, caption_channels=32,
        ).eval(),
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        guider=guider,
    )
    return pipe


def call(pipe):
    """Return what one call with fixed noise gives: the shape of its latents, or its error."""
    noise = torch.Generator().manual_seed(1)
    size = {"height": 64, "width": 64, "num_frames": 9, "num_inference_steps": 4}
    try:
        return f"latents {tuple(pipe(prompt='a red fox', **size, output='latents', generator=noise).shape)}"
    except ValueError as error:
        return f"ValueError: {error}"


seen = {}
for name, guider in {
    "guidance at all steps": ClassifierFreeGuidance(guidance_scale=3.0),
    "guidance from half of the steps on": ClassifierFreeGuidance(guidance_scale=3.0, start=0.5),
    "guidance up to half of the steps": ClassifierFreeGuidance(guidance_scale=3.0, stop=0.5),
    "guidance disabled": ClassifierFreeGuidance(guidance_scale=3.0, enabled=False),
}.items():
    pipe = make_pipe(guider)
    seen[name] = [call(pipe), call(pipe)]
    if "up to" in name:
        pipe.guider.set_state(step=0, num_inference_steps=4, timestep=None)
        seen[name].append(call(pipe))
    print(f"{name}:", *(f"call {number}: {each}" for number, each in enumerate(seen[name], 1)), sep="\n    ")
works = {name: [each.startswith("latents") for each in calls] for name, calls in seen.items()}
sys.exit(0 if list(works.values()) == [[True, True], [True, True], [True, False, True], [False, False]] else 1)
PYTHON
