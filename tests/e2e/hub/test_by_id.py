"""A checkpoint with a hub id answers like one in a directory."""

from collections.abc import Iterator

import pytest

from omnibus.families import catalog
from omnibus_models import tiny
from tests.e2e.system import System, command_line, start_system
from tests.unit.checkpoints.hubs import Hub, serve_hub

pytestmark = pytest.mark.e2e

ID = "omnibus/tiny"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    checkpoint = tiny.build("qwen3", tmp_path_factory.mktemp("models") / "it")
    with serve_hub(Hub({ID: {path.name: path.read_bytes() for path in checkpoint.iterdir()}})) as new_hub:
        yield new_hub


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, hub: Hub) -> Iterator[System]:
    """Two models, and executors with permission to download."""
    path = tiny.build("qwen3", tmp_path_factory.mktemp("models") / "it")
    models = {
        name: catalog.model_declaration("qwen3", checkpoint) for name, checkpoint in (("path", str(path)), ("id", ID))
    }
    settings = {
        "OMNIBUS_EXECUTOR_DOWNLOAD": "1",
        "HF_ENDPOINT": hub.url,
        "HF_HUB_CACHE": str(tmp_path_factory.mktemp("hub")),
    }
    with start_system(tmp_path_factory.mktemp("system"), models, **settings) as system:
        yield system


async def ask_model(system: System, model: str) -> str | None:
    completion = await system.client().chat.completions.create(
        model=model, messages=[{"role": "user", "content": "hello"}], max_tokens=16, temperature=0
    )
    return completion.choices[0].message.content


async def test_both_say_the_same(system: System, hub: Hub):
    await system.becomes_ready()

    assert await ask_model(system, "id") == await ask_model(system, "path")
    assert hub.asked.count("model.safetensors") == 1


async def test_who_is_told_to_may_go_to_the_hub_and_nobody_else(system: System, hub: Hub):
    await system.becomes_ready()

    offline = {
        one.environ().get("HF_HUB_OFFLINE") for one in system.processes() if "omnibus_" in str(command_line(one))
    }
    assert offline == {"1"}
