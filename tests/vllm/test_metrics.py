"""What vLLM tells Prometheus leaves with an executor's own metrics, and panels and alerts of it ask for no more."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests import observed
from tests.e2e.metrics.conftest import scraped
from tests.e2e.system import VL, System, declaration, running

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.e2e]

OPTIONS = {"EL": {"components": ["vision", "thinker"], "service": "llm", "engine": "services.engines:vllm"}}


@pytest.fixture
def system(tmp_path: Path, vl: Path) -> Iterator[System]:
    declared = declaration("qwen2_5_vl", vl, options=OPTIONS, paths=[{"options": ["EL"]}])
    with running(tmp_path, {VL: declared}, OMNIBUS_VLLM_KV_MIB="32") as system:
        yield system


async def test_panels_and_alerts_of_vllm_ask_only_for_what_it_emits(system: System) -> None:
    body = {"model": VL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
    async with httpx.AsyncClient(base_url=system.url, timeout=60) as http:
        assert (await http.post("/v1/chat/completions", json=body)).status_code == 200
    texts = await scraped(system)

    [text] = texts["llm"]
    emitted = observed.samples([text])
    assert observed.unanswered(observed.expressions(vllm=True), emitted) == []
    assert re.search(r"^vllm:generation_tokens_total\{.*\} 5\.0$", text, re.MULTILINE)
    assert text.count("# TYPE process_resident_memory_bytes") == 1
