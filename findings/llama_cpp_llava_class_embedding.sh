#!/usr/bin/env bash
# xllamacpp 2026.10.11549 (llama.cpp's libmtmd, CPU), transformers 5.19.0 (torch 2.13.0, CPU) and gguf 0.19.0: the encoder of
# images of LLaVA 1.5, small and random, in a projector file (mmproj, type `mlp`) and in `CLIPVisionModel`.
# One would guess: both put the class embedding before the patches and run all layers of the file, which lacks the unused
# last layer of the model, as files of llama.cpp's converter do. Rows would then differ by rounding.
# What happens: llama.cpp puts the class embedding after the patches but gives positions to both in that order, so that each
# patch has the position of its neighbour. It then drops the first row, a patch, and keeps that of the class embedding. It also
# leaves out one more layer. Rows differ by as much as the values are; the same steps in torch give llama.cpp's rows.
# Remedy: compute LLaVA's rows with transformers from the tensors of the file.
# Exits with 1 when the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
  torch==2.13.0 transformers==5.19.0 gguf==0.19.0 xllamacpp==2026.10.11549 numpy
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import ctypes
import sys
from ctypes import POINTER, byref, c_bool, c_char_p, c_float, c_int32, c_size_t, c_uint8, c_uint32, c_void_p
from importlib import util
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import CLIPVisionConfig, CLIPVisionModel

WIDTH, HEADS, INNER, LAYERS, SIDE, PATCH, WORDS = 64, 4, 128, 3, 56, 14, 300
CLIP_NAMES = {
    "embeddings.class_embedding": "v.class_embd", "embeddings.patch_embedding": "v.patch_embd",
    "embeddings.position_embedding": "v.position_embd", "pre_layrnorm": "v.pre_ln", "encoder.layers.": "v.blk.",
    "self_attn.out_proj": "attn_out", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "layer_norm1": "ln1", "layer_norm2": "ln2", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
}  # fmt: skip
torch.manual_seed(0)
random = np.random.default_rng(0)
encoder = CLIPVisionModel(CLIPVisionConfig(
    hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=LAYERS, num_attention_heads=HEADS, image_size=SIDE,
    patch_size=PATCH, hidden_act="quick_gelu",
)).eval()  # fmt: skip
for weights in encoder.parameters():
    torch.nn.init.normal_(weights, std=0.2)
projection = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.Linear(WIDTH, WIDTH))


def write_file(name, architecture, add_fields, tensors):
    writer = gguf.GGUFWriter(name, architecture)
    add_fields(writer)
    for tensor, values in tensors.items():
        writer.add_tensor(tensor, np.ascontiguousarray(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_language_fields(writer):
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(WORDS)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *(f"w{n}" for n in range(41))])
    writer.add_token_scores([0.0] * WORDS)
    writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * 41])


def add_projector_fields(writer):
    writer.add_type("mmproj")
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type("mlp")
    writer.add_vision_image_size(SIDE)
    writer.add_vision_patch_size(PATCH)
    writer.add_vision_embedding_length(WIDTH)
    writer.add_vision_feed_forward_length(INNER)
    writer.add_vision_projection_dim(WIDTH)
    writer.add_vision_block_count(LAYERS)
    writer.add_vision_head_count(HEADS)
    writer.add_vision_attention_layernorm_eps(encoder.config.layer_norm_eps)
    writer.add_vision_image_mean([0.5] * 3)
    writer.add_vision_image_std([0.5] * 3)


def rename(name):
    for own, stored in CLIP_NAMES.items():
        name = name.replace(own, stored)
    return name


layer = {
    "attn_norm": (WIDTH,), "ffn_norm": (WIDTH,), "ffn_down": (WIDTH, INNER), "ffn_gate": (INNER, WIDTH),
    "ffn_up": (INNER, WIDTH), **{f"attn_{name}": (WIDTH, WIDTH) for name in ("q", "k", "v", "output")},
}  # fmt: skip
shapes = {"token_embd": (WORDS, WIDTH), "output": (WORDS, WIDTH), "output_norm": (WIDTH,)}
shapes |= {f"blk.0.{name}": shape for name, shape in layer.items()}
write_file("text.gguf", "llama", add_language_fields, {f"{name}.weight": random.normal(size=shape) for name, shape in shapes.items()})
state = {rename(name): values.numpy() for name, values in encoder.state_dict().items() if "post_layernorm" not in name}
state |= {f"mm.{name}": values.detach().numpy() for name, values in projection.state_dict().items()}
write_file("mmproj.gguf", "clip", add_projector_fields, {name: values for name, values in state.items() if "position_ids" not in name})


class Parameters(ctypes.Structure):  # larger than the library's structures, which are passed in memory
    _fields_ = (("content", c_uint8 * 1024),)


class Text(ctypes.Structure):
    _fields_ = (("text", c_char_p), ("text_len", c_size_t), ("add_special", c_bool), ("parse_special", c_bool))


folder = Path(util.find_spec("xllamacpp").submodule_search_locations[0])
library = ctypes.CDLL(str(next(folder.glob("xllamacpp*.so"))))
for name, (result, arguments) in {
    "llama_model_default_params": (Parameters, []),
    "llama_model_load_from_file": (c_void_p, [c_char_p, Parameters]),
    "mtmd_context_params_default": (Parameters, []),
    "mtmd_init_from_file": (c_void_p, [c_char_p, c_void_p, Parameters]),
    "mtmd_default_marker": (c_char_p, []),
    "mtmd_bitmap_init": (c_void_p, [c_uint32, c_uint32, c_void_p]),
    "mtmd_input_chunks_init": (c_void_p, []),
    "mtmd_input_chunks_get": (c_void_p, [c_void_p, c_size_t]),
    "mtmd_input_chunks_size": (c_size_t, [c_void_p]),
    "mtmd_input_chunk_get_type": (c_int32, [c_void_p]),
    "mtmd_tokenize": (c_int32, [c_void_p, c_void_p, POINTER(Text), POINTER(c_void_p), c_size_t]),
    "mtmd_encode_chunk": (c_int32, [c_void_p, c_void_p]),
    "mtmd_get_output_embd": (POINTER(c_float), [c_void_p]),
}.items():
    getattr(library, name).restype, getattr(library, name).argtypes = result, arguments
library.llama_backend_init()
model = library.llama_model_load_from_file(b"text.gguf", library.llama_model_default_params())
context = library.mtmd_init_from_file(b"mmproj.gguf", model, library.mtmd_context_params_default())
image = random.integers(0, 255, (SIDE, SIDE, 3), np.uint8)
chunks, marker = library.mtmd_input_chunks_init(), library.mtmd_default_marker()
bitmap = library.mtmd_bitmap_init(SIDE, SIDE, image.ctypes.data)
assert library.mtmd_tokenize(context, chunks, byref(Text(marker, len(marker), False, True)), (c_void_p * 1)(bitmap), 1) == 0
found = [library.mtmd_input_chunks_get(chunks, at) for at in range(library.mtmd_input_chunks_size(chunks))]
[chunk] = [each for each in found if library.mtmd_input_chunk_get_type(each) == 1]
assert library.mtmd_encode_chunk(context, chunk) == 0
count = (SIDE // PATCH) ** 2
rows = np.ctypeslib.as_array(library.mtmd_get_output_embd(context), (count, WIDTH)).copy()

with torch.no_grad():
    pixels = (torch.from_numpy(image).permute(2, 0, 1)[None] / 255 - 0.5) / 0.5
    right = projection(encoder(pixels).last_hidden_state[0, 1:]).numpy()
    inner = encoder.embeddings
    patches = inner.patch_embedding(pixels).flatten(2).transpose(1, 2)
    hidden = torch.cat([patches, inner.class_embedding[None, None]], 1) + inner.position_embedding.weight
    hidden = encoder.pre_layrnorm(hidden)
    for block in encoder.encoder.layers[:-1]:
        hidden = block(hidden, None)
        hidden = hidden[0] if isinstance(hidden, tuple) else hidden
    moved = projection(hidden[0, 1:]).numpy()
largest, from_right, from_moved = (float(np.abs(each).max()) for each in (right, rows - right, rows - moved))
print(f"largest value {largest:.2f}; llama.cpp's rows differ from transformers by {from_right:.2f}, and from the class embedding "
      f"after the patches with one layer less by {from_moved:.3f}")  # fmt: skip
sys.exit(0 if from_right > 0.3 * largest and from_moved < 0.02 * largest else 1)
PYTHON
