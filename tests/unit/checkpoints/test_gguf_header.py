"""Headers of GGUF files: as the format's own package reads them, and faults of files."""

import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers.integrations import GGUF_CONFIG_MAPPING
from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from omnibus.checkpoints import gguf_header, hub, precheck
from omnibus.checkpoints.generation_config import read_sampling
from omnibus.checkpoints.identity import read_identity
from omnibus.errors import BadRequest
from omnibus.families.specs import KNOWN

Change = Callable[[gguf.GGUFWriter], None]


def write_file(path: Path, *changes: Change, architecture: str = "llama") -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(77)
    writer.add_array("llama.head_counts", [4, 2])
    writer.add_token_list([f"token{number}" for number in range(3000)])
    writer.add_token_scores([0.5] * 3000)
    for change in changes:
        change(writer)
    writer.add_tensor("token_embd.weight", np.arange(128, dtype=np.float32).reshape(2, 64))
    blocks = gguf.quants.quantize(np.ones((3, 64), dtype=np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("output.weight", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_header_is_that_of_the_formats_package(tmp_path: Path):
    path = write_file(tmp_path / "a.gguf", lambda writer: writer.add_chat_template("Grüße"))

    header = gguf_header.read_gguf_header(path)

    reader = gguf.GGUFReader(path)
    assert {name: tuple(tensor) for name, tensor in header.tensors.items()} == {
        each.name: (each.tensor_type.name, tuple(reversed(each.shape.tolist())), int(each.n_bytes))
        for each in reader.tensors
    }
    own_fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    assert header.metadata.keys() == own_fields.keys()
    lengths = {"tokenizer.ggml.tokens": 3000, "tokenizer.ggml.scores": 3000}
    assert header.metadata == {name: lengths.get(name) or field.contents() for name, field in own_fields.items()}
    assert (header.model_type, header.field("context_length"), header.field("block_count")) == ("llama", 77, None)


def test_types_have_the_sizes_of_the_formats_package():
    sizes = {int(kind): (kind.name, *size) for kind, size in gguf.GGML_QUANT_SIZES.items()}

    assert gguf_header._TYPES.items() <= sizes.items()


def test_architectures_are_language_models_that_the_library_reads():
    assert {name.replace("moe", "_moe") for name in gguf_header.MODEL_TYPES} <= {*GGUF_SUPPORTED_ARCHITECTURES}
    assert {*gguf_header.MODEL_TYPES.values()} <= {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}


FAULTS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "truncated": (lambda path: cut(path, -64), r"a\.gguf is truncated, it has \d+ of \d+ bytes: download it again"),
    "truncated metadata": (lambda path: cut(path, 5000), r"a\.gguf is truncated or not a GGUF file: download it again"),
    "empty": (lambda path: cut(path, 0), "is truncated or not a GGUF file"),
    "another format": (lambda path: patch(path, 0, b"GGML"), "is not a GGUF file: download it again"),
    "version": (lambda path: patch(path, 4, struct.pack("<I", 1)), "has version 1 of GGUF; versions 2 and 3 are read"),
    "split": (
        lambda path: path.rename(path.with_name("a-00002-of-00003.gguf")),
        "a-00002-of-00003.gguf is one of 3 parts of a model; parts are not read: merge them with `llama-gguf-split",
    ),
    "split and renamed": (
        lambda path: write_file(path, lambda writer: writer.add_uint16("split.count", 4)),
        "is one of 4 parts of a model",
    ),
    "Gemma 2 27B": (
        lambda path: write_file(path, lambda writer: writer.add_block_count(46), architecture="gemma2"),
        r"a\.gguf lacks the scale of this model's attention: use the model's safetensors",
    ),
    "unknown architecture": (
        lambda path: write_file(path, architecture="deepseek4"),
        "architecture 'deepseek4', which is not served from GGUF: use its safetensors. Served are bert, gemma2,",
    ),
    "projector": (
        lambda path: write_file(path, architecture="clip"),
        r"a\.gguf is a projector \(mmproj\), .*Name the file of the model",
    ),
}


def cut(path: Path, length: int) -> Path:
    path.write_bytes(path.read_bytes()[:length])
    return path


def patch(path: Path, place: int, content: bytes) -> Path:
    data = bytearray(path.read_bytes())
    data[place : place + len(content)] = content
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_at_once_with_its_remedy(tmp_path: Path, fault: str):
    change, message = FAULTS[fault]
    path = change(write_file(tmp_path / "a.gguf"))
    began = time.process_time()

    with pytest.raises(BadRequest, match=message):
        precheck.require_usable(path, "causal_lm", KNOWN)
    assert time.process_time() - began < 1


@pytest.mark.behaviour(
    "transformers 5.19",
    "loads a GGUF file whose positions are scaled (Llama 3.1, YaRN) as if they were not",
    "refuses the file",
    source="transformers/integrations/ggml.py: GGUF_CONFIG_MAPPING has no rope.scaling",
)
def test_scaled_positions_are_refused(tmp_path: Path):
    assert not any("rope.scaling" in name for fields in GGUF_CONFIG_MAPPING.values() for name in fields)
    for change in (
        lambda writer: writer.add_string("llama.rope.scaling.type", "yarn"),
        lambda writer: writer.add_tensor("rope_freqs.weight", np.ones(8, np.float32)),
    ):
        path = write_file(tmp_path / "a.gguf", change)
        with pytest.raises(BadRequest, match="scales positions .*, which transformers ignores in GGUF"):
            precheck.require_usable(path, "causal_lm", KNOWN)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 400), content=st.binary(min_size=1, max_size=12))
def test_a_damaged_header_is_read_or_refused(tmp_path: Path, place: int, content: bytes):
    path = patch(write_small(tmp_path / "a.gguf"), place, content)

    with suppress(BadRequest):  # nothing else, whatever the bytes are
        gguf_header.read_gguf_header(path)


def write_small(path: Path) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_token_list(["a", "b"])
    writer.add_array("llama.head_counts", [4, 2])
    writer.add_tensor("token_embd.weight", np.ones((2, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_file_is_of_the_family_of_its_language_model(tmp_path: Path):
    llama, qwen = write_file(tmp_path / "llama.gguf"), write_file(tmp_path / "q.gguf", architecture="qwen3")

    precheck.require_usable(llama, "causal_lm", KNOWN)
    precheck.require_usable(qwen, "qwen3", KNOWN)

    for path, family, own in (
        (llama, "qwen2_5_vl", "causal_lm"),
        (qwen, "qwen2", "qwen3"),
        (qwen, "causal_lm", "qwen3"),
    ):
        with pytest.raises(BadRequest, match=f"is a checkpoint of the family {own}, not of {family}"):
            precheck.require_usable(path, family, KNOWN)


def test_a_file_is_a_checkpoint_and_a_directory_of_files_is_not(tmp_path: Path):
    path = write_file(tmp_path / "a.gguf")

    assert hub.find_checkpoint(str(path)) == hub.resolve_checkpoint(str(path)) == path
    assert len(precheck.require_whole(path)) == 2
    assert not precheck.read_modalities(path)
    assert read_identity(path, "causal_lm", "thinker", {"thinker": [""]}, encodes=False) is None
    with pytest.raises(
        BadRequest, match=f"contains only GGUF files: name one of them as the checkpoint, such as {path}"
    ):
        hub.resolve_checkpoint(str(tmp_path))
    write_file(tmp_path / "a-mmproj.gguf", architecture="clip").rename(tmp_path / "A-mmproj-f16.gguf")
    with pytest.raises(BadRequest, match=f"such as {path}"):
        hub.resolve_checkpoint(str(tmp_path))
    with pytest.raises(BadRequest, match="is GGUF, which omnibus_engines:vllm does not serve: use omnibus_engines:tr"):
        hub.require_safetensors(path)


def test_sampling_is_that_of_the_file(tmp_path: Path):
    plain = write_file(tmp_path / "plain.gguf")
    recommending = write_file(
        tmp_path / "a.gguf",
        lambda writer: writer.add_sampling_temp(0.5),
        lambda writer: writer.add_sampling_top_k(20),
        lambda writer: writer.add_sampling_penalty_repeat(1.25),
    )

    assert read_sampling(plain) == {}
    assert read_sampling(recommending) == {"temperature": 0.5, "top_k": 20, "repetition_penalty": 1.25}
