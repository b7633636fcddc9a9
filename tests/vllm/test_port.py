"""An architecture without a split family, directly at the port.

Its inputs are ids and its outputs tokens.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import torch

from omnibus.errors import Fatal
from omnibus_llm.vllm.protocol import Generation, Launch, Tokens
from omnibus_llm.vllm.v032.arguments import build_engine_arguments
from omnibus_llm.vllm.v032.engine import VllmEngineProcess
from omnibus_models import tiny, torchvision_cpu
from omnibus_models.contract import TokenSamplingParams
from omnibus_models.tiny import _chat_tokenizer, _qwen, _weights
from tests.vllm.conftest import IN_PROCESS

torchvision_cpu.install_operators()

pytestmark = IN_PROCESS

TOKENS = 16
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
DECODER = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}


def make_launch(checkpoint: Path) -> Launch:
    return Launch("thinker", checkpoint, "cpu", "float32", 4, 256, 64, 32 << 20, 0.9, 1, True, 1)


def make_generation(ids: Sequence[int]) -> Generation:
    sampling = TokenSamplingParams(max_tokens=TOKENS, ignore_eos=True)
    return Generation(str(ids), ids, (), None, None, None, sampling, frozenset())


def test_the_prefix_cache_is_left_out_where_it_is_not_wanted(tmp_path: Path) -> None:
    tiny.build("qwen2_5_vl", tmp_path)

    assert build_engine_arguments(make_launch(tmp_path)).enable_prefix_caching is None
    without = dataclasses.replace(make_launch(tmp_path), prefix_cache=False)
    assert build_engine_arguments(without).enable_prefix_caching is False


def test_blocks_of_a_prompt_are_shared_only_under_the_same_salt() -> None:
    from omnibus_llm.vllm.v032.inputs import engine_input  # imports vLLM, which not each environment has

    plain = make_generation([5, 6, 7])

    assert engine_input(plain).get("cache_salt") is None
    assert engine_input(dataclasses.replace(plain, cache_salt="apart"))["cache_salt"] == "apart"
    salts = {
        engine_input(dataclasses.replace(plain, spoken=True, cache_salt=salt))["cache_salt"] for salt in ("", "apart")
    }
    assert len(salts - {None, "apart"}) == 2  # blocks without rows are not for those who speak, nor another tenant's


async def test_sockets_are_closed_although_the_core_exits_while_it_is_killed(
    build: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    import psutil
    from vllm.v1.engine import utils as engine_utils

    def shut_down_late(processes: Sequence[Any], timeout: float | None = None) -> None:
        shut_down(processes, timeout=timeout)
        raise psutil.NoSuchProcess(processes[0].pid)

    shut_down = engine_utils.shutdown
    monkeypatch.setattr(engine_utils, "shutdown", shut_down_late)
    core = VllmEngineProcess(make_launch(build("qwen2")))
    await core.start()
    resources = core._llm.engine_core.resources
    await core.stop()
    await asyncio.sleep(0)  # sockets are closed by the loop that reads them

    assert resources.input_socket.closed
    assert resources.output_socket.closed


async def generate_answer(core: VllmEngineProcess, generation: Generation) -> list[int]:
    async with aclosing(core.generate(generation)) as stream:
        return [token async for tokens in stream for token in tokens.ids]


async def deliver_answer(core: VllmEngineProcess, generation: Generation, tasks: set[object]) -> list[int]:
    token_ids: list[int] = []

    def consume_tokens(tokens: Tokens) -> bool:
        tasks.add(asyncio.current_task())
        token_ids.extend(tokens.ids)
        return False

    await core.deliver(generation, consume_tokens)
    return token_ids


async def fail_or_stop(core: VllmEngineProcess, ids: Sequence[int]) -> None:
    """Send one request with unusable tokens, and one that ends: both must stop."""

    def raise_error(_: Tokens) -> bool:
        raise ValueError("of no use")

    with pytest.raises(ValueError, match="of no use"):
        await core.deliver(make_generation(ids), raise_error)
    batches: list[Tokens] = []

    def stop_after_one(tokens: Tokens) -> bool:
        batches.append(tokens)
        return True

    await core.deliver(make_generation(ids), stop_after_one)
    assert [len(tokens.ids) for tokens in batches] == [1]
    assert core._llm.output_processor.get_num_unfinished_requests() == 0


@torch.no_grad()
def generate_greedy(model: Any, ids: Sequence[int]) -> list[int]:
    prompt = torch.tensor([list(ids)])
    out = model.generate(
        input_ids=prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=TOKENS,
        min_new_tokens=TOKENS,
        do_sample=False,
    )
    return out[0, len(ids) :].tolist()


async def test_qwen3_text(tmp_path: Path) -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = _chat_tokenizer.train_tokenizer(SPECIAL, {}, _chat_tokenizer.build_chat_template())
    model = Qwen3ForCausalLM(
        Qwen3Config(**DECODER, vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id)
    ).eval()
    _weights.redraw_weights(model, 0)
    _qwen.set_greedy(model.generation_config, tokenizer)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    prompts = [list(range(20 + n, 24 + 9 * n)) for n in range(6)]

    core = VllmEngineProcess(make_launch(tmp_path))
    try:
        await core.start()
        answers = await asyncio.gather(*(generate_answer(core, make_generation(ids)) for ids in prompts))
        tasks: set[object] = set()
        delivered_answers = await asyncio.gather(
            *(deliver_answer(core, make_generation(ids), tasks) for ids in prompts)
        )
        await fail_or_stop(core, prompts[0])
    finally:
        await core.stop()

    assert answers == delivered_answers == [generate_greedy(model, ids) for ids in prompts]
    assert len(tasks) == 1  # that which reads from the engine core: none is woken for a token


async def test_heads_that_the_kernels_do_not_take_are_named_before_the_start(tmp_path: Path) -> None:
    core = VllmEngineProcess(make_launch(tiny.build("qwen2_5_vl", tmp_path / "narrow")))

    with pytest.raises(Fatal, match="heads of 16"):
        await core.start()
    await core.stop()
