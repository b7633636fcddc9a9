"""Tiny checkpoints and their components, each built and loaded once."""

from pathlib import Path
from typing import Any

import pytest
import torch

from omnibus_models import families, tiny

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def vl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen2_5_vl", tmp_path_factory.mktemp("models") / "vl")


@pytest.fixture(scope="session")
def omni(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen2_5_omni", tmp_path_factory.mktemp("models") / "omni")


@pytest.fixture(scope="session")
def image_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen_image", tmp_path_factory.mktemp("models") / "image")


@pytest.fixture(scope="session")
def edit_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen_image_edit", tmp_path_factory.mktemp("models") / "edit")


@pytest.fixture(scope="session")
def ltx2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("ltx2", tmp_path_factory.mktemp("models") / "ltx2")


@pytest.fixture(scope="session")
def vl_parts(vl: Path) -> dict[str, Any]:
    family = families.family_of(vl)
    return {name: family.load(name, vl) for name in family.components}


@pytest.fixture(scope="session")
def omni_parts(omni: Path) -> dict[str, Any]:
    family = families.family_of(omni)
    return {name: family.load(name, omni) for name in family.components}
