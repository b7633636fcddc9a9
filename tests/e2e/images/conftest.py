"""Qwen-Image in separate executors (T, D, V) and in one (TDV).

T is the text encoder, D the transformer and V the VAE. The system has four executors and two apps.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.system import System, declare_model, start_system

MODEL = "qwen-image-tiny"
GALLERY = Path(__file__).parent / "gallery"


@pytest.fixture(scope="package")
def studio(tmp_path_factory: pytest.TempPathFactory, image_checkpoint: Path) -> Iterator[System]:
    flags = [flag for app in ("painter", "sketcher") for flag in ("--app", str(GALLERY / f"{app}.py"))]
    models = {MODEL: declare_model("qwen_image", image_checkpoint)}
    with start_system(tmp_path_factory.mktemp("studio"), models, "--apps-dir", str(GALLERY), *flags) as system:
        yield system


@pytest.fixture(autouse=True)
async def executor_pids(studio: System) -> dict[str, int]:
    """Process id of every executor, once all are registered with the gateway."""
    pids = await studio.whole()
    await studio.becomes_ready()
    return pids
