"""Goals set vLLM's prompt tokens per step and the order of prompts.

They never change the answers.
"""

import asyncio
from pathlib import Path

from omnibus.spare_places import count_spare_places
from omnibus_llm.vllm.runner import VllmRunner
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.llm.runners.test_thinker import make_chat_job
from tests.vllm.conftest import IN_PROCESS, start_vllm

pytestmark = IN_PROCESS


def make_story(words: int) -> list[dict[str, object]]:
    return [{"role": "user", "content": " ".join(["the cat sleeps"] * words)}]


async def answer_all(runner: VllmRunner, count: int = 4) -> list[list[int]]:
    jobs = [make_chat_job(make_story(5 * (1 + number)), max_tokens=8) for number in range(count)]
    await asyncio.gather(*(finish_job(runner, one) for one in jobs))
    return [one.ids for one in jobs]


async def tokens_meanwhile(runner: VllmRunner) -> tuple[int, int]:
    """Tokens that an answer gets before a long prompt's first token.

    The count starts when the prompt arrives. Also returns the prompt's tokens.
    """
    first, long = (
        make_chat_job([{"role": "user", "content": "hi"}], max_tokens=200, ignore_eos=True),
        make_chat_job(make_story(60), max_tokens=2),
    )
    running = [asyncio.create_task(finish_job(runner, first))]
    await first.outputs["text"].until(1)
    before = len(first.ids)
    running.append(asyncio.create_task(finish_job(runner, long)))
    await long.outputs["text"].until(1)
    meanwhile = len(first.ids) - before
    await asyncio.gather(*running)
    return meanwhile, int(long.end("text")["usage"]["prompt_tokens"])


async def test_a_step_has_few_tokens_of_a_prompt_when_the_goal_is_tight_and_answers_stay_the_same(vl: Path) -> None:
    async with start_vllm("qwen2_5_vl", vl, batch=4, threads=1) as free:
        reference = await answer_all(free)
        few, length = await tokens_meanwhile(free)
        for _ in range(4):  # tokens that come while the prompt is on its way to the engine are counted too
            few = min(few, (await tokens_meanwhile(free))[0]) if few > length // 64 + 2 else few
    async with start_vllm("qwen2_5_vl", vl, batch=4, threads=1, ttft=1e-6, tbt=1e-6) as bound:
        results = await answer_all(bound)
        many, _ = await tokens_meanwhile(bound)

    assert results == reference
    # 64 tokens of the prompt with every token of the other answer, or 16.
    assert many >= length // 16 - 4 > length // 64 + 2 >= few


async def test_short_prompts_overtake_long_ones(vl: Path) -> None:
    async with start_vllm("qwen2_5_vl", vl, batch=1, threads=1, ttft=600.0) as runner:
        order: list[str] = []

        async def send_job(name: str, request: MemoryJob) -> None:
            await finish_job(runner, request)
            order.append(name)

        messages = [{"role": "user", "content": "hi"}]
        busy = [
            make_chat_job(messages, max_tokens=tokens, ignore_eos=True)
            for tokens in (100, *[300] * count_spare_places(1))
        ]
        running = [asyncio.create_task(send_job("busy", each)) for each in busy]
        for each in busy:
            await each.outputs["text"].until(1)
        running.append(asyncio.create_task(send_job("long", make_chat_job(make_story(60), max_tokens=2))))
        async with asyncio.timeout(60):
            while not runner.stats()["waiting"]:
                await asyncio.sleep(0.01)
        running.append(asyncio.create_task(send_job("short", make_chat_job(make_story(1), max_tokens=2))))
        await asyncio.gather(*running)

    assert [name for name in order if name != "busy"] == ["short", "long"]
    assert order[0] == "busy"
