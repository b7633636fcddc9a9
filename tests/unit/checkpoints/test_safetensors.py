"""Headers of safetensors files, and the files that contain a checkpoint's weights."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from omnibus.checkpoints import safetensors
from omnibus.checkpoints.safetensors import TensorHeader
from omnibus.errors import BadRequest


def write_header(path: Path, told: Any, body: bytes = b"") -> Path:
    """Write a file with ``told`` in its header."""
    text = json.dumps(told).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


def describe_tensor(nbytes: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [nbytes // 4], "data_offsets": [0, nbytes]}


def write_index(directory: Path, *names: str, stem: str = "model") -> None:
    index_data = {"weight_map": {str(number): name for number, name in enumerate(names)}}
    (directory / f"{stem}.safetensors.index.json").write_text(json.dumps(index_data))


def test_a_header_says_names_dtypes_shapes_and_sizes(tmp_path: Path):
    path = write_header(
        tmp_path / "a.safetensors", {"__metadata__": {"format": "pt"}, "x": describe_tensor(8, "BF16")}, bytes(8)
    )

    assert safetensors.read_header(path) == {"x": TensorHeader("BF16", (2,), 8)}


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path):
    path = write_header(tmp_path / "a.safetensors", {"x": describe_tensor(8)}, bytes(7))

    with pytest.raises(BadRequest, match=r"a\.safetensors is truncated, it has \d+ of \d+ bytes: download it again"):
        safetensors.read_header(path)


@pytest.mark.parametrize(
    "body",
    [b"", b"\x01", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", struct.pack("<Q", 4) + b"nope"],
    ids=["empty", "short", "pointer", "no JSON"],
)
def test_what_is_no_safetensors_file_is_refused(tmp_path: Path, body: bytes):
    (tmp_path / "a.safetensors").write_bytes(body)

    with pytest.raises(BadRequest, match=r"a\.safetensors is not a safetensors file: download it again"):
        safetensors.read_header(tmp_path / "a.safetensors")


@pytest.mark.parametrize(
    "content",
    [
        [],
        1,
        {"x": 1},
        {"x": {}},
        {"x": {"dtype": "F32", "shape": ["a"], "data_offsets": [0, 4]}},
        {"x": {**describe_tensor(4), "data_offsets": [0]}},
    ],
)
def test_a_header_that_says_something_else_is_refused(tmp_path: Path, content: Any):
    with pytest.raises(BadRequest, match="is not a safetensors file"):
        safetensors.read_header(write_header(tmp_path / "a.safetensors", content, bytes(64)))


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path):
    with pytest.raises(BadRequest, match="none cannot be read: No such file"):
        safetensors.read_header(tmp_path / "none")


@pytest.mark.parametrize("stem", ["model", "diffusion_pytorch_model"])
def test_weights_are_in_one_file_or_in_those_of_an_index(tmp_path: Path, stem: str):
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    whole = write_header(one / f"{stem}.safetensors", {})
    write_index(one, "never.safetensors", stem=stem)
    first = write_header(two / "1.safetensors", {})
    write_header(two / "other.safetensors", {})
    write_index(two, "1.safetensors", "2.safetensors", "1.safetensors", stem=stem)

    assert safetensors.find_weight_files(one) == ([whole], [])
    assert safetensors.find_weight_files(two) == ([first], ["2.safetensors"])


def test_a_directory_without_weights_misses_nothing(tmp_path: Path):
    assert safetensors.find_weight_files(tmp_path) == ([], [])


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": []}'])
def test_an_index_that_cannot_be_read_is_missed_itself(tmp_path: Path, text: str):
    (tmp_path / "model.safetensors.index.json").write_text(text)

    assert safetensors.find_weight_files(tmp_path) == ([], [])
    assert safetensors.weight_file_names(tmp_path) == ["model.safetensors"]
