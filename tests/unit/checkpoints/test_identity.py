"""Identity of components' weights, computed from the files' contents."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from omnibus.checkpoints import tensor_digests
from omnibus.checkpoints.identity import ComponentIdentity, read_identity

PREFIXES = {"vision": ("visual.", "model.visual."), "thinker": ("model.", "lm_head.")}
IMAGE, WORDS = b"\x01\x02" * 50_000, b"\x03\x04" * 8


def write(directory: Path, tensors: dict[str, bytes]) -> Path:
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
def known(tmp_path: Path) -> Path:
    return write(tmp_path / "known", {"visual.w": IMAGE, "model.w": WORDS, "lm_head.w": WORDS})


def identity(directory: Path, component: str = "vision") -> ComponentIdentity:
    found = read_identity(directory, "qwen2_5_vl", component, PREFIXES, encodes=True)
    assert found is not None
    return found


def configure(directory: Path, file: str, **fields: Any) -> Path:
    (directory / file).write_text(json.dumps(fields))
    return directory


def test_equal_weights_have_one_identity_wherever_they_are_in_the_files(known: Path, tmp_path: Path):
    other = write(tmp_path / "other", {"model.x": WORDS, "model.visual.w": IMAGE})

    assert identity(known).digest == identity(other).digest
    assert identity(known).first_difference(identity(other)) == ""
    assert identity(known, "thinker").digest != identity(other, "thinker").digest


@pytest.mark.parametrize("place", [0, 33_333, len(IMAGE) - 1])
def test_any_byte_that_differs_makes_another_identity_of_the_same_outline(known: Path, tmp_path: Path, place: int):
    changed = bytearray(IMAGE)
    changed[place] ^= 1

    other = write(tmp_path / "other", {"visual.w": bytes(changed)})

    assert identity(known).outline == identity(other).outline
    assert identity(known).digest != identity(other).digest
    assert identity(known).first_difference(identity(other)) == "1 of 1 weights have other values, w is the first"


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
    known: Path, tmp_path: Path, file: str, here: dict[str, Any], there: dict[str, Any], difference: str
):
    other = configure(write(tmp_path / "other", {"visual.w": IMAGE}), file, **there)
    configure(known, file, **here)

    assert identity(known).first_difference(identity(other)) == difference
    assert identity(known).outline != identity(other).outline


def test_what_is_of_the_language_model_alone_is_no_part_of_an_encoder(known: Path, tmp_path: Path):
    other = write(tmp_path / "other", {"visual.w": IMAGE, "model.w": IMAGE})
    configure(known, "config.json", text_config={"hidden_size": 64}, image_token_id=6, dtype="float32")
    configure(other, "config.json", text_config={"hidden_size": 96}, image_token_id=7, audio_config={"depth": 1})

    assert identity(known).digest == identity(other).digest


def test_bytes_are_read_once_while_the_file_is_the_same(known: Path, cache: Path, monkeypatch: pytest.MonkeyPatch):
    first = identity(known).digest
    reads: list[str] = []
    read = tensor_digests._content_digest
    monkeypatch.setattr(
        tensor_digests, "_content_digest", lambda data, tensor: (reads.append(tensor.name), read(data, tensor))[1]
    )

    assert identity(known).digest == first
    assert reads == []
    file = known / "model.safetensors"
    changed = bytearray(file.read_bytes())
    changed[-1] ^= 1
    file.write_bytes(changed)
    assert identity(known).digest == first
    assert reads == ["visual.w"]  # lm_head.w has changed


def test_a_cache_that_cannot_be_written_costs_reading_alone(known: Path, cache: Path):
    cache.parent.mkdir(parents=True)
    cache.write_text("no directory")

    assert identity(known).digest == identity(known).digest != ""


def test_what_is_not_there_has_none(known: Path, tmp_path: Path):
    def found(directory: Path, component: str) -> ComponentIdentity | None:
        return read_identity(directory, "qwen2_5_vl", component, PREFIXES, encodes=True)

    assert found(tmp_path / "nowhere", "vision") is None
    assert found(known, "audio") is None
    (known / "model.safetensors").write_bytes(b"cut")
    assert found(known, "vision") is None
