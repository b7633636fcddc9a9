"""A talker speaks while the thinker still writes. The result is the same as if it had waited."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from omnibus.errors import BadRequest, Fatal
from omnibus.executor.runner import Item
from omnibus_llm.runners.talker import TalkRunner, TalkSettings
from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_models import tiny
from omnibus_models.contract import Talker, Thinker
from omnibus_models.families import load_family
from tests.unit.jobs import MemoryJob, MemoryPipe, finish_job

VOICE = "Chelsie"
SPEECH = ("prompt", "layout", "rows")


@pytest.fixture(scope="session")
def talker(omni: Path) -> Talker:
    return load_family("qwen2_5_omni").load("talker", omni)


@pytest.fixture(scope="session")
def thinker(omni: Path) -> Thinker:
    return load_family("qwen2_5_omni").load("thinker", omni)


@pytest.fixture
async def talk_runner(omni: Path) -> AsyncIterator[TalkRunner]:
    settings = TalkSettings(slots=3, context=512, first=2, chunk=5)
    runner = TalkRunner("talker", "qwen2_5_omni", omni, "cpu", "float32", settings)
    await runner.load()
    yield runner
    await runner.close()


class Script:
    """A thinker's outputs (prompt, layout and rows) with random numbers."""

    def __init__(self, seed: int, length: int = 12, rows: int = 6, width: int = 64) -> None:
        numbers = np.random.default_rng(seed)
        self.prompt = numbers.normal(size=(length + 3, width)).astype(np.float32)
        self.layout = np.tile(np.arange(length, dtype=np.int32), (3, 1))
        self.rows = numbers.normal(size=(rows, width)).astype(np.float32)
        self.stream = MemoryPipe()

    def job(self, **params: object) -> MemoryJob:
        prompt, layout = Item({}, self.prompt), Item({}, self.layout)
        inputs = {"prompt": prompt, "layout": layout, "rows": self.stream, "voice": VOICE}
        return MemoryJob({**inputs, "params": {"max_codes": 30, **params}})

    def send(self, start: int, end: int) -> None:
        self.stream.feed(Item({}, self.rows[start:end]))

    def finish(self) -> None:
        self.stream.close({"finish": "stop"})

    def whole(self, **params: object) -> MemoryJob:
        """Return a job with all rows complete."""
        self.send(0, len(self.rows))
        self.finish()
        return self.job(**params)


@torch.inference_mode()
def decode_plainly(talker: Talker, script: Script, count: int) -> list[int]:
    """Decode with all rows known, one code after the other."""
    prompt, rows = torch.tensor(script.prompt), torch.tensor(script.rows)
    prefill = talker.start(prompt, torch.tensor(script.layout, dtype=torch.long), rows[0], VOICE)
    later = [*rows[1:], prompt[-2]]
    cache = DynamicCache()
    hidden = talker.forward(prefill.inputs[None], prefill.positions[:, None], cache, None)
    codes = [int(talker.logits(hidden[:, -1]).argmax())]
    while len(codes) < count and codes[-1] not in talker.eos:
        row: Tensor = later.pop(0) if later else prompt[-1]
        positions = torch.full((talker.axes, 1, 1), cache.get_seq_length() + prefill.delta)
        inputs = talker.step_inputs(torch.tensor(codes[-1:]), row[None])
        hidden = talker.forward(inputs[None], positions, cache, None)
        codes.append(int(talker.logits(hidden[:, -1]).argmax()))
    return [code for code in codes if code not in talker.eos]


async def test_many_answers_at_once_equal_single_runs(talk_runner: TalkRunner, talker: Talker) -> None:
    scripts = [Script(seed, length=5 + 3 * seed, rows=2 + seed) for seed in range(8)]
    jobs = [script.whole() for script in scripts]

    await asyncio.gather(*(finish_job(talk_runner, one) for one in jobs))

    assert [one.codes for one in jobs] == [decode_plainly(talker, script, 30) for script in scripts]
    assert max(int(size) for size in talk_runner.stats()["batches"]) == 3


async def test_a_talker_waits_for_rows_and_goes_on(talk_runner: TalkRunner, talker: Talker) -> None:
    slow, quick = Script(1), Script(2, rows=9)
    first = slow.job()

    slow.send(0, 2)
    running = asyncio.create_task(finish_job(talk_runner, first))
    await first.outputs["codes"].until(1)
    other = await finish_job(talk_runner, quick.whole())
    early_codes = list(first.codes)
    slow.send(2, 3)
    slow.send(3, 6)
    slow.finish()
    await running

    assert other.codes == decode_plainly(talker, quick, 30)
    assert len(early_codes) == 2, "one code per row, and no row was invented"
    assert first.codes == decode_plainly(talker, slow, 30)


async def test_a_waiting_talker_takes_no_steps(talk_runner: TalkRunner) -> None:
    script = Script(1)
    one = script.job()
    script.send(0, 2)
    running = asyncio.create_task(finish_job(talk_runner, one))
    await one.outputs["codes"].until(1)

    await finish_job(talk_runner, Script(2).whole())
    stats = talk_runner.stats()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    assert stats["batches"].get("2", 0) == 0


async def test_an_answer_without_rows_says_nothing(talk_runner: TalkRunner) -> None:
    script = Script(1)
    script.finish()

    one = await finish_job(talk_runner, script.job())

    assert one.codes == []
    assert one.end("codes") == {"finish_reason": "stop"}
    assert talk_runner.stats()["tokens"] == 0


async def test_the_first_chunk_is_small_and_the_end_code_is_not_sent(talk_runner: TalkRunner, talker: Talker) -> None:
    for seed in range(40):
        one = await finish_job(talk_runner, Script(seed).whole(max_codes=200, temperature=2.0, seed=seed))
        assert not talker.eos & set(one.codes)
        if one.end("codes")["finish_reason"] == "stop" and len(one.codes) > 7:
            break
    else:
        pytest.fail("no answer of this test ends by itself")

    sizes = [len(item.data["codes"]) for item in one.outputs["codes"].items[:-1]]
    assert sizes[0] >= 2
    assert len(sizes) > 1
    assert all(size >= 5 for size in sizes[1:-1])


async def test_a_row_of_nan_fails_only_its_own_answer(talk_runner: TalkRunner, talker: Talker) -> None:
    # The bad one breaks after the end of the short one and before that of the long one.
    bad, good = Script(1, length=30), [Script(5, length=60), Script(3, length=5)]
    bad.rows[3] = np.nan
    jobs = [script.whole() for script in (good[0], bad, good[1])]

    results = await asyncio.gather(*(finish_job(talk_runner, one) for one in jobs), return_exceptions=True)
    after = Script(4, length=20)
    last = await finish_job(talk_runner, after.whole())

    assert isinstance(results[1], Fatal)
    assert [jobs[0].codes, jobs[2].codes] == [decode_plainly(talker, script, 30) for script in good]
    assert len(jobs[0].codes) == len(jobs[2].codes) == 30
    assert last.codes == decode_plainly(talker, after, 30)


async def test_an_error_of_the_thinker_reaches_the_talker(talk_runner: TalkRunner) -> None:
    class BrokenRowPipe(MemoryPipe):
        async def read(self):
            async for item in super().read():
                yield item
            raise BadRequest("the stream broke")

    script = Script(1)
    script.stream = BrokenRowPipe()
    script.send(0, 2)
    script.stream.close()

    with pytest.raises(BadRequest, match="the stream broke"):
        await finish_job(talk_runner, script.job())


async def test_a_cancelled_answer_frees_its_slot(talk_runner: TalkRunner, talker: Talker) -> None:
    stuck = [Script(seed) for seed in range(3)]
    for script in stuck:
        script.send(0, 2)
    jobs = [script.job() for script in stuck]
    running = [asyncio.create_task(finish_job(talk_runner, one)) for one in jobs]
    for one in jobs:
        await one.outputs["codes"].until(1)
    assert talk_runner.stats()["used"] == 3

    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    script = Script(9)
    one = await finish_job(talk_runner, script.whole())

    assert one.codes == decode_plainly(talker, script, 30)


def make_speech_job(number: int, **params: object) -> MemoryJob:
    messages = [{"role": "user", "content": f"what do you hear? {'the cat ' * number}"}]
    inputs = {"messages": messages, "voice": VOICE, "params": {"max_tokens": 10, **params}}
    return MemoryJob(inputs, wants=("text", *SPEECH))


async def test_thinker_and_talker_side_by_side_equal_one_after_the_other(
    omni_runner: ThinkRunner, talk_runner: TalkRunner, talker: Talker
) -> None:
    thinking = [make_speech_job(number, ignore_eos=True) for number in range(4)]
    speaking = [
        MemoryJob({**{name: one.outputs[name] for name in SPEECH}, "params": {"max_codes": 25}}) for one in thinking
    ]

    await asyncio.gather(
        *(finish_job(talk_runner, one) for one in speaking), *(finish_job(omni_runner, one) for one in thinking)
    )

    for talk_job, thought in zip(speaking, thinking, strict=True):
        script = Script(0)
        script.prompt = thought.array("prompt")
        script.layout = thought.array("layout")
        script.rows = thought.whole("rows")
        assert script.rows.shape == (10, 64)
        assert script.layout.shape == (3, len(script.prompt) - 3)
        assert talk_job.codes == decode_plainly(talker, script, 25)


@pytest.mark.numeric
async def test_rows_are_the_embedding_plus_the_hidden_state_of_each_token(
    omni_runner: ThinkRunner, thinker: Thinker
) -> None:
    one = await finish_job(omni_runner, make_speech_job(2, ignore_eos=True))

    prompt, rows = compute_rows(thinker, one, one.ids)
    np.testing.assert_allclose(one.whole("rows"), rows, atol=1e-4)
    np.testing.assert_allclose(one.array("prompt"), prompt, atol=1e-4)
    assert one.end("rows") == {"finish": "length"}


async def test_an_answer_of_one_token_is_spoken(omni_runner: ThinkRunner, talk_runner: TalkRunner) -> None:
    one = await finish_job(omni_runner, make_speech_job(1, max_tokens=1))
    talk_job = await finish_job(
        talk_runner, MemoryJob({name: one.outputs[name] for name in SPEECH} | {"params": {"max_codes": 5}})
    )

    assert len(one.ids) == 1
    assert one.whole("rows").shape == (1, 64)
    assert len(talk_job.codes) > 0


async def test_an_immediate_end_gives_a_prompt_and_no_rows(omni_runner: ThinkRunner, talk_runner: TalkRunner) -> None:
    first = (await finish_job(omni_runner, make_speech_job(1, max_tokens=1))).text
    one = await finish_job(omni_runner, make_speech_job(1, max_tokens=1, stop=[first]))
    talk_job = await finish_job(talk_runner, MemoryJob({name: one.outputs[name] for name in SPEECH}))

    assert one.text == ""
    assert [item.array for item in one.outputs["rows"].items] == [None]
    assert talk_job.codes == []


@pytest.mark.numeric
async def test_a_stop_string_is_not_spoken(omni_runner: ThinkRunner, thinker: Thinker) -> None:
    free = await finish_job(omni_runner, make_speech_job(3, ignore_eos=True, max_tokens=20))
    stop = free.text[len(free.text) // 2 :][:4]

    stopped_job = await finish_job(omni_runner, make_speech_job(3, ignore_eos=True, max_tokens=20, stop=[stop]))

    whole = max(
        count for count in range(len(free.ids)) if stopped_job.text.startswith(thinker.decode_ids(free.ids[:count]))
    )
    rest = stopped_job.text.removeprefix(thinker.decode_ids(free.ids[:whole]))
    ids = [*free.ids[:whole], *thinker.encode_text(rest)]
    assert 0 < len(stopped_job.whole("rows")) == len(ids) < len(free.ids)
    np.testing.assert_allclose(stopped_job.whole("rows"), compute_rows(thinker, stopped_job, ids)[1], atol=1e-4)


def compute_rows(thinker: Thinker, one: MemoryJob, ids: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Compute the rows of prompt and answer in one pass. The answer has the tokens ``ids``."""
    prefill = thinker.assemble_prefill(thinker.prompt(one.inputs["messages"]), [])
    length = len(prefill.inputs)
    with torch.inference_mode():
        inputs = torch.cat([prefill.inputs, thinker.embed(torch.tensor(ids))])
        places = torch.arange(len(inputs)).expand(3, 1, -1)
        hidden = thinker.forward(inputs[None], places, DynamicCache(), None)[0]
        prompt = thinker.talker_prompt(prefill, hidden[:length], VOICE)
    return prompt.numpy(), (inputs + hidden)[length:].numpy()


async def test_a_text_answer_sends_nothing_to_a_talker(omni_runner: ThinkRunner) -> None:
    one = MemoryJob({"messages": [{"role": "user", "content": "hello"}], "params": {"max_tokens": 5}})

    await finish_job(omni_runner, one)

    assert set(one.outputs) == {"text"}


async def test_an_unknown_voice_is_refused_and_the_known_are_named(omni_runner: ThinkRunner) -> None:
    one = make_speech_job(1)
    one._inputs["voice"] = "nobody"

    with pytest.raises(BadRequest, match=VOICE):
        await finish_job(omni_runner, one)


async def test_a_model_without_a_voice_says_so(runner: ThinkRunner) -> None:
    with pytest.raises(BadRequest, match="no voice"):
        await finish_job(runner, make_speech_job(1))


def count_steps(talking: TalkRunner) -> int:
    """Return the decode steps so far."""
    return sum(int(size) * count for size, count in talking.stats()["batches"].items())


@pytest.mark.parametrize("params", [{}, {"temperature": 1.0, "top_p": 0.9, "repetition_penalty": 1.1, "seed": 2}])
@pytest.mark.parametrize("known_count", [1, 4, 13, 30])
async def test_an_answer_goes_on_behind_codes_that_are_known(
    talk_runner: TalkRunner, params: dict[str, object], known_count: int
) -> None:
    whole = await finish_job(talk_runner, Script(3).whole(**params))
    before = count_steps(talk_runner)

    again = Script(3).whole(**params)
    again._resumes = {"codes": {"codes": whole.codes[:known_count]}}
    await finish_job(talk_runner, again)

    assert again.codes == whole.codes
    assert again.end("codes") == whole.end("codes")
    assert (
        count_steps(talk_runner) - before <= max(0, len(whole.codes) - known_count) + 1
    )  # one of them may find the end


async def test_known_codes_wait_for_the_rows_that_they_were_made_of(talk_runner: TalkRunner, talker: Talker) -> None:
    script = Script(5)
    whole = decode_plainly(talker, script, 30)
    again = script.job()
    again._resumes = {"codes": {"codes": whole[:5]}}

    script.send(0, 2)
    running = asyncio.create_task(finish_job(talk_runner, again))
    await asyncio.sleep(0.1)
    early = list(again.codes)
    script.send(2, 6)
    script.finish()
    await running

    assert early == [], "a code is nothing without the row before it"
    assert again.codes == whole


@pytest.mark.parametrize(
    ("limits", "rows", "params", "count"),
    [
        ({"seconds": 0.5}, 6, {"max_codes": None}, 25),
        ({"token_seconds": 0.25}, 6, {"max_codes": None}, 225),
        ({"token_seconds": 0.25}, 1, {"max_codes": None}, 162),
        ({"token_seconds": 0.25, "seconds": 4.0}, 6, {"max_codes": None}, 200),
        ({"token_seconds": 0.25, "seconds": 4.0}, 6, {"max_codes": 30}, 30),
    ],
)
async def test_a_talker_that_finds_no_end_stops_after_the_seconds_that_its_text_may_take(
    omni: Path, limits: dict[str, float], rows: int, params: dict[str, int | None], count: int
) -> None:
    runner = TalkRunner("talker", "qwen2_5_omni", omni, "cpu", "float32", TalkSettings(slots=3, context=512, **limits))
    await runner.load()
    # Of the released model; and this one never ends.
    runner.model.steps_per_second, runner.model.max_codes, runner.model.eos = 50.0, 400, frozenset()

    script = Script(3, rows=rows)
    talk_job = await finish_job(runner, script.whole(**params))
    again = Script(3, rows=rows).whole(**params)
    again._resumes = {"codes": {"codes": talk_job.codes[: count // 2]}}
    await finish_job(runner, again)
    await runner.close()

    assert (len(talk_job.codes), talk_job.end("codes")) == (count, {"finish_reason": "length"})
    assert (again.codes, again.end("codes")) == (talk_job.codes, talk_job.end("codes"))


@pytest.mark.parametrize(("family", "rate"), [("qwen2_5_omni", 24_000), ("qwen3_omni_moe", 24_000)])
def test_a_talker_knows_how_fast_its_codes_are_played(tmp_path: Path, family: str, rate: int) -> None:
    checkpoint = tiny.build(family, tmp_path / family)

    talker, vocoder = (load_family(family).load(part, checkpoint) for part in ("talker", "vocoder"))

    assert talker.steps_per_second * vocoder.samples_per_code == vocoder.rate == rate
