"""llama.cpp computes the logits of a GGUF file; answers are those of the checkpoint that the file was written from."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from omnibus.errors import BadRequest, ContextTooLong, Fatal
from omnibus.executor.settings import ExecutorSettings
from omnibus_engines import llama_cpp
from omnibus_llm.engine.llama_cpp_core import LlamaCppCore
from omnibus_llm.engine.model import ThinkSettings
from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_models import tiny
from omnibus_models.families import load_family
from omnibus_models.llama_cpp import library
from omnibus_models.llama_cpp_thinker import LlamaCppThinker
from tests.gguf_files import write_gguf
from tests.oracles import language as oracle
from tests.oracles import shaped
from tests.unit.jobs import finish_job
from tests.unit.llm.runners.test_shaped_answers import CHAT, TOOL_CALL, TOOLS, grammar_of, read_calls
from tests.unit.llm.runners.test_thinker import WORDS, make_chat_job, make_text_chat

pytestmark = pytest.mark.llama_cpp

#: Keys and values are float16, and sums have another order: bound of a logit's difference from transformers.
LOGIT_BOUND = 0.03


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen3", tmp_path_factory.mktemp("models") / "qwen3")


@pytest.fixture(scope="module")
def file(checkpoint: Path) -> Path:
    return write_gguf(checkpoint, checkpoint.with_suffix(".gguf"))


@pytest.fixture
async def runner(file: Path) -> AsyncIterator[ThinkRunner]:
    settings = ThinkSettings(slots=4, context=1024, share=64, kept_bytes=1 << 20)
    think_runner = ThinkRunner(LlamaCppCore(file, "cpu", settings, 0))
    await think_runner.load()
    yield think_runner
    await think_runner.close()


@pytest.fixture(scope="module")
def thinker(file: Path) -> LlamaCppThinker:
    model = LlamaCppThinker(file)
    model.reserve_memory(4, 512, 1)
    return model


@pytest.mark.numeric
@pytest.mark.cell("llama_cpp", "qwen3", "tokens", shape="L")
async def test_answers_decoded_together_are_those_of_the_checkpoint(runner: ThinkRunner, checkpoint: Path) -> None:
    chats = [make_text_chat(number) for number in range(16)]  # more than there are slots
    jobs = [make_chat_job(chat, max_tokens=6, ignore_eos=False) for chat in chats]

    await asyncio.gather(*(finish_job(runner, job) for job in jobs))

    sure = [oracle.answer_margin(checkpoint, chat, 6) > 2 * LOGIT_BOUND for chat in chats]
    assert sum(sure) >= 4
    for chat, job, is_sure in zip(chats, jobs, sure, strict=True):
        alone = await finish_job(runner, make_chat_job(chat, max_tokens=6, ignore_eos=False))
        assert alone.ids == job.ids
        assert not is_sure or job.ids == oracle.generate_answer(checkpoint, chat, 6)[0]
    assert max(map(int, runner.stats()["batches"])) > 1


@pytest.mark.numeric
def test_prompts_and_logits_are_those_of_the_checkpoint(thinker: LlamaCppThinker, checkpoint: Path) -> None:
    original = load_family("qwen3").load("thinker", checkpoint)
    prompt = thinker.prompt(CHAT)

    logits = compute_logits(thinker, prompt.ids)

    reference = compute_logits(original, prompt.ids)
    assert prompt == original.prompt(CHAT)
    assert thinker.tokenize_text(thinker.tokenizer.decode(prompt.ids)) == list(prompt.ids)
    assert float((logits - reference).abs().max()) < LOGIT_BOUND
    assert (thinker.vocabulary, thinker.context) == (original.vocabulary, original.context)
    assert thinker.parameters == original.parameters


def compute_logits(model: Any, ids: tuple[int, ...]) -> torch.Tensor:
    positions = torch.arange(len(ids))[None, None]
    hidden = model.forward(model.embed(torch.tensor([ids])), positions, model.new_cache(), None)
    logits: torch.Tensor = model.logits(hidden[:, -1])
    return logits


def test_rows_of_a_step_are_computed_together_in_whatever_order_their_sequences_come(thinker: LlamaCppThinker) -> None:
    prompts = [[5, 7, 11], [13, 2, 3], [17, 19, 23]]
    sequences = [thinker.new_cache() for _ in prompts]
    for sequence, ids in zip(sequences, prompts, strict=True):
        thinker.forward(thinker.embed(torch.tensor([ids])), torch.arange(3)[None, None], sequence, None)
    tokens, numbers = [29, 31, 37], [sequence.number for sequence in sequences]

    together = thinker.decode_rows(tokens, [3] * 3, numbers)
    for sequence in sequences:
        thinker.cut_sequence(sequence, 3)
    reversed_rows = thinker.decode_rows(tokens[::-1], [3] * 3, numbers[::-1])

    assert numbers == [0, 1, 2]
    assert torch.equal(reversed_rows, together.flip(0))  # to the bit: rows computed one by one have other sums


async def test_changed_and_constrained_answers_are_those_of_generate(runner: ThinkRunner, checkpoint: Path) -> None:
    jobs = {name: make_chat_job(CHAT, max_tokens=48, ignore_eos=False, **case) for name, case in shaped.CASES.items()}

    await asyncio.gather(*(finish_job(runner, job) for job in jobs.values()))

    for name, params in shaped.CASES.items():
        reference = shaped.generate_answer(checkpoint, CHAT, 48, params, grammar_of(runner, params))
        assert (jobs[name].ids, jobs[name].text) == reference, name
    jsonschema.validate(json.loads(jobs["schema"].text), shaped.CITY)


async def test_required_calls_are_made(runner: ThinkRunner) -> None:
    job = make_chat_job(CHAT, temperature=1.0, ignore_eos=False, **TOOL_CALL)

    await finish_job(runner, job)

    [(name, arguments)] = read_calls(job)
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
    jsonschema.validate(arguments, schemas[name])


@pytest.mark.parametrize("schema", [{"not": {"type": "string"}}, {"type": "array", "contains": {"type": "string"}}])
async def test_schemas_that_cannot_be_obeyed_are_refused(runner: ThinkRunner, schema: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="cannot be used"):
        await finish_job(runner, make_chat_job(CHAT, structured_outputs={"json": schema}))


async def test_seeds_repeat_stops_end_and_probabilities_are_reported(runner: ThinkRunner) -> None:
    first, again, other = (make_chat_job(CHAT, temperature=1.0, seed=seed) for seed in (3, 3, 4))
    await asyncio.gather(*(finish_job(runner, job) for job in (first, again, other)))
    stop = first.text[4:7]
    stopped = make_chat_job(CHAT, temperature=1.0, seed=3, stop=[stop], logprobs=2)

    await finish_job(runner, stopped)

    assert first.ids == again.ids != other.ids
    assert stopped.text == first.text[: first.text.index(stop)]
    assert stopped.end("text")["finish_reason"] == "stop"
    reports = [
        each for item in stopped.outputs["text"].items for each in item.data.get("logprobs", {}).get("tokens", [])
    ]
    assert reports
    assert all(len(best) == 2 and own <= 0 for _, own, best in reports)


async def test_a_cancelled_answer_frees_its_slot_at_once(runner: ThinkRunner) -> None:
    leaving = [asyncio.create_task(finish_job(runner, make_chat_job(CHAT, max_tokens=400))) for _ in range(4)]
    while runner.stats()["tokens"] < 8:
        await asyncio.sleep(0.001)
    for task in leaving:
        task.cancel()
    await asyncio.gather(*leaving, return_exceptions=True)
    before = runner.stats()["tokens"]

    await finish_job(runner, make_chat_job(CHAT, max_tokens=4))

    assert runner.stats()["used"] == 0
    assert runner.stats()["tokens"] - before <= 4 + 4  # a step was in progress


@pytest.mark.numeric
async def test_turns_reuse_the_prompts_of_their_own_conversation(runner: ThinkRunner) -> None:
    longer = [*make_text_chat(16), {"role": "assistant", "content": "a cat"}, *make_text_chat(3)]
    keys = {"cache_key": "talk", "cache_salt": "tenant"}
    first, later = make_chat_job(make_text_chat(16), **keys), make_chat_job(longer, **keys)
    strangers = make_chat_job(longer, cache_key="talk", cache_salt="another tenant")

    for job in (first, later, strangers):
        await finish_job(runner, job)

    cached = [job.end("text")["usage"].get("cached_tokens", 0) for job in (first, later, strangers)]
    assert cached[0] == cached[2] == 0
    assert cached[1] >= len(WORDS)
    assert later.ids == strangers.ids


async def test_more_conversations_than_are_kept_are_answered(runner: ThinkRunner) -> None:
    jobs = [make_chat_job(make_text_chat(number), max_tokens=3, cache_key=f"talk {number}") for number in range(12)]

    await asyncio.gather(*(finish_job(runner, job) for job in jobs))

    assert all(len(job.ids) == 3 for job in jobs)
    assert runner.stats()["kept_bytes"] <= 1 << 20


async def test_a_prompt_over_a_slots_context_is_refused(runner: ThinkRunner) -> None:
    with pytest.raises(ContextTooLong, match="1024"):
        await finish_job(runner, make_chat_job([{"role": "user", "content": "mat " * 1100}]))


async def test_more_slots_than_the_library_has_sequences_are_refused(file: Path) -> None:
    runner = ThinkRunner(LlamaCppCore(file, "cpu", ThinkSettings(slots=300, context=64), 0))

    with pytest.raises(BadRequest, match="at most 256 sequences"):
        await runner.load()
    await runner.close()


async def test_slots_share_the_memory_of_the_settings(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIBUS_LLAMA_CPP_KV_MIB", "1")
    runner = llama_cpp("thinker", ExecutorSettings(checkpoint=str(file), batch=8, prompt_cache_mib=0))
    await runner.load()

    assert 16 < runner._core.context <= (1 << 20) // (8 * runner.stats()["kv_bytes_per_token"])
    await runner.close()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"device": "cuda"}, "runs on the CPU"),
        ({"adapters": '{"a": "somewhere"}'}, "adapter|somewhere"),
        ({"checkpoint": "tests"}, "not a GGUF file"),
    ],
)
def test_what_llama_cpp_does_not_do_is_refused(file: Path, more: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        llama_cpp("thinker", ExecutorSettings(**{"checkpoint": str(file), **more}))
    with pytest.raises(BadRequest, match="'prefill'"):
        llama_cpp("prefill", ExecutorSettings(checkpoint=str(file)))


def test_a_file_that_is_cut_off_is_refused_before_it_is_loaded(file: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(file.read_bytes()[:-100])

    with pytest.raises(BadRequest, match="truncated"):
        llama_cpp("thinker", ExecutorSettings(checkpoint=str(cut)))


async def test_a_file_at_which_the_library_ends_its_process_is_refused(file: Path, tmp_path: Path) -> None:
    odd = tmp_path / "odd.gguf"
    odd.write_bytes(file.read_bytes().replace("Ġvoice".encode(), "Ġimage".encode()))  # two tokens have one text
    runner = ThinkRunner(LlamaCppCore(odd, "cpu", ThinkSettings(slots=1, context=64), 0))

    with pytest.raises(Fatal, match="(?s)cannot load.*GGML_ASSERT"):
        await runner.load()
    await runner.close()


def test_another_release_of_the_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "VERSION", "2020.1.1")
    library._load_library.cache_clear()

    with pytest.raises(Fatal, match="xllamacpp==2020.1.1"):
        library.load_library()
