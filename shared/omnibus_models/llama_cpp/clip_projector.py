"""LLaVA's projectors (``mlp``), computed by transformers.

llama.cpp's rows are not the model's: it puts the class embedding after the patches, whose positions and rows are then
off by one, and leaves out the last layer of files whose writer has removed the unused one already.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from omnibus import errors
from omnibus.checkpoints.gguf_header import read_gguf_header
from omnibus_models.llama_cpp.projector import CAUSAL_ROW, HEAD_COLUMNS

#: Parts of names in the format, and of those in the library's encoder.
_NAMES = {
    "v.blk.": "encoder.layers.",
    "v.patch_embd.": "embeddings.patch_embedding.",
    "v.position_embd.": "embeddings.position_embedding.",
    "v.class_embd": "embeddings.class_embedding",
    "v.pre_ln.": "pre_layrnorm.",
    "attn_out.": "self_attn.out_proj.",
    **{f"attn_{part}.": f"self_attn.{part}_proj." for part in "qkv"},
    **{f"ln{number}.": f"layer_norm{number}." for number in (1, 2)},
    "ffn_up.": "mlp.fc1.",
    "ffn_down.": "mlp.fc2.",
}
_FIELDS = {
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_epsilon": "layer_norm_eps",
    "image_size": "image_size",
    "patch_size": "patch_size",
}


class ClipProjector:
    """The projector of LLaVA 1.5 in ``file``, with the interface of ``ImageProjector``. Raises ``Fatal``.

    Images are resized and cropped as by the model's own processor.
    """

    def __init__(self, file: Path) -> None:
        from transformers import CLIPImageProcessor, CLIPVisionConfig, CLIPVisionModel

        metadata = read_gguf_header(file).metadata
        try:
            fields = {own: metadata[f"clip.vision.{name}"] for name, own in _FIELDS.items()}
            size, means, deviations = (metadata[f"clip.vision.{name}"] for name in ("image_size", *_NORMALIZATION))
            state = dict(_read_tensors(file))
            linear = [_make_linear(state, name) for name in ("mm.0", "mm.2")]
            is_swapped = state["encoder.layers.0.mlp.fc1.weight"].shape[1] != fields["hidden_size"]
        except KeyError as error:
            raise errors.Fatal(f"{file} lacks {error}: convert the model's projector again") from None
        if is_swapped:  # older files have the names of these two the other way round
            names = {name: name.replace("fc1", "fc").replace("fc2", "fc1").replace("fc.", "fc2.") for name in state}
            state = {names[name]: values for name, values in state.items()}
        activation = "gelu_pytorch_tanh" if metadata.get("clip.use_gelu") else "quick_gelu"
        self._encoder = CLIPVisionModel(CLIPVisionConfig(**fields, hidden_act=activation)).eval()
        self._projection = nn.Sequential(linear[0], nn.GELU(), linear[1])
        lost, _ = self._encoder.load_state_dict(state, strict=False)
        lost = [name for name in lost if not name.startswith("post_layernorm")]
        if lost or linear[0].in_features != fields["hidden_size"]:
            raise errors.Fatal(f"{file} is not a projector of LLaVA 1.5: it lacks {lost or 'a single layer'}")
        self._processor = CLIPImageProcessor(
            size={"shortest_edge": size}, crop_size=size, image_mean=means, image_std=deviations
        )
        self._rows = (size // fields["patch_size"]) ** 2

    def count_rows(self, pixels: np.ndarray) -> int:
        """See ``ImageProjector``: all images have as many."""
        return self._rows

    @torch.inference_mode()
    def encode_image(self, pixels: np.ndarray) -> np.ndarray:
        """See ``ImageProjector``."""
        image = self._processor(pixels, return_tensors="pt", input_data_format="channels_last")["pixel_values"]
        rows = self._projection(self._encoder(image).last_hidden_state[0, 1:])
        places = torch.arange(len(rows), dtype=torch.float32)[:, None].expand(-1, HEAD_COLUMNS - 1)
        whole: np.ndarray = torch.cat([torch.full((len(rows), 1), CAUSAL_ROW), places, rows], 1).numpy()
        return whole


_NORMALIZATION = ("image_mean", "image_std")


def _read_tensors(file: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield names and float32 weights, by the library's names for the encoder."""
    import gguf

    for tensor in gguf.GGUFReader(file).tensors:
        values = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy())
        name = tensor.name
        for own, other in _NAMES.items():
            name = name.replace(own, other)
        yield name, values


def _make_linear(state: dict[str, Tensor], name: str) -> Any:
    weight, bias = state.pop(f"{name}.weight"), state.pop(f"{name}.bias")
    linear = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    linear.load_state_dict({"weight": weight, "bias": bias}, assign=True)
    return linear
