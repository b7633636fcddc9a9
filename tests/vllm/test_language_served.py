"""The whole system with language models that take text alone in vLLM: one whole, one in halves."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from omnibus.families import catalog
from omnibus_models import tiny
from tests.e2e.questions import ask, image
from tests.e2e.shapes.test_shapes import said
from tests.e2e.system import System, declaration, running
from tests.oracles import language as oracle

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.e2e]

TOKENS = 24
WORDS = ["hello world, how are you today?", "the small cat sleeps on a warm red mat " * 30]
WAYS = [
    pytest.param(family, shape, marks=pytest.mark.cell("vllm", family, "tokens", shape=shape))
    for family, shape in (("qwen2", "L"), ("qwen3", "P>D"), ("qwen3", "PD"))
]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("models")
    return {family: tiny.build(family, directory / family, wide=True) for family in ("qwen2", "qwen3")}


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, checkpoints: dict[str, Path]) -> Iterator[System]:
    models: dict[str, Any] = {
        "qwen2": declaration("qwen2", checkpoints["qwen2"]),
        "qwen3": catalog.split_declaration("qwen3", str(checkpoints["qwen3"]), "P>D", "PD"),
    }
    for model in models.values():
        options = model["options"].items()
        model["options"] = {name: {**option, "engine": "services.engines:vllm"} for name, option in options}
    with running(tmp_path_factory.mktemp("language"), models, OMNIBUS_VLLM_KV_MIB="32") as system:
        yield system


@pytest.fixture(autouse=True)
async def everybody(system: System) -> AsyncIterator[None]:
    await system.whole()
    await system.becomes_ready()
    yield
    await system.ledger_is_empty(5.0)


@pytest.mark.parametrize(("family", "way"), WAYS)
async def test_ids_and_text_are_those_of_the_whole_model(
    system: System, checkpoints: dict[str, Path], family: str, way: str
) -> None:
    for words in WORDS:
        ids, text = oracle.answer(checkpoints[family], [{"role": "user", "content": words}], TOKENS)

        answer = await said(system, ask(words), way, model=family)

        assert answer == (text, ids)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
async def test_pictures_are_refused(system: System, family: str) -> None:
    body = {"model": family, "messages": ask(image(1), "describe").messages}

    async with system.http() as http:
        refused = await http.post("/v1/chat/completions", json=body)

    assert refused.status_code == 400
    assert "text only" in refused.json()["error"]["message"]
