"""Fixtures for tests of encoders."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from omnibus_models import tiny


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Run torch on one thread, as encoders do.

    With several threads, rounding depends on how an array's size splits it among them.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def omni(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Qwen2.5-Omni."""
    return tiny.build("qwen2_5_omni", tmp_path_factory.mktemp("models") / "omni")
