"""The tiny models that ``omnibus up`` declares by default, and on request."""

import json
from pathlib import Path

import msgspec
import pytest

from omnibus.errors import BadRequest
from omnibus.families import catalog
from omnibus.up.tiny_models import BUILDING, tiny_models
from omnibus_models import tiny
from omnibus_planner.declared import declarations_file
from tests.e2e import warm

VL, OMNI, IMAGE, TWIN = "qwen2.5-vl-tiny", "qwen2.5-omni-tiny", "qwen-image-tiny", "qwen2.5-vl-tiny-b"
GEMMAS = ("gemma3-tiny", "gemma3-tiny-b")


@pytest.fixture(autouse=True)
def warm_builders(monkeypatch: pytest.MonkeyPatch) -> None:
    warm.fork_modules(monkeypatch)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of checkpoints built once for these tests."""
    return tmp_path_factory.mktemp("cache")


async def test_a_twin_comes_with_the_model_it_shares_with(cache: Path):
    declarations = json.loads(await tiny_models([TWIN], cache))["models"]

    assert declarations == {
        VL: catalog.model_declaration("qwen2_5_vl", str(cache / "qwen2_5_vl")),
        TWIN: catalog.shared_encoder_declaration(TWIN, str(cache / TWIN)),
    }
    plans = declarations_file.build_static_plans(
        msgspec.convert(declarations, dict[str, declarations_file.DeclaredModel])
    )
    assert plans[TWIN].options[f"{VL}/E"].of == f"{VL}/E"


async def test_the_twins_checkpoint_differs_in_its_llm(cache: Path):
    reports: list[tuple[str, int, int]] = []
    await tiny_models([VL, TWIN], cache, lambda *report: reports.append(report))

    assert reports == [(BUILDING, count, 2) for count in (0, 1, 2)]
    markers = [json.loads((cache / name / tiny.MARKER).read_text()) for name in ("qwen2_5_vl", TWIN)]
    assert [marker.get("llm_seed") for marker in markers] == [None, 1]


async def test_checkpoints_that_are_there_are_used_as_they_are(cache: Path):
    await tiny_models([TWIN], cache)
    weights = [cache / name / "model.safetensors" for name in ("qwen2_5_vl", TWIN)]
    before = [path.stat().st_mtime_ns for path in weights]

    await tiny_models([TWIN], cache)

    assert [path.stat().st_mtime_ns for path in weights] == before


async def test_a_twin_may_be_another_size_behind_the_same_encoder(cache: Path):
    declarations = json.loads(await tiny_models([GEMMAS[1]], cache))["models"]

    configs = [json.loads((Path(declarations[name]["checkpoint"]) / "config.json").read_text()) for name in GEMMAS]
    sizes = [config["text_config"]["hidden_size"] for config in configs]
    assert sizes[0] < sizes[1]
    assert configs[0]["vision_config"] == configs[1]["vision_config"]
    assert declarations[GEMMAS[1]]["shares"] == {"vision": GEMMAS[0]}


async def test_twins_and_painters_run_only_when_they_are_asked_for(cache: Path):
    for name in ("qwen2_5_omni", "qwen_image"):
        tiny.build(name, cache / name)  # here, where torch is already imported, since the builder is not under test

    assert list(json.loads(await tiny_models(cache=cache))["models"]) == [VL, OMNI]
    assert list(json.loads(await tiny_models([OMNI], cache))["models"]) == [OMNI]
    assert json.loads(await tiny_models([IMAGE], cache))["models"] == {
        IMAGE: catalog.model_declaration("qwen_image", str(cache / "qwen_image"))
    }


async def test_a_model_that_is_not_there_is_refused_before_anything_is_built(tmp_path: Path):
    names = ", ".join(catalog.LOCAL)
    with pytest.raises(BadRequest, match=f"unknown tiny model gpt; there is {names}$"):
        await tiny_models([VL, "gpt"], tmp_path)

    assert list(tmp_path.iterdir()) == []
