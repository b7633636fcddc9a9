"""Calls with the same prompt compute it once, with the same answers."""

import asyncio
from typing import Any

import pytest

from omnibus.errors import BadRequest
from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_models.contract import Thinker
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.llm.runners.test_thinker import WORDS, answer_alone, make_chat_job, make_embedding, make_text_chat

#: A prompt longer than its share of one step, with rows of an image.
LONG = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " ".join(WORDS * 6)}]}]


def make_choices(seeds: range, first_equal: int | None = 0, messages: object = LONG, **params: Any) -> list[MemoryJob]:
    all_params = {"max_tokens": 8, "ignore_eos": True, "temperature": 1.0, **params}
    return [
        MemoryJob(
            {"messages": messages, "items": [make_embedding(1)] if messages is LONG else [], "params": all_params},
            seed=seed,
            invocation="several",
            first_equal=first_equal,
        )
        for seed in seeds
    ]


def read_ids(one: MemoryJob) -> list[int]:
    return [id for item in one.outputs["text"].items for id in item.data.get("ids", ())]


@pytest.mark.numeric
async def test_eight_answers_to_one_prompt_are_those_of_eight_requests(runner: ThinkRunner) -> None:
    single = make_choices(range(8), first_equal=None)
    await asyncio.gather(*(finish_job(runner, one) for one in single))
    assert runner.stats()["copied_prompts"] == 0

    together = make_choices(range(8))
    await asyncio.gather(*(finish_job(runner, one) for one in together))

    assert [read_ids(one) for one in together] == [read_ids(one) for one in single]
    assert len({tuple(read_ids(one)) for one in together}) > 1, "each has random numbers of its own"
    assert runner.stats()["copied_prompts"] == 7
    assert (runner.stats()["used"], runner.stats()["waiting"]) == (0, 0)


async def test_a_prompt_that_fits_into_one_step_is_computed_once_as_well(runner: ThinkRunner) -> None:
    together = make_choices(range(4), messages=make_text_chat(3))
    await asyncio.gather(*(finish_job(runner, one) for one in together))

    assert runner.stats()["copied_prompts"] == 3


async def test_members_that_leave_or_fail_leave_the_prompt_to_the_others(runner: ThinkRunner, thinker: Thinker) -> None:
    left, failing_job, *stay = [*make_choices(range(1), temperature=0.0), *make_choices(range(1), min_p=2.0),
                           *make_choices(range(3), temperature=0.0)]  # fmt: skip
    leaving = asyncio.create_task(finish_job(runner, left))
    tasks = [asyncio.create_task(finish_job(runner, one)) for one in stay]
    with pytest.raises(BadRequest, match="min_p"):
        await finish_job(runner, failing_job)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    await asyncio.gather(*tasks)

    reference_ids = answer_alone(thinker, make_chat_job(LONG, [make_embedding(1)], max_tokens=8))
    assert [read_ids(one) for one in stay] == [reference_ids] * 3
    assert (runner.stats()["used"], runner.stats()["waiting"]) == (0, 0)


async def test_calls_with_other_tools_have_prompts_of_their_own(runner: ThinkRunner) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    together = [
        *make_choices(range(1), messages=make_text_chat(3)),
        *make_choices(range(1), messages=make_text_chat(3), tools=[tool]),
    ]
    await asyncio.gather(*(finish_job(runner, one) for one in together))

    assert runner.stats()["copied_prompts"] == 0
