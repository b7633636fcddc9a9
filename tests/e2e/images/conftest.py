"""Qwen-Image as text encoder, transformer and VAE apart (T, D, V) and together (TDV): four executors and two apps."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.system import System, declaration, running

MODEL = "qwen-image-tiny"
GALLERY = Path(__file__).parent / "gallery"


@pytest.fixture(scope="package")
def studio(tmp_path_factory: pytest.TempPathFactory, image_checkpoint: Path) -> Iterator[System]:
    flags = [flag for app in ("painter", "sketcher") for flag in ("--app", str(GALLERY / f"{app}.py"))]
    models = {MODEL: declaration("qwen_image", image_checkpoint)}
    with running(tmp_path_factory.mktemp("studio"), models, "--apps-dir", str(GALLERY), *flags) as system:
        yield system


@pytest.fixture(autouse=True)
async def everybody(studio: System) -> dict[str, int]:
    """Process id of every executor: a test begins when all of them are there and the gateway knows them."""
    pids = await studio.whole()
    await studio.becomes_ready()
    return pids
