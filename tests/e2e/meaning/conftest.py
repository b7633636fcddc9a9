"""The trained models of the small world, split and whole.

They are one that sees, hears and speaks, and one that generates images.
"""

from collections.abc import Iterator

import pytest

from omnibus.families import catalog
from omnibus_models import world
from tests.e2e.meaning.asking import OMNI, PAINTER
from tests.e2e.system import ROOT, System, declare_model, start_system


@pytest.fixture(scope="package")
def world_system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    models = {
        OMNI: declare_model("qwen2_5_omni", world.checkpoint_directory("qwen2_5_omni")),
        PAINTER: {
            **declare_model("qwen_image", world.checkpoint_directory("qwen_image")),
            "image_defaults": catalog.WORLD_IMAGE_DEFAULTS[PAINTER],
        },
    }
    # Many are sent at once, and may wait as long as a busy machine takes for them.
    patient = {"OMNIBUS_GATEWAY_QUEUE_SECONDS": "600", "OMNIBUS_GATEWAY_DEADLINE": "600"}
    app = str(ROOT / "examples" / "drawing.py")
    with start_system(tmp_path_factory.mktemp("house"), models, "--app", app, **patient) as system:
        yield system


@pytest.fixture(autouse=True)
async def wait_for_executors(world_system: System) -> None:
    """Wait until all executors are registered with the gateway before each test."""
    await world_system.whole()
    await world_system.becomes_ready()
