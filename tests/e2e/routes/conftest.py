"""One system for all routes, with two gateways.

Models generate images, edit images, embed text, rank documents, and generate videos. One more hears and speaks, in five executors and
in one.
"""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import openai
import pytest

from omnibus.families import catalog
from omnibus_models import tiny
from tests.e2e.system import OMNI, System, declare_model, start_system

PAINTER, EDITOR, EMBEDDER, DIRECTOR = "qwen-image-tiny", "qwen-image-edit-tiny", "qwen2-tiny", "ltx2-tiny"
RERANKER = "cross-encoder-tiny"
#: A gateway that is silent for so many seconds loses the video that it makes.
LEASE = "3"


@pytest.fixture(scope="session")
def text_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen2", tmp_path_factory.mktemp("checkpoints") / "text")


@pytest.fixture(scope="session")
def rerank_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("cross_encoder", tmp_path_factory.mktemp("checkpoints") / "ranks")


@pytest.fixture(scope="package")
def system(
    tmp_path_factory: pytest.TempPathFactory,
    image_checkpoint: Path,
    edit_checkpoint: Path,
    omni_checkpoint: Path,
    text_checkpoint: Path,
    rerank_checkpoint: Path,
    ltx2_checkpoint: Path,
) -> Iterator[System]:
    painter, editor = declare_model("qwen_image", image_checkpoint), declare_model("qwen_image_edit", edit_checkpoint)
    models = {
        PAINTER: single_option(painter, "TDV"),
        EDITOR: single_option(editor, "M"),
        OMNI: declare_model("qwen2_5_omni", omni_checkpoint),
        EMBEDDER: catalog.embedding_declaration("qwen2", str(text_checkpoint)),
        RERANKER: declare_model("cross_encoder", rerank_checkpoint),
        DIRECTOR: single_option(declare_model("ltx2", ltx2_checkpoint), "M"),
    }
    with start_system(
        tmp_path_factory.mktemp("routes"), models, "--gateways", "2", OMNIBUS_GATEWAY_VIDEO_LEASE=LEASE
    ) as new_system:
        yield new_system


def single_option(deployment: dict, option: str) -> dict:
    """A deployment in one executor."""
    return {**deployment, "options": {option: deployment["options"][option]}, "paths": [{"options": [option]}]}


@pytest.fixture
async def client(system: System) -> AsyncIterator[openai.AsyncOpenAI]:
    await system.becomes_ready()
    async with system.client() as new_client:
        yield new_client


@pytest.fixture
async def other_client(system: System) -> AsyncIterator[openai.AsyncOpenAI]:
    """A client of the second gateway."""
    await system.becomes_ready()
    async with openai.AsyncOpenAI(
        base_url=f"{system.urls[1]}/v1", api_key="none", max_retries=0, timeout=60
    ) as new_client:
        yield new_client
