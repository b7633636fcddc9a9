"""Components that share an executor: encoder and LLM (EL), talker and vocoder (Ta+V), and everything (M, TDV)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from omnibus.families import catalog
from tests.e2e.images.conftest import GALLERY, MODEL
from tests.e2e.system import OMNI, VL, System, declare_model, start_system

#: Price of a place for an executor, in EUR.
PRICE_PER_HOUR = 0.36


def declare_shapes(family: str, checkpoint: Path, *shapes: str) -> dict[str, Any]:
    """A model with the paths ``shapes``, in options of its family."""
    options, paths = catalog.find_family(family)["options"], [shape.split(">") for shape in shapes]
    return declare_model(
        family,
        checkpoint,
        options={name: options[name] for path in paths for name in path},
        paths=[{"options": path, "share": 1} for path in paths],
    )


@pytest.fixture(scope="package")
def together(
    tmp_path_factory: pytest.TempPathFactory, vl_checkpoint: Path, omni_checkpoint: Path, image_checkpoint: Path
) -> Iterator[System]:
    models = {
        VL: declare_shapes("qwen2_5_vl", vl_checkpoint, "EL"),
        OMNI: declare_shapes("qwen2_5_omni", omni_checkpoint, "EV>EA>Th>Ta+V", "M"),
        MODEL: declare_shapes("qwen_image", image_checkpoint, "TDV"),
    }
    app = ("--app", str(GALLERY / "painter.py"), "--apps-dir", str(GALLERY))
    prices = {"currency": "EUR", "gpus": {"cpu": {"count": 32, "price": PRICE_PER_HOUR}}}
    with start_system(tmp_path_factory.mktemp("together"), models, *app, more=prices) as system:
        yield system


@pytest.fixture(autouse=True)
async def wait_for_executors(together: System) -> None:
    """Wait until all executors are registered with the gateway before each test."""
    await together.whole()
    await together.becomes_ready()
