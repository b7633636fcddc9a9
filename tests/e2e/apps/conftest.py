"""Two systems: gateways with apps of the tests' own and no model, and two models that share a vision encoder."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from omnibus_models import tiny
from tests.e2e.apps.estate import AppSystem
from tests.e2e.system import ROOT, VL, System, declare_model, start_system

#: The model whose images ``VL`` encodes.
TWIN = "qwen2.5-vl-tiny-b"


@pytest.fixture(scope="package")
def app_system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AppSystem]:
    """Two gateways without models, with uploads, and a directory of test apps."""
    directory = tmp_path_factory.mktemp("land")
    apps = directory / "apps"
    apps.mkdir()
    flags = ("--gateways", "2", "--apps-dir", str(apps))
    settings = {"OMNIBUS_GATEWAY_APP_UPLOADS": "1", "OMNIBUS_GATEWAY_APP_DRAIN": "12"}
    with start_system(directory, {}, *flags, **settings) as system:
        yield AppSystem(system, apps)


@pytest.fixture(scope="session")
def twin_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen2_5_vl", tmp_path_factory.mktemp("checkpoints") / "twin", llm_seed=1)


@pytest.fixture(scope="package")
def twin_models(
    tmp_path_factory: pytest.TempPathFactory, vl_checkpoint: Path, twin_checkpoint: Path
) -> Iterator[AppSystem]:
    """Two models with the same encoder, not declared as shared.

    Every example is registered.
    """
    options = {
        "E": {"components": ["vision"], "service": "encoder"},
        "L": {"components": ["thinker"], "service": "llm"},
    }
    apart = {"options": options, "paths": [{"options": ["E", "L"]}]}
    models = {
        VL: declare_model("qwen2_5_vl", vl_checkpoint, share_equal=True),
        TWIN: declare_model("qwen2_5_vl", twin_checkpoint, share_equal=True, **apart),
    }
    examples = ROOT / "examples"
    flags = [flag for name in EXAMPLES for flag in ("--app", str(examples / f"{name}.py"))]
    uploads = {"OMNIBUS_GATEWAY_APP_UPLOADS": "1"}
    with start_system(
        tmp_path_factory.mktemp("twins"), models, "--apps-dir", str(examples), *flags, **uploads
    ) as system:
        yield AppSystem(system, examples)


#: Every file of the directory but one, whose models ``tests.e2e.meaning`` runs.
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py") if path.stem != "drawing")


@pytest.fixture(autouse=True)
def no_app_is_left(request: pytest.FixtureRequest) -> None:
    """Remove the apps of failed tests once both gateways serve."""
    if "land" in request.fixturenames:
        asyncio.run(unregister_all(request.getfixturevalue("app_system")))


async def unregister_all(estate: AppSystem) -> None:
    await estate.system.becomes_ready()
    for app in (await estate.ask("GET", "/v1/apps")).json()["data"]:
        await estate.unregister(app["name"])
        await estate.wait_for_version(app["name"], 0)


@pytest.fixture
def system(app_system: AppSystem) -> System:
    return app_system.system
