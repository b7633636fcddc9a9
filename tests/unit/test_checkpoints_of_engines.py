"""Engines load the cached directory of a hub id, and download nothing."""

import os
from pathlib import Path

import huggingface_hub.constants
import pytest

from omnibus.errors import NotFound
from omnibus.executor.service import ExecutorService
from omnibus.executor.settings import ExecutorSettings
from omnibus.settings import read_settings
from omnibus_engines import registry as engines
from omnibus_models import tiny
from tests.unit.checkpoints.hubs import Hub, cache_checkpoint, serve_hub

COMPONENTS = ("vision", "audio", "thinker", "prefill", "decode", "talker", "vocoder", "text_encoder", "dit", "vae")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def make_settings(component: str, family: str = "qwen2_5_omni") -> ExecutorSettings:
    return ExecutorSettings(model="m", family=family, checkpoint="o/tiny", components=component, threads=1)


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_checkpoint_that_is_not_in_the_cache_is_not_found(component: str, cache: Path):
    family = "qwen_image" if component in ("text_encoder", "dit", "vae") else "qwen2_5_omni"

    with pytest.raises(NotFound, match="download it with `omnibus models get o/tiny`, or set"):
        engines.transformers(component, make_settings(component, family))


async def test_a_checkpoint_of_the_cache_is_loaded(cache: Path, tmp_path: Path):
    cache_checkpoint(cache, "o/tiny", tiny.build("qwen3", tmp_path / "it"))

    runner = engines.transformers("thinker", make_settings("thinker", "qwen3"))
    await runner.load()

    assert runner.stats()["parameters"] > 0
    await runner.close()

    second_runner = engines.transformers("thinker", make_settings("thinker", "qwen3"))
    await second_runner.load()  # something may still refer to the first one, which is closed
    await second_runner.close()


async def test_an_executor_downloads_when_it_may_before_it_does_anything_else(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with serve_hub(Hub({"o/tiny": {"config.json": b"{}", "model.safetensors": b"weights"}})) as hub:
        environment = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(cache), "OMNIBUS_EXECUTOR_DOWNLOAD": "1"}
        environment |= {"OMNIBUS_EXECUTOR_CHECKPOINT": "o/tiny", "OMNIBUS_EXECUTOR_MODEL": "m"}
        for name, value in {**environment, "OMNIBUS_EXECUTOR_COMPONENTS": "none"}.items():
            monkeypatch.setenv(name, value)
        service = ExecutorService(read_settings(ExecutorSettings))

        await service.fetch_checkpoint()

    assert sorted(hub.asked) == ["config.json", "model.safetensors"]
    assert [path.name for path in cache.iterdir() if path.is_dir() and path.name.startswith("models")] == [
        "models--o--tiny"
    ]


@pytest.mark.parametrize(("download", "checkpoint"), [(False, "o/tiny"), (True, "/models/tiny"), (True, "[]")])
async def test_an_executor_downloads_nothing_else(download: bool, checkpoint: str, cache: Path):
    service = ExecutorService(ExecutorSettings(checkpoint=checkpoint, download=download))

    await service.fetch_checkpoint()

    assert not cache.exists() or os.listdir(cache) == []
