"""Quantised checkpoints that vLLM reads on a CPU answer as the weights that they stand for."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.oracles import language as oracle
from tests.unit.jobs import run
from tests.unit.llm.runners.test_thinker import job, text
from tests.vllm.conftest import IN_PROCESS, vllm
from tests.vllm.quantised import FORMATS, write_checkpoint

pytestmark = IN_PROCESS

#: Tokens of an answer that bfloat16, and activations of 8 bits, leave as they are; and questions where they do.
SAME_TOKENS = 6
QUESTIONS = {format: (5, 8) if format == "fp8" else (3, 5, 8) for format in FORMATS}


@pytest.mark.parametrize("format", FORMATS)
async def test_a_quantised_checkpoint_is_served_as_it_is(
    build: Callable[[str], Path], tmp_path: Path, format: str
) -> None:
    packed, rounded = write_checkpoint(build("qwen2"), tmp_path, FORMATS[format])

    async with vllm("qwen2", packed, batch=4, dtype="bfloat16") as runner:
        asked = [(text(number), job(text(number), max_tokens=SAME_TOKENS)) for number in QUESTIONS[format]]
        for _, one in asked:
            await run(runner, one)

    assert [one.ids for _, one in asked] == [oracle.answer(rounded, said, SAME_TOKENS)[0] for said, _ in asked]
