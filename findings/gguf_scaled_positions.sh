#!/usr/bin/env bash
# transformers 5.19.0 (torch 2.13.0, CPU) and gguf 0.19.0: a small Llama in a GGUF file whose header scales positions by 4.
# One would guess: `from_pretrained(gguf_file=)` reads `rope.scaling.*`, as it reads the other fields of the header.
# What happens: the fields are ignored without a warning. Positions are those of an unscaled model, and so are the logits.
# Remedy: set `config.rope_parameters` from the header, or refuse files with `rope.scaling` and `rope_freqs.weight`.
# Exits with 1 when the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.19.0 gguf==0.19.0 accelerate numpy
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import copy
import sys

import gguf
import numpy as np
import torch
from transformers import AutoModelForCausalLM

WIDTH, HEADS, INNER, WORDS = 32, 4, 64, 32
SHAPES = {
    "token_embd": (WORDS, WIDTH), "output": (WORDS, WIDTH), "output_norm": (WIDTH,),
    "blk.0.attn_norm": (WIDTH,), "blk.0.ffn_norm": (WIDTH,), "blk.0.ffn_down": (WIDTH, INNER),
    **{f"blk.0.attn_{name}": (WIDTH, WIDTH) for name in ("q", "k", "v", "output")},
    **{f"blk.0.ffn_{name}": (INNER, WIDTH) for name in ("gate", "up")},
}
writer, random = gguf.GGUFWriter("small.gguf", "llama"), np.random.default_rng(0)
writer.add_context_length(256)
writer.add_embedding_length(WIDTH)
writer.add_block_count(1)
writer.add_feed_forward_length(INNER)
writer.add_head_count(HEADS)
writer.add_head_count_kv(HEADS)
writer.add_layer_norm_rms_eps(1e-6)
writer.add_rope_freq_base(10000.0)
writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
writer.add_rope_scaling_factor(4.0)
writer.add_vocab_size(WORDS)
writer.add_tokenizer_model("gpt2")
writer.add_token_list([f"t{number}" for number in range(WORDS)])
for name, shape in SHAPES.items():
    writer.add_tensor(f"{name}.weight", random.normal(size=shape).astype(np.float32))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()

loaded = AutoModelForCausalLM.from_pretrained(".", gguf_file="small.gguf", dtype=torch.float32).eval()
print("positions of the loaded model:", loaded.config.rope_parameters)


def compute_logits(**scaling):
    config = copy.deepcopy(loaded.config)
    config.rope_parameters = {"rope_theta": 10000.0, **scaling}
    model = type(loaded)(config).eval()
    model.load_state_dict(loaded.state_dict())
    with torch.no_grad():
        return model(torch.arange(16)[None]).logits


with torch.no_grad():
    logits = loaded(torch.arange(16)[None]).logits
plain = float((logits - compute_logits(rope_type="default")).abs().max())
scaled = float((logits - compute_logits(rope_type="linear", factor=4.0)).abs().max())
print(f"largest difference of its logits: {plain:.1e} from an unscaled model, {scaled:.1e} from one that is scaled as the header says")
sys.exit(0 if plain < 1e-5 and scaled > 1e-2 else 1)
PYTHON
