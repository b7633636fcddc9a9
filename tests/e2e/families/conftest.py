"""Systems that several families share, because they need the same settings.

Tests that damage or configure a system have their own.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from omnibus.families import catalog
from omnibus_models import tiny
from tests.e2e.families import plain as plain_families
from tests.e2e.system import System, declare_model, start_system

STUDIO = Path(__file__).parent / "studio"


@pytest.fixture(scope="package")
def family_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints of the families that ``plain`` serves."""
    return plain_families.build_checkpoints(
        tmp_path_factory.mktemp("checkpoints"), *plain_families.FAMILIES, "qwen2_vl"
    )


@pytest.fixture(scope="package")
def vision_system(tmp_path_factory: pytest.TempPathFactory, family_checkpoints: dict[str, Path]) -> Iterator[System]:
    """Vision-language models, each whole and in halves, named by family."""
    with start_system(tmp_path_factory.mktemp("plain"), plain_families.build_models(family_checkpoints)) as system:
        yield system


@pytest.fixture(scope="package")
def glm_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("glm_image", tmp_path_factory.mktemp("checkpoints") / "glm")


@pytest.fixture(scope="package")
def janus_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("janus", tmp_path_factory.mktemp("checkpoints") / "janus")


@pytest.fixture(scope="package")
def painters(
    tmp_path_factory: pytest.TempPathFactory, glm_checkpoint: Path, janus_checkpoint: Path, edit_checkpoint: Path
) -> Iterator[System]:
    """Models that paint and the apps before them: GLM-Image, Janus (its language model in halves too), Qwen-Image-Edit."""
    models = {
        "glm-image-tiny": declare_model("glm_image", glm_checkpoint),
        "janus-tiny": declare_model("janus", janus_checkpoint),
        "janus-halves": catalog.split_declaration("janus", str(janus_checkpoint), "E>P>D", "EP>D"),
        "qwen-image-edit-tiny": declare_model("qwen_image_edit", edit_checkpoint),
    }
    apps = [
        flag for name in ("glm_painter", "janus_painter", "editor") for flag in ("--app", str(STUDIO / f"{name}.py"))
    ]
    with start_system(tmp_path_factory.mktemp("painters"), models, "--apps-dir", str(STUDIO), *apps) as system:
        yield system
