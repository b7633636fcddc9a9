"""Parameters that change or filter tokens work in vLLM as in transformers."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_llm.vllm.runner import VllmRunner
from tests.unit.jobs import finish_job
from tests.unit.llm.runners.test_shaped_answers import make_job
from tests.vllm.conftest import IN_PROCESS, start_transformers, start_vllm

pytestmark = [*IN_PROCESS, pytest.mark.asyncio(loop_scope="module")]

#: Each changes at least one parameter of a greedy answer of 16 tokens.
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "repetition penalty": {"repetition_penalty": 1.7},
    "penalties": {"presence_penalty": 1.5, "frequency_penalty": 0.5},
    "bias": {"logit_bias": {"40": 30.0, "41": 31.0}},
    "allowed": {"allowed_token_ids": [40, 41, 42, 50, 60], "repetition_penalty": 1.5},
    "stop tokens": {"allowed_token_ids": [40, 41], "stop_token_ids": [40, 41]},
    "least tokens": {"allowed_token_ids": [40, 41, 42], "stop_token_ids": [40, 41], "min_tokens": 5},
    "words": {"allowed_token_ids": [40, 41], "logit_bias": {"40": 9.0}, "bad_words": ["F", "no such word"]},
    "stop": {"stop": ["a", "e", "o"]},
    "stop, sent": {"stop": ["a", "e", "o"], "include_stop_str_in_output": True},
    "stop behind least": {"stop": ["a", "e", "o"], "min_tokens": 9, "include_stop_str_in_output": True},
    "special": {"skip_special_tokens": False, "ignore_eos": False, "logit_bias": {"2": 40.0}},
    "ends, sent": {
        "stop_token_ids": [40], "allowed_token_ids": [40, 41], "logit_bias": {"40": 9.0}, "include_stop_str_in_output": True, "min_tokens": 2,
    },
    "regex": {"structured_outputs": {"regex": "[0-9]{3}/[a-c]+x"}, "ignore_eos": False, "max_tokens": 40},
    "choice": {"structured_outputs": {"choice": ["yes", "no"]}, "ignore_eos": False},
    "grammar": {"structured_outputs": {"grammar": 'root ::= "a" [0-9] [0-9]'}, "ignore_eos": False},
    "truncated": {"truncate_prompt_tokens": 3},
    "truncated to fit": {"truncate_prompt_tokens": -1},
    "no new turn": {"template": {"add_generation_prompt": False}},
}  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(build: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the shared checkpoint with recommended penalty and bound."""
    directory = shutil.copytree(build("qwen3"), tmp_path_factory.mktemp("sampling") / "qwen3")
    path = directory / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "repetition_penalty": 1.3, "max_new_tokens": 16}))
    return directory


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engines(checkpoint: Path) -> AsyncIterator[tuple[ThinkRunner, VllmRunner]]:
    async with start_transformers("qwen3", checkpoint) as own, start_vllm("qwen3", checkpoint, batch=8) as other:
        yield own, other


async def test_tokens_and_text_are_the_same(engines: tuple[ThinkRunner, VllmRunner]) -> None:
    answers = []
    for engine in engines:
        jobs = {name: make_job(**{"max_tokens": 16, "ignore_eos": True, **params}) for name, params in CASES.items()}
        await asyncio.gather(*(finish_job(engine, each) for each in jobs.values()))
        answers.append({name: (each.ids, each.text, each.end("text")["finish_reason"]) for name, each in jobs.items()})

    for name in CASES:
        assert answers[0][name] == answers[1][name], name
    own = {name: answer[0] for name, answer in answers[0].items()}
    same_names = {name for name, ids in own.items() if ids == own["plain"]}
    assert same_names == {"plain", "truncated to fit"}
    assert own["words"] == [41] * 16  # token 40 is F


async def test_what_a_request_does_not_name_is_as_the_checkpoint_recommends(
    engines: tuple[ThinkRunner, VllmRunner],
) -> None:
    for engine in engines:
        silent, explicit, neutral = (
            make_job(max_tokens=None, ignore_eos=True),
            make_job(max_tokens=16, ignore_eos=True, repetition_penalty=1.3),
            make_job(max_tokens=16, ignore_eos=True, repetition_penalty=1.0),
        )

        await asyncio.gather(*(finish_job(engine, each) for each in (silent, explicit, neutral)))

        assert silent.ids == explicit.ids != neutral.ids
        assert len(silent.ids) == 16
