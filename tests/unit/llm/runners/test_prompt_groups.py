"""Calls with the same prompt compute it once, with the same answers."""

import asyncio
from typing import Any

import pytest

from omnibus.errors import BadRequest
from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_models.contract import Thinker
from tests.unit.jobs import MemoryJob, run
from tests.unit.llm.runners.test_thinker import WORDS, alone, embedding, job, text

#: A prompt longer than its share of one step, with rows of an image.
LONG = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " ".join(WORDS * 6)}]}]


def choices(seeds: range, first_equal: int | None = 0, messages: object = LONG, **params: Any) -> list[MemoryJob]:
    asked = {"max_tokens": 8, "ignore_eos": True, "temperature": 1.0, **params}
    return [
        MemoryJob(
            {"messages": messages, "items": [embedding(1)] if messages is LONG else [], "params": asked},
            seed=seed,
            invocation="several",
            first_equal=first_equal,
        )
        for seed in seeds
    ]


def ids(one: MemoryJob) -> list[int]:
    return [id for item in one.outputs["text"].items for id in item.data.get("ids", ())]


@pytest.mark.numeric
async def test_eight_answers_to_one_prompt_are_those_of_eight_requests(runner: ThinkRunner) -> None:
    single = choices(range(8), first_equal=None)
    await asyncio.gather(*(run(runner, one) for one in single))
    assert runner.stats()["copied_prompts"] == 0

    together = choices(range(8))
    await asyncio.gather(*(run(runner, one) for one in together))

    assert [ids(one) for one in together] == [ids(one) for one in single]
    assert len({tuple(ids(one)) for one in together}) > 1, "each has random numbers of its own"
    assert runner.stats()["copied_prompts"] == 7
    assert (runner.stats()["used"], runner.stats()["waiting"]) == (0, 0)


async def test_a_prompt_that_fits_into_one_step_is_computed_once_as_well(runner: ThinkRunner) -> None:
    together = choices(range(4), messages=text(3))
    await asyncio.gather(*(run(runner, one) for one in together))

    assert runner.stats()["copied_prompts"] == 3


async def test_members_that_leave_or_fail_leave_the_prompt_to_the_others(runner: ThinkRunner, thinker: Thinker) -> None:
    left, failed, *stay = [*choices(range(1), temperature=0.0), *choices(range(1), min_p=2.0),
                           *choices(range(3), temperature=0.0)]  # fmt: skip
    leaving = asyncio.create_task(run(runner, left))
    others = [asyncio.create_task(run(runner, one)) for one in stay]
    with pytest.raises(BadRequest, match="min_p"):
        await run(runner, failed)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    await asyncio.gather(*others)

    expected = alone(thinker, job(LONG, [embedding(1)], max_tokens=8))
    assert [ids(one) for one in stay] == [expected] * 3
    assert (runner.stats()["used"], runner.stats()["waiting"]) == (0, 0)


async def test_calls_with_other_tools_have_prompts_of_their_own(runner: ThinkRunner) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    together = [*choices(range(1), messages=text(3)), *choices(range(1), messages=text(3), tools=[tool])]
    await asyncio.gather(*(run(runner, one) for one in together))

    assert runner.stats()["copied_prompts"] == 0
