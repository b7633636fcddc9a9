"""Fixtures of the tests that run the whole system; each directory has its own system."""

from pathlib import Path

import pytest
import torch

from omnibus_models import tiny

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def vl_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen2_5_vl", tmp_path_factory.mktemp("checkpoints") / "vl")


@pytest.fixture(scope="session")
def omni_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen2_5_omni", tmp_path_factory.mktemp("checkpoints") / "omni")


@pytest.fixture(scope="session")
def image_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen_image", tmp_path_factory.mktemp("checkpoints") / "image")


@pytest.fixture(scope="session")
def ltx2_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("ltx2", tmp_path_factory.mktemp("checkpoints") / "ltx2")


@pytest.fixture(scope="session")
def edit_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen_image_edit", tmp_path_factory.mktemp("checkpoints") / "edit")
