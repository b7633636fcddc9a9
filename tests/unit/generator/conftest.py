"""Tiny checkpoints, each built once."""

from pathlib import Path

import pytest

from omnibus_models import tiny


@pytest.fixture(scope="session")
def image_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen_image", tmp_path_factory.mktemp("models") / "image")


@pytest.fixture(scope="session")
def ltx2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("ltx2", tmp_path_factory.mktemp("models") / "ltx2")


@pytest.fixture(scope="session")
def edit_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen_image_edit", tmp_path_factory.mktemp("models") / "edit")
