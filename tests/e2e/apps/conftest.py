"""Two systems: gateways with apps of the tests' own and no model, and two models that share a vision encoder."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from omnibus_models import tiny
from tests.e2e.apps.estate import Estate
from tests.e2e.system import ROOT, VL, System, declaration, running

#: The model whose images ``VL`` encodes.
TWIN = "qwen2.5-vl-tiny-b"


@pytest.fixture(scope="package")
def land(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Estate]:
    """Two gateways without models, with uploads, and a directory of test apps."""
    directory = tmp_path_factory.mktemp("land")
    apps = directory / "apps"
    apps.mkdir()
    flags = ("--gateways", "2", "--apps-dir", str(apps))
    settings = {"OMNIBUS_GATEWAY_APP_UPLOADS": "1", "OMNIBUS_GATEWAY_APP_DRAIN": "12"}
    with running(directory, {}, *flags, **settings) as system:
        yield Estate(system, apps)


@pytest.fixture(scope="session")
def twin_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen2_5_vl", tmp_path_factory.mktemp("checkpoints") / "twin", llm_seed=1)


@pytest.fixture(scope="package")
def twins(tmp_path_factory: pytest.TempPathFactory, vl_checkpoint: Path, twin_checkpoint: Path) -> Iterator[Estate]:
    """Two models with the same encoder, not declared as shared.

    Every example is registered.
    """
    options = {
        "E": {"components": ["vision"], "service": "encoder"},
        "L": {"components": ["thinker"], "service": "llm"},
    }
    apart = {"options": options, "paths": [{"options": ["E", "L"]}]}
    models = {
        VL: declaration("qwen2_5_vl", vl_checkpoint, share_equal=True),
        TWIN: declaration("qwen2_5_vl", twin_checkpoint, share_equal=True, **apart),
    }
    examples = ROOT / "examples"
    flags = [flag for name in EXAMPLES for flag in ("--app", str(examples / f"{name}.py"))]
    uploads = {"OMNIBUS_GATEWAY_APP_UPLOADS": "1"}
    with running(tmp_path_factory.mktemp("twins"), models, "--apps-dir", str(examples), *flags, **uploads) as system:
        yield Estate(system, examples)


#: Every file of the directory but one, whose models ``tests.e2e.meaning`` runs.
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py") if path.stem != "drawing")


@pytest.fixture(autouse=True)
def no_app_is_left(request: pytest.FixtureRequest) -> None:
    """Remove the apps of failed tests once both gateways serve."""
    if "land" in request.fixturenames:
        asyncio.run(unregister_all(request.getfixturevalue("land")))


async def unregister_all(estate: Estate) -> None:
    await estate.system.becomes_ready()
    for app in (await estate.ask("GET", "/v1/apps")).json()["data"]:
        await estate.unregister(app["name"])
        await estate.everywhere(app["name"], 0)


@pytest.fixture
def system(land: Estate) -> System:
    return land.system
