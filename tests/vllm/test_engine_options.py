"""Engine options in a declaration: speculative tokens, a pipeline, and quantisation."""

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from omnibus.errors import BadRequest
from tests.oracles import language as oracle
from tests.unit.jobs import finish_job
from tests.unit.llm.runners.test_thinker import make_chat_job, make_text_chat
from tests.vllm.conftest import IN_PROCESS, start_vllm

pytestmark = IN_PROCESS

TOKENS = 48
SAID = [{"role": "user", "content": "the small cat sleeps on a warm red mat " * 6}]


@pytest.mark.parametrize(
    ("token_counts", "by_rows"), [([0, 9], True), ([6, 9], True), ([7, 9], False), ([None, 9], False)]
)
def test_steps_that_read_no_media_begin_with_token_ids(token_counts: list[int | None], by_rows: bool) -> None:
    """The first request may have an image at tokens 2 to 6."""
    from omnibus_llm.vllm.v032.worker import by_token_ids  # imports vLLM, which not each environment has

    picture = SimpleNamespace(mm_position=SimpleNamespace(offset=2, length=5))
    states = [SimpleNamespace(mm_features=[], num_computed_tokens=count) for count in token_counts]
    if token_counts[0] is not None:
        states[0].mm_features = [picture]
    runner = SimpleNamespace(
        supports_mm_inputs=True,
        requests=dict(enumerate(states)),
        input_batch=SimpleNamespace(req_ids=range(len(states))),
    )
    prepare = by_token_ids(runner, lambda *_: runner.supports_mm_inputs)

    assert (prepare(None, 2), runner.supports_mm_inputs) == (by_rows, True)


async def test_the_engine_is_told_how_to_quantise(
    build: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNIBUS_VLLM_QUANTIZATION", "nothing-like-it")

    with pytest.raises(ValueError, match="nothing-like-it"):
        async with start_vllm("qwen2", build("qwen2")):
            pass


@pytest.mark.parametrize("guesses", ["n-grams", "a model"])
async def test_guessed_tokens_change_no_greedy_answer_and_save_steps(
    build: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, guesses: str
) -> None:
    base = build("qwen2")
    monkeypatch.setenv("OMNIBUS_VLLM_SPECULATIVE_TOKENS", "4")
    if guesses == "a model":  # the best there is: itself
        monkeypatch.setenv("OMNIBUS_VLLM_SPECULATIVE_MODEL", str(base))

    async with start_vllm("qwen2", base, batch=4) as runner:
        requests = [
            (each, make_chat_job(each, max_tokens=TOKENS, ignore_eos=False)) for each in (SAID, make_text_chat(5))
        ]
        await asyncio.gather(*(finish_job(runner, one) for _, one in requests))
        stats = runner.stats()

    for messages, one in requests:
        assert one.ids == oracle.generate_answer(base, messages, TOKENS)[0]
    assert stats["guessed_tokens"] >= stats["accepted_tokens"] > 0
    assert stats["tokens"] == sum(len(one.ids) for _, one in requests)
    if guesses == "a model":
        assert stats["accepted_tokens"] > 0.7 * stats["guessed_tokens"]


async def test_a_model_with_other_tokens_guesses_nothing(
    build: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, other = build("qwen2"), tmp_path / "other"
    shutil.copytree(base, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "vocab_size": config["vocab_size"] + 64}))
    monkeypatch.setenv("OMNIBUS_VLLM_SPECULATIVE_TOKENS", "4")
    monkeypatch.setenv("OMNIBUS_VLLM_SPECULATIVE_MODEL", str(other))

    with pytest.raises(BadRequest, match="the same tokenizer"):
        async with start_vllm("qwen2", base):
            pass


async def test_a_model_that_speaks_and_halves_guess_nothing(omni: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIBUS_VLLM_SPECULATIVE_TOKENS", "4")

    with pytest.raises(BadRequest, match="SPECULATIVE_TOKENS=0"):
        async with start_vllm("qwen2_5_omni", omni):
            pass
