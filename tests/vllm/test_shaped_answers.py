"""Shaped answers in vLLM equal those of transformers, token by token."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import pytest_asyncio

from omnibus.errors import BadRequest
from omnibus_llm.engine.params import TextGenerationParams
from omnibus_llm.runners.answer_parser import answer_grammar
from omnibus_llm.vllm.runner import VllmRunner
from tests.oracles import shaped
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.llm.runners.test_shaped_answers import CHAT, TOOL_CALL, TOOLS, make_job, read_calls
from tests.vllm.conftest import IN_PROCESS, start_vllm
from tests.vllm.halves import start_three

pytestmark = [*IN_PROCESS, pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(scope="module")
def checkpoint(build: Callable[[str], Path]) -> Path:
    return build("qwen3")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runner(checkpoint: Path) -> AsyncIterator[VllmRunner]:
    async with start_vllm("qwen3", checkpoint, batch=8) as new_runner:
        yield new_runner


async def test_answers_are_those_of_generate(runner: VllmRunner, checkpoint: Path) -> None:
    jobs = {name: make_job(**params) for name, params in shaped.CASES.items()}

    for each in jobs.values():  # alone: who else is in a step changes its rounding, and some tokens are nearly tied
        await finish_job(runner, each)

    for name, params in shaped.CASES.items():
        grammar = answer_grammar(runner._core.reader, TextGenerationParams(**params)) or ""
        reference = shaped.generate_answer(checkpoint, CHAT, 48, params, grammar)
        assert (jobs[name].ids, jobs[name].text) == reference, name


async def test_forced_calls_hold_to_their_schemas_whoever_is_beside_them(runner: VllmRunner) -> None:
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
    jobs = [make_job(temperature=1.0, seed=seed, **TOOL_CALL) for seed in range(24)]
    clock_jobs = [make_job(temperature=1.0, seed=seed, **TOOL_CALL, allowed_tools=["clock"]) for seed in range(8)]

    await asyncio.gather(*(finish_job(runner, each) for each in (*jobs, *clock_jobs)))

    for each in (*jobs, *clock_jobs):
        [(name, arguments)] = read_calls(each)
        jsonschema.validate(arguments, schemas[name])
    assert {name for each in clock_jobs for name, _ in read_calls(each)} == {"clock"}


async def test_probabilities_are_those_of_the_model(runner: VllmRunner, checkpoint: Path) -> None:
    request = make_job(logprobs=3, max_tokens=10)

    await finish_job(runner, request)

    entries = [
        each for item in request.outputs["text"].items for each in item.data.get("logprobs", {}).get("tokens", [])
    ]
    reference = shaped.compute_logprobs(checkpoint, CHAT, request.ids)
    assert "".join(text for text, _, _ in entries) == request.text
    for row, id, (_, own, best) in zip(reference, request.ids, entries, strict=True):
        assert own == pytest.approx(float(row[id]), abs=1e-3)
        assert [value for _, value in best] == pytest.approx(row.topk(3).values.tolist(), abs=1e-3)


async def test_an_answer_begins_again_where_it_goes_by_its_tokens(runner: VllmRunner) -> None:
    params: dict[str, Any] = {"structured_outputs": {"json": shaped.CITY}}
    whole = make_job(**params)
    await finish_job(runner, whole)
    again = MemoryJob(whole._inputs, resumes={"text": {"ids": whole.ids[:7]}})

    await finish_job(runner, again)

    assert (again.ids, json.loads(again.text)) == (whole.ids, json.loads(whole.text))


async def test_a_schema_that_cannot_be_used_is_refused_and_nobody_else_notices(runner: VllmRunner) -> None:
    with pytest.raises(BadRequest, match="cannot be used"):
        await finish_job(runner, make_job(structured_outputs={"json": {"type": "string", "pattern": "(?=a)"}}))

    answer = make_job(max_tokens=4)
    await finish_job(runner, answer)
    assert len(answer.ids) == 4


async def test_halves_apart_refuse_what_goes_by_all_tokens_and_together_they_obey(checkpoint: Path) -> None:
    async with start_three("qwen3", checkpoint) as engines:
        request = make_job(structured_outputs={"json": shaped.CITY})
        with pytest.raises(BadRequest, match="vLLM halves on two executors"):
            await engines.halves(near=False).answer(make_job(structured_outputs={"json": shaped.CITY}))
        answer = await engines.halves(near=True).answer(request)
    jsonschema.validate(json.loads(answer.text), shaped.CITY)
