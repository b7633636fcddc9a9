"""Hugging Face Hub ids: found in the cache, and downloaded only on request."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest

from omnibus import checkpoints
from omnibus.errors import BadRequest, Forbidden, HubUnavailable, NotFound
from omnibus.process import run_module
from tests.unit.checkpoints.hubs import Hub, cache_checkpoint, serve_hub

MODEL = {
    "config.json": b"{}",
    "tokenizer.json": b'{"a": 1}',
    "model.safetensors": b"weights",
    "pytorch_model.bin": b"pickled",
    "modeling.py": b"code",
    "original/consolidated.safetensors": b"twice",
}
SHARDED = {
    "config.json": b"{}",
    "model.safetensors.index.json": json.dumps(
        {"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}
    ).encode(),
    "m-1.safetensors": b"one",
    "m-2.safetensors": b"two",
    "consolidated.safetensors": b"twice",
}
PIPELINE = {
    "model_index.json": json.dumps({"_class_name": "P", "vae": ["diffusers", "V"], "none": [None, None]}).encode(),
    "vae/config.json": b"{}",
    "vae/diffusion_pytorch_model.safetensors": b"vae",
    "vae/diffusion_pytorch_model.fp16.safetensors": b"half",
    "everything.safetensors": b"twice",
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache, empty."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    repositories = {"o/model": MODEL, "o/sharded": SHARDED, "o/pipeline": PIPELINE, "o/gated": MODEL}
    with serve_hub(Hub(repositories, gated=("o/gated",))) as running_hub:
        yield running_hub


async def download_checkpoint(id: str, hub: Hub, cache: Path) -> Path:
    hub.asked.clear()
    env = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1"}
    return Path(await run_module.call_module("omnibus.checkpoints", id, within=60, env=env))


@pytest.mark.parametrize("text", ["Qwen/Qwen2.5-VL-7B-Instruct", "a/b_c", "org.x/y@main", "o/m@refs/pr/1"])
def test_an_id_has_an_owner_a_name_and_perhaps_a_revision(text: str):
    assert checkpoints.is_id(text)


@pytest.mark.parametrize("text", ["", "qwen", "/models/qwen", "./a/b", "../b", "a/b/c", "a b/c", "a/b@", "[1]", "~/a"])
def test_a_path_is_no_id(text: str):
    assert not checkpoints.is_id(text)


def test_a_directory_that_is_there_is_no_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "models" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)

    assert not checkpoints.is_id("models/mine")
    assert checkpoints.find_checkpoint("models/mine") == Path("models/mine")


def test_an_id_stands_for_its_directory_in_the_cache(cache: Path, tmp_path: Path):
    (tmp_path / "it").mkdir()
    (tmp_path / "it" / "config.json").write_text("{}")
    snapshot = cache_checkpoint(cache, "o/model", tmp_path / "it")

    assert (
        checkpoints.find_checkpoint("o/model")
        == checkpoints.find_checkpoint("o/model@main")
        == checkpoints.resolve_checkpoint("o/model")
        == snapshot
    )


def test_an_id_that_the_cache_does_not_have_says_what_to_do(cache: Path):
    for id in ("o/model", "o/model@v2"):
        with pytest.raises(NotFound, match=f"download it with `omnibus models get {id}`"):
            checkpoints.resolve_checkpoint(id)


@pytest.mark.parametrize("text", ["", "/none/here", "./none"])
def test_a_path_that_is_not_there_is_not_found(text: str):
    with pytest.raises(NotFound, match="is not a directory of a checkpoint, nor a GGUF file, nor an id"):
        checkpoints.find_checkpoint(text)
    assert checkpoints.resolve_checkpoint(text) == Path(text)


@pytest.mark.parametrize(
    ("id", "files"),
    [
        ("o/model", {"config.json", "tokenizer.json", "model.safetensors"}),
        ("o/sharded", {"config.json", "model.safetensors.index.json", "m-1.safetensors", "m-2.safetensors"}),
        ("o/pipeline", {"model_index.json", "vae/config.json", "vae/diffusion_pytorch_model.safetensors"}),
    ],
)
async def test_what_a_checkpoint_needs_is_downloaded_and_nothing_else(id: str, files: set[str], hub: Hub, cache: Path):
    directory = await download_checkpoint(id, hub, cache)

    assert (
        {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()} == files == {*hub.asked}
    )
    assert checkpoints.find_checkpoint(id) == directory


async def test_what_is_there_is_not_downloaded_again(hub: Hub, cache: Path):
    first = await download_checkpoint("o/model@main", hub, cache)

    assert await download_checkpoint("o/model@main", hub, cache) == first
    assert hub.asked == []


@pytest.mark.parametrize(
    ("id", "error", "reason"),
    [
        ("o/none", NotFound, "the Hugging Face hub has no o/none; if it is private, set HF_TOKEN"),
        ("o/gated", Forbidden, "access to o/gated is restricted: accept its terms"),
        ("/o/model", BadRequest, "/o/model is not an id of the Hugging Face hub"),
    ],
)
async def test_what_the_hub_does_not_give_is_said(id: str, error: type[Exception], reason: str, hub: Hub, cache: Path):
    with pytest.raises(error, match=reason):
        await download_checkpoint(id, hub, cache)


async def test_a_hub_that_cannot_be_reached_is_said(cache: Path):
    env = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "0"}

    with pytest.raises(HubUnavailable, match="o/model was not downloaded: "):
        await run_module.call_module("omnibus.checkpoints", "o/model", within=60, env=env)


async def test_who_is_offline_downloads_nothing(hub: Hub, cache: Path):
    env = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    hub.asked.clear()

    with pytest.raises(HubUnavailable):
        await run_module.call_module("omnibus.checkpoints", "o/model", within=60, env=env)

    assert hub.asked == []
    assert os.listdir(cache) == [] if cache.exists() else True
