"""One system with trained models and an embedding model, for third-party clients."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from omnibus.families import catalog
from omnibus_models import tiny, world
from tests.clients.features import declared_features
from tests.clients.traffic import ClientTraffic
from tests.e2e.system import System, declare_model, start_system

OMNI, PAINTER, EMBEDDER, SCRIPTED = "qwen2.5-omni-world", "qwen-image-world", "my-vectors", "assistant"
#: Answers that are interrupted must not be over before, however fast the machine is.
ENGINE = {"engine": "tests.clients.engines:waiting"}
#: Answers of the scripted model.
ANSWERS = Path(__file__).parent / "answers.json"


@pytest.fixture(scope="package")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    vectors = tiny.build("qwen2", tmp_path_factory.mktemp("checkpoints") / "qwen2")
    models = {
        OMNI: _only_option(declare_model("qwen2_5_omni", world.checkpoint_directory("qwen2_5_omni")), "M", ENGINE),
        PAINTER: {
            **_only_option(declare_model("qwen_image", world.checkpoint_directory("qwen_image")), "TDV", {}),
            "image_defaults": catalog.WORLD_IMAGE_DEFAULTS[PAINTER],
        },
        EMBEDDER: catalog.embedding_declaration("qwen2", str(vectors)),
        SCRIPTED: {
            "family": "qwen3",
            "checkpoint": str(ANSWERS),
            "options": {"L": {"components": ["thinker"], "service": "llm", "engine": "omnibus_engines:sim"}},
            "paths": [{"options": ["L"]}],
        },
    }
    with start_system(tmp_path_factory.mktemp("clients"), models) as clients_system:
        yield clients_system


@pytest.fixture
def traffic(system: System, request: pytest.FixtureRequest) -> Iterator[ClientTraffic]:
    """The relay of one test to the system. Its marker declares the features that the client uses."""
    with ClientTraffic(system.url) as client_traffic:
        yield client_traffic
    features = declared_features(request.node)
    assert features is None or not client_traffic.has_requests or client_traffic.list_features() == features


@pytest.fixture(scope="package")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with ``seen.png`` and ``heard.wav``."""
    from omnibus_models.world.__main__ import main

    directory = tmp_path_factory.mktemp("media")
    main(["make", str(directory)])
    return directory


def _only_option(declared: dict, option: str, more: dict) -> dict:
    """Copy of ``model`` with only one ``option``, extended by ``more``."""
    return {**declared, "options": {option: {**declared["options"][option], **more}}, "paths": [{"options": [option]}]}
