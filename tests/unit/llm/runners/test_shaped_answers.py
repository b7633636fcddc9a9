"""Shaped answers: grammars, biases, penalties, and their reported probabilities."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from omnibus.errors import BadRequest
from omnibus.structured.calls import split_calls
from omnibus_llm.engine.model import ThinkerCore, ThinkSettings
from omnibus_llm.engine.params import TextGenerationParams
from omnibus_llm.runners.answer_parser import answer_grammar
from omnibus_llm.runners.prefill_decode import DecodeRunner, PrefillRunner
from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_models import tiny
from tests.oracles import shaped
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.llm.halves import Halves

CHAT = [{"role": "user", "content": "the small white cat"}]
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "parameters": shaped.CITY}},
    {
        "type": "function",
        "function": {
            "name": "clock",
            "parameters": {
                "type": "object",
                "properties": {"zone": {"enum": ["utc", "cet"]}},
                "required": ["zone"],
                "additionalProperties": False,
            },
        },
    },
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen3", tmp_path_factory.mktemp("models") / "qwen3")


@pytest.fixture
async def runner(checkpoint: Path) -> AsyncIterator[ThinkRunner]:
    think_runner = ThinkRunner(make_core(checkpoint))
    await think_runner.load()
    yield think_runner
    await think_runner.close()


def make_core(checkpoint: Path) -> ThinkerCore:
    return ThinkerCore("qwen3", checkpoint, "cpu", "float32", ThinkSettings(slots=6, context=1024, share=128))


def make_job(**params: Any) -> MemoryJob:
    return MemoryJob({"messages": CHAT, "params": {"max_tokens": 48, **params}})


def grammar_of(runner: ThinkRunner, params: dict[str, Any]) -> str:
    return answer_grammar(runner._core.thinker, TextGenerationParams(**params)) or ""


def read_calls(job: MemoryJob) -> list[tuple[str, Any]]:
    text = "".join(item.data.get("calls", "") for item in job.outputs["text"].items)
    return [(name, json.loads(arguments)) for name, arguments in split_calls(text)]


async def test_answers_are_those_of_generate(runner: ThinkRunner, checkpoint: Path) -> None:
    jobs = {name: make_job(**params) for name, params in shaped.CASES.items()}

    await asyncio.gather(*(finish_job(runner, each) for each in jobs.values()))  # more than there are slots

    for name, params in shaped.CASES.items():
        reference = shaped.generate_answer(checkpoint, CHAT, 48, params, grammar_of(runner, params))
        assert (jobs[name].ids, jobs[name].text) == reference, name
    assert jsonschema.validate(json.loads(jobs["schema"].text), shaped.CITY) is None


@pytest.mark.parametrize("near", [False, True], ids=["apart", "together"])
async def test_halves_answer_as_a_whole_one(runner: ThinkRunner, checkpoint: Path, near: bool) -> None:
    first = make_core(checkpoint)
    halves = Halves(PrefillRunner(first), DecodeRunner(first if near else make_core(checkpoint)), near)
    await halves.prefill.load()
    await halves.decode.load()
    for params in (*shaped.CASES.values(), {"logprobs": 2, "structured_outputs": {"json": shaped.CITY}}):
        whole = make_job(**params)
        await finish_job(runner, whole)

        answer = await halves.answer(make_job(**params))

        assert answer.ids == whole.ids, params
        assert _read_logprobs(answer) == _read_logprobs(whole)
    await halves.prefill.close()
    await halves.decode.close()


def _read_logprobs(job: MemoryJob) -> list[tuple[int, str, float]]:
    """Return numbers, texts and rounded logarithms of all tokens."""
    logprobs = [item.data["logprobs"] for item in job.outputs["text"].items if "logprobs" in item.data]
    return [
        (each["at"] + number, token[0], round(token[1], 3))
        for each in logprobs
        for number, token in enumerate(each["tokens"])
    ]


@pytest.mark.parametrize("cut", [1, 7, 20])
async def test_an_answer_goes_on_behind_tokens_that_are_known(runner: ThinkRunner, cut: int) -> None:
    for params in ({"structured_outputs": {"json": shaped.CITY}}, {"frequency_penalty": 1.5}, TOOL_CALL):
        whole = make_job(temperature=1.0, **params)
        await finish_job(runner, whole)
        again = MemoryJob(whole._inputs, resumes={"text": {"ids": whole.ids[:cut]}})

        await finish_job(runner, again)

        assert again.ids == whole.ids
        assert again.text == whole.text
        assert read_calls(again) == read_calls(whole)


TOOL_CALL = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 160}


async def test_forced_calls_hold_to_their_schemas_whoever_is_beside_them(runner: ThinkRunner) -> None:
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
    jobs = [make_job(temperature=1.0, seed=seed, **TOOL_CALL) for seed in range(24)]
    plain = [make_job(temperature=1.0, seed=seed) for seed in range(8)]
    clock_jobs = [make_job(temperature=1.0, seed=seed, **TOOL_CALL, allowed_tools=["clock"]) for seed in range(8)]

    await asyncio.gather(*(finish_job(runner, each) for each in (*jobs, *plain, *clock_jobs)))

    for each in (*jobs, *clock_jobs):
        [(name, arguments)] = read_calls(each)
        jsonschema.validate(arguments, schemas[name])
        assert each.text == ""
    assert {name for each in jobs for name, _ in read_calls(each)} == {"weather", "clock"}
    assert {name for each in clock_jobs for name, _ in read_calls(each)} == {"clock"}
    alone = [make_job(temperature=1.0, seed=seed) for seed in range(8)]
    for each in alone:
        await finish_job(runner, each)
    assert [each.ids for each in plain] == [each.ids for each in alone]


async def test_a_call_that_a_model_writes_by_itself_is_found(runner: ThinkRunner) -> None:
    answer = 'let me see.\n<tool_call>\n{"name": "clock", "arguments": {"zone": "utc"}}\n</tool_call>'
    tool_job, plain = make_job(say=answer, tools=TOOLS), make_job(say=answer)

    await asyncio.gather(finish_job(runner, tool_job), finish_job(runner, plain))

    assert (tool_job.text, read_calls(tool_job)) == ("let me see.", [("clock", {"zone": "utc"})])
    assert (plain.text, read_calls(plain)) == (answer, [])


async def test_probabilities_are_those_of_the_model(runner: ThinkRunner, checkpoint: Path) -> None:
    logprobs_job = make_job(logprobs=3, max_tokens=10)

    await finish_job(runner, logprobs_job)

    tokens = [
        each for item in logprobs_job.outputs["text"].items for each in item.data.get("logprobs", {}).get("tokens", [])
    ]
    reference = shaped.compute_logprobs(checkpoint, CHAT, logprobs_job.ids)
    assert "".join(text for text, _, _ in tokens) == logprobs_job.text
    for row, id, (_, own, best) in zip(reference, logprobs_job.ids, tokens, strict=True):
        assert own == pytest.approx(float(row[id]), abs=1e-4)
        assert [value for _, value in best] == pytest.approx(row.topk(3).values.tolist(), abs=1e-4)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"structured_outputs": {"json": {"type": "string", "pattern": "(?=a)"}}}, "look-around|cannot be used"),
        ({"structured_outputs": {"json": {"not": {"type": "string"}}}}, "cannot be used"),
        ({"logit_bias": {"4096": 1.0}}, "logit_bias names token 4096"),
        ({"min_p": 2.0}, "min_p"),
    ],
)
async def test_what_cannot_be_obeyed_is_refused(runner: ThinkRunner, params: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        await finish_job(runner, make_job(**params))

    answer = make_job(max_tokens=4)
    await finish_job(runner, answer)
    assert len(answer.ids) == 4


async def test_min_p_leaves_what_is_likely_enough(runner: ThinkRunner, checkpoint: Path) -> None:
    jobs = [make_job(temperature=2.0, min_p=0.05, seed=seed, max_tokens=1) for seed in range(40)]

    await asyncio.gather(*(finish_job(runner, each) for each in jobs))

    chances = (shaped.compute_logprobs(checkpoint, CHAT, [0])[0] / 2.0).softmax(-1)
    allowed_ids = {id for id, chance in enumerate(chances.tolist()) if chance >= 0.05 * float(chances.max())}
    sampled_ids = {each.ids[0] for each in jobs}
    assert len(allowed_ids) > 1
    assert sampled_ids <= allowed_ids
    assert len(sampled_ids) > 1


async def test_a_schema_that_grows_too_complex_ends_its_own_answer_as_the_clients_fault(runner: ThinkRunner) -> None:
    wide = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(700)}}
    late = {"type": "object", "properties": {"a": {"const": "x" * 40}, "b": wide}, "required": ["a", "b"]}
    beside = make_job(structured_outputs={"json": shaped.CITY}, seed=1)

    results = await asyncio.gather(
        finish_job(runner, make_job(structured_outputs={"json": wide}, max_tokens=400)),
        finish_job(runner, make_job(structured_outputs={"json": late}, max_tokens=400)),
        finish_job(runner, beside),
        return_exceptions=True,
    )

    for error in results[:2]:
        assert isinstance(error, BadRequest), error
        assert error.param == "response_format"
        assert "too complex" in error.message
    assert jsonschema.validate(json.loads(beside.text), shaped.CITY) is None
