"""Identity of components' weights by what is in the files."""

import json
import struct
from pathlib import Path

import pytest

from omnibus.checkpoints.identity import component_digest

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


@pytest.fixture
def known(tmp_path: Path) -> Path:
    return write(tmp_path / "known", {"visual.w": IMAGE, "model.w": WORDS, "lm_head.w": WORDS})


def test_equal_weights_have_equal_digests_wherever_they_are_in_the_files(known: Path, tmp_path: Path):
    other = write(tmp_path / "other", {"model.x": WORDS, "model.visual.w": IMAGE})

    assert component_digest(known, "vision", PREFIXES) == component_digest(other, "vision", PREFIXES) != ""
    assert component_digest(known, "thinker", PREFIXES) != component_digest(other, "thinker", PREFIXES)


@pytest.mark.parametrize("place", [0, 50_001, len(IMAGE) - 1])
def test_weights_that_differ_at_the_beginning_the_middle_or_the_end_have_others(
    known: Path, tmp_path: Path, place: int
):
    changed = bytearray(IMAGE)
    changed[place] ^= 1

    other = write(tmp_path / "other", {"visual.w": bytes(changed)})

    assert component_digest(known, "vision", PREFIXES) != component_digest(other, "vision", PREFIXES)


def test_what_is_not_there_has_none(known: Path, tmp_path: Path):
    assert component_digest(tmp_path / "nowhere", "vision", PREFIXES) == ""
    assert component_digest(known, "audio", PREFIXES) == ""
    (known / "model.safetensors").write_bytes(b"cut")
    assert component_digest(known, "vision", PREFIXES) == ""
