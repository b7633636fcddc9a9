"""Switching a language model between its parts without reloading weights."""

import asyncio
from pathlib import Path

import pytest

from omnibus.errors import BadRequest
from omnibus.executor.settings import ExecutorSettings
from omnibus.executor.step_budget import StepGoals
from omnibus_llm.runners.prefill_decode import DecodeRunner, PrefillRunner
from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_models.contract import Thinker
from tests.unit.jobs import finish_job
from tests.unit.llm.halves import Halves, make_core
from tests.unit.llm.runners.test_thinker import answer_alone, make_chat_job, make_text_chat

pytestmark = pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")

ROLE = ExecutorSettings()


@pytest.mark.numeric
async def test_a_prefill_becomes_a_decode_and_a_thinker(vl: Path, thinker: Thinker) -> None:
    goals = StepGoals(ttft=1.0, tbt=0.5)
    first, other = PrefillRunner(make_core(vl)), PrefillRunner(make_core(vl, decodes=False, goals=goals))
    await asyncio.gather(first.load(), other.load())
    model, jobs = other._core.thinker, [make_chat_job(make_text_chat(n), max_tokens=8) for n in (2, 5, 9)]
    without = other.stats()["budget"]

    decode = other.switch_role("decode", ROLE)
    await decode.load()
    await other.close()
    assert isinstance(decode, DecodeRunner)
    answers = [await Halves(first, decode, near=False).answer(one) for one in jobs]
    whole = decode.switch_role("thinker", ROLE)
    await whole.load()
    await decode.close()
    assert isinstance(whole, ThinkRunner)
    wholes = [await finish_job(whole, make_chat_job(make_text_chat(n), max_tokens=8)) for n in (2, 5, 9)]

    references = [answer_alone(thinker, one) for one in jobs]
    assert [one.ids for one in answers] == references
    assert [one.ids for one in wholes] == references
    assert whole._core.thinker is model
    assert "beside_sequences" not in without
    assert whole.stats()["budget"]["beside_sequences"]  # steps of decoding sequences have been measured since
    await asyncio.gather(first.close(), whole.close())
    assert whole._core.closed


async def test_what_is_no_part_of_a_language_model_is_refused(runner: ThinkRunner) -> None:
    with pytest.raises(BadRequest, match="vocoder is not part of a language model"):
        runner.switch_role("vocoder", ROLE)
