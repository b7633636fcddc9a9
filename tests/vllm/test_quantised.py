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

#: Tokens of an answer, and how many questions are asked: those of the clearest answers, whose tokens bfloat16 and
#: activations of 8 bits leave as they are on any processor.
SAME_TOKENS, ASKED, TRIED = 6, 2, 12
#: Formats of 4 bits: without AVX-512 vLLM has no kernels for them on x86.
PACKED = {"gptq", "awq", "w4a16"}
HAS_KERNELS = platform.machine() != "x86_64" or torch.cpu._is_avx512_supported()


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

    chats = [make_text_chat(number) for number in range(TRIED)]
    chats.sort(key=lambda chat: -oracle.answer_margin(rounded_directory, chat, SAME_TOKENS))
    jobs = [make_chat_job(chat, max_tokens=SAME_TOKENS) for chat in chats[:ASKED]]

    async with start_vllm("qwen2", packed_directory, batch=4, dtype="bfloat16") as runner:
        for job in jobs:
            await finish_job(runner, job)

    answers = [oracle.generate_answer(rounded_directory, chat, SAME_TOKENS) for chat in chats[:ASKED]]
    assert [job.ids for job in jobs] == [ids for ids, _ in answers]
