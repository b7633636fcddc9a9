"""Storage of checkpoints: numbers in 16 bits, which loaders convert to 32 bits, and a list of files."""

import copy
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

#: What was trained how, and the SHA-256 of each file.
MANIFEST = "manifest.json"

M = TypeVar("M", bound=nn.Module)


def to_bfloat16(module: M) -> M:
    """A copy of ``module`` in bfloat16."""
    return copy.deepcopy(module).to(torch.bfloat16)


def declare_float32(config: Path) -> None:
    """Let the library bring what it loads to float32: 16 bits are for storing, not for computing on a CPU."""
    config.write_text(config.read_text().replace('"dtype": "bfloat16"', '"dtype": "float32"'))


def write_manifest(directory: Path, made: Mapping[str, Any]) -> None:
    """Write down how the checkpoint in ``directory`` was ``made``, and what its files are."""
    files = {name: digest for name, digest in file_digests(directory).items() if name != MANIFEST}
    (directory / MANIFEST).write_text(json.dumps({"made": made, "files": files}, indent=2) + "\n")


def file_digests(directory: Path) -> dict[str, str]:
    """The SHA-256 of all files below ``directory``, by their paths there."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
