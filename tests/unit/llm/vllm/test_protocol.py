"""An engine that chooses every token itself says so, rather than something else than it was given."""

from pathlib import Path
from typing import Any

import pytest

from omnibus.errors import BadRequest
from services.llm.vllm.model import VllmCore
from services.llm.vllm.protocol import Launch
from tests.unit.jobs import MemoryJob


def never(launch: Launch) -> Any:
    raise AssertionError("no engine is needed to refuse")


async def test_a_given_answer_is_refused():
    launch = Launch("thinker", Path(), "cpu", "float32", 4, 512, 64, 1 << 20, 0.9, 1, True, 1)
    core = VllmCore("qwen2_5_vl", launch, never)

    with pytest.raises(BadRequest, match="chooses every token itself") as refused:
        await core.read_request(
            MemoryJob({"messages": [{"role": "user", "content": "hi"}], "params": {"say": "hello"}})
        )

    assert refused.value.param == "say"
