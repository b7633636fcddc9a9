"""Quantised checkpoints that vLLM reads on a CPU answer like plain weights."""

import platform
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from omnibus.errors import Fatal
from tests.oracles import language as oracle
from tests.unit.jobs import finish_job
from tests.unit.llm.runners.test_thinker import make_chat_job, make_text_chat
from tests.vllm.conftest import IN_PROCESS, start_vllm
from tests.vllm.quantised import FORMATS, write_checkpoint

pytestmark = IN_PROCESS

#: Tokens of an answer that bfloat16, and activations of 8 bits, leave as they are; and questions where they do.
SAME_TOKENS = 6
QUESTIONS: dict[str, tuple[int, ...]] = {format: (5, 8) if format == "fp8" else (3, 5, 8) for format in FORMATS}
#: Formats of 4 bits: without AVX-512 vLLM has no kernels for them on x86.
PACKED = {"gptq", "awq", "w4a16"}
HAS_KERNELS = platform.machine() != "x86_64" or torch.cpu._is_avx512_supported()
if not HAS_KERNELS:
    QUESTIONS["w8a8"] = (6,)  # sums of 8 bits are less exact there


@pytest.mark.skipif(HAS_KERNELS, reason="this processor has AVX-512")
@pytest.mark.parametrize("format", sorted(PACKED))
async def test_a_format_without_kernels_is_refused_before_an_engine_starts(
    build: Callable[[str], Path], tmp_path: Path, format: str
) -> None:
    packed_directory, _ = write_checkpoint(build("qwen2"), tmp_path, FORMATS[format])

    with pytest.raises(Fatal, match=r"need AVX-512, .* use omnibus_engines:transformers"):
        async with start_vllm("qwen2", packed_directory, batch=4, dtype="bfloat16"):
            pass


@pytest.mark.parametrize("format", FORMATS if HAS_KERNELS else sorted({*FORMATS} - PACKED))
async def test_a_quantised_checkpoint_is_served_as_it_is(
    build: Callable[[str], Path], tmp_path: Path, format: str
) -> None:
    packed_directory, rounded_directory = write_checkpoint(build("qwen2"), tmp_path, FORMATS[format])

    async with start_vllm("qwen2", packed_directory, batch=4, dtype="bfloat16") as runner:
        requests = [
            (make_text_chat(number), make_chat_job(make_text_chat(number), max_tokens=SAME_TOKENS))
            for number in QUESTIONS[format]
        ]
        for _, one in requests:
            await finish_job(runner, one)

    assert [one.ids for _, one in requests] == [
        oracle.generate_answer(rounded_directory, messages, SAME_TOKENS)[0] for messages, _ in requests
    ]
