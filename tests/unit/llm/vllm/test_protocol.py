"""An engine that chooses every token itself rejects given answers."""

from pathlib import Path
from typing import Any

import pytest

from omnibus.errors import BadRequest
from omnibus.executor.settings import ExecutorSettings
from omnibus_engines import registry as engines
from omnibus_llm.vllm.model import VllmCore
from omnibus_llm.vllm.protocol import Launch
from tests.unit.jobs import MemoryJob


def refuse_engine(launch: Launch) -> Any:
    raise AssertionError("no engine is needed to refuse")


async def test_a_given_answer_is_refused():
    launch = Launch("thinker", Path(), "cpu", "float32", 4, 512, 64, 1 << 20, 0.9, 1, True, 1)
    core = VllmCore("qwen2_5_vl", launch, refuse_engine)

    with pytest.raises(BadRequest, match="`say` needs the transformers engine") as error:
        await core.read_request(
            MemoryJob({"messages": [{"role": "user", "content": "hi"}], "params": {"say": "hello"}})
        )

    assert error.value.param == "say"


@pytest.mark.parametrize(
    ("component", "goals", "settings"),
    [
        ("prefill", {}, {"SPECULATIVE_TOKENS": "2"}),
        ("thinker", {"tbt": 0.1}, {"SPECULATIVE_TOKENS": "2"}),
        ("thinker", {}, {"SPECULATIVE_MODEL": "/small"}),
        ("decode", {}, {"PIPELINE_PARALLEL": "2"}),
        ("thinker", {"ttft": 1.0}, {"PIPELINE_PARALLEL": "2"}),
        ("thinker", {}, {"PIPELINE_PARALLEL": "2", "SPECULATIVE_TOKENS": "2"}),
    ],
)
def test_settings_that_do_not_go_together_are_refused_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, component: str, goals: dict[str, float], settings: dict[str, str]
):
    for name, value in settings.items():
        monkeypatch.setenv(f"OMNIBUS_VLLM_{name}", value)

    with pytest.raises(BadRequest, match=f"set OMNIBUS_VLLM_({'|'.join(settings)}|SPECULATIVE_TOKENS)"):
        engines.vllm(component, ExecutorSettings(family="qwen2", checkpoint="/m", **goals))
