"""Identity of components' weights, computed from the files' contents."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from omnibus.checkpoints import safetensors as tensor_digests
from omnibus.checkpoints.identity import ComponentIdentity, read_identity

PREFIXES = {"vision": ("visual.", "model.visual."), "thinker": ("model.", "lm_head.")}
IMAGE, WORDS = b"\x01\x02" * 50_000, b"\x03\x04" * 8


def write_weights(directory: Path, tensors: dict[str, bytes]) -> Path:
    directory.mkdir()
    header, at = {}, 0
    for name, data in tensors.items():
        header[name] = {"dtype": "BF16", "shape": [len(data) // 2], "data_offsets": [at, at + len(data)]}
        at += len(data)
    body = json.dumps(header).encode()
    whole = struct.pack("<Q", len(body)) + body + b"".join(tensors.values())
    (directory / "model.safetensors").write_bytes(whole)
    return directory


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of cached digests."""
    monkeypatch.setenv("OMNIBUS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "identity"


@pytest.fixture
def known_checkpoint(tmp_path: Path) -> Path:
    return write_weights(tmp_path / "known", {"visual.w": IMAGE, "model.w": WORDS, "lm_head.w": WORDS})


def read_component(directory: Path, component: str = "vision") -> ComponentIdentity:
    component_identity = read_identity(directory, "qwen2_5_vl", component, PREFIXES, encodes=True)
    assert component_identity is not None
    return component_identity


def write_config(directory: Path, file: str, **fields: Any) -> Path:
    (directory / file).write_text(json.dumps(fields))
    return directory


def test_equal_weights_have_one_identity_wherever_they_are_in_the_files(known_checkpoint: Path, tmp_path: Path):
    other = write_weights(tmp_path / "other", {"model.x": WORDS, "model.visual.w": IMAGE})

    assert read_component(known_checkpoint).digest == read_component(other).digest
    assert read_component(known_checkpoint).first_difference(read_component(other)) == ""
    assert read_component(known_checkpoint, "thinker").digest != read_component(other, "thinker").digest


@pytest.mark.parametrize("place", [0, 33_333, len(IMAGE) - 1])
def test_any_byte_that_differs_makes_another_identity_of_the_same_outline(
    known_checkpoint: Path, tmp_path: Path, place: int
):
    changed_weights = bytearray(IMAGE)
    changed_weights[place] ^= 1

    other = write_weights(tmp_path / "other", {"visual.w": bytes(changed_weights)})

    assert read_component(known_checkpoint).outline == read_component(other).outline
    assert read_component(known_checkpoint).digest != read_component(other).digest
    assert (
        read_component(known_checkpoint).first_difference(read_component(other))
        == "1 of 1 weights have other values, w is the first"
    )


DIFFERENCES: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "tower": (
        "config.json", {"vision_config": {"depth": 2}}, {"vision_config": {"depth": 3}},
        "config.json: vision_config.depth is 2 here and 3 there",
    ),
    "in the thinker's configuration": (
        "config.json", {"thinker_config": {"vision_config": {"depth": 2}}}, {"thinker_config": {}},
        "config.json: vision_config.depth is 2 here and nothing there",
    ),
    "preprocessing": (
        "preprocessor_config.json", {"image_mean": [0.5]}, {"image_mean": [0.4]},
        "preprocessor_config.json: image_mean is [0.5] here and [0.4] there",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("file", "here", "there", "difference"), DIFFERENCES.values(), ids=DIFFERENCES.keys())
def test_settings_that_change_what_an_encoder_gives_are_part_of_it(
    known_checkpoint: Path, tmp_path: Path, file: str, here: dict[str, Any], there: dict[str, Any], difference: str
):
    other = write_config(write_weights(tmp_path / "other", {"visual.w": IMAGE}), file, **there)
    write_config(known_checkpoint, file, **here)

    assert read_component(known_checkpoint).first_difference(read_component(other)) == difference
    assert read_component(known_checkpoint).outline != read_component(other).outline


def test_what_is_of_the_language_model_alone_is_no_part_of_an_encoder(known_checkpoint: Path, tmp_path: Path):
    other = write_weights(tmp_path / "other", {"visual.w": IMAGE, "model.w": IMAGE})
    write_config(known_checkpoint, "config.json", text_config={"hidden_size": 64}, image_token_id=6, dtype="float32")
    write_config(other, "config.json", text_config={"hidden_size": 96}, image_token_id=7, audio_config={"depth": 1})

    assert read_component(known_checkpoint).digest == read_component(other).digest


def test_bytes_are_read_once_while_the_file_is_the_same(
    known_checkpoint: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
):
    first = read_component(known_checkpoint).digest
    reads: list[str] = []
    read = tensor_digests._content_digest
    monkeypatch.setattr(
        tensor_digests, "_content_digest", lambda data, tensor: (reads.append(tensor.name), read(data, tensor))[1]
    )

    assert read_component(known_checkpoint).digest == first
    assert reads == []
    file = known_checkpoint / "model.safetensors"
    changed_bytes = bytearray(file.read_bytes())
    changed_bytes[-1] ^= 1
    file.write_bytes(changed_bytes)
    assert read_component(known_checkpoint).digest == first
    assert reads == ["visual.w"]  # lm_head.w has changed


def test_a_cache_that_cannot_be_written_costs_reading_alone(known_checkpoint: Path, cache: Path):
    cache.parent.mkdir(parents=True)
    cache.write_text("no directory")

    assert read_component(known_checkpoint).digest == read_component(known_checkpoint).digest != ""


def test_what_is_not_there_has_none(known_checkpoint: Path, tmp_path: Path):
    def find_identity(directory: Path, component: str) -> ComponentIdentity | None:
        return read_identity(directory, "qwen2_5_vl", component, PREFIXES, encodes=True)

    assert find_identity(tmp_path / "nowhere", "vision") is None
    assert find_identity(known_checkpoint, "audio") is None
    (known_checkpoint / "model.safetensors").write_bytes(b"cut")
    assert find_identity(known_checkpoint, "vision") is None
