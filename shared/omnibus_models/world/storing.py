"""How checkpoints are stored: numbers in 16 bits, which whoever loads them brings to 32 bits."""

import copy
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

M = TypeVar("M", bound=nn.Module)


def halved(module: M) -> M:
    """A copy of ``module`` in bfloat16."""
    return copy.deepcopy(module).to(torch.bfloat16)


def say_whole(config: Path) -> None:
    """Let the library bring what it loads to float32: 16 bits are for storing, not for computing on a CPU."""
    config.write_text(config.read_text().replace('"dtype": "bfloat16"', '"dtype": "float32"'))
