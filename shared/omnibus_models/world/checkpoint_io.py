"""Storage of checkpoints: 16-bit numbers, which loaders convert to 32 bits, and file lists."""

import copy
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

#: File with the training settings, and the SHA-256 of each file.
MANIFEST = "manifest.json"

M = TypeVar("M", bound=nn.Module)


def to_bfloat16(module: M) -> M:
    """Return a copy of ``module`` in bfloat16."""
    return copy.deepcopy(module).to(torch.bfloat16)


def declare_float32(config: Path) -> None:
    """Make the library convert weights to float32: 16 bits are only for storage on a CPU."""
    config.write_text(config.read_text().replace('"dtype": "bfloat16"', '"dtype": "float32"'))


def write_manifest(directory: Path, recipe: Mapping[str, Any]) -> None:
    """Write how the checkpoint in ``directory`` was ``recipe``, and its file list."""
    files = {name: digest for name, digest in file_digests(directory).items() if name != MANIFEST}
    (directory / MANIFEST).write_text(json.dumps({"made": recipe, "files": files}, indent=2) + "\n")


def file_digests(directory: Path) -> dict[str, str]:
    """Return the SHA-256 of all files below ``directory``, by relative path."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
