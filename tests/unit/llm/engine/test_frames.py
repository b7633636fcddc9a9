"""A talker whose steps produce frames of codes: incremental, batched, sampled, from shared or split prompts."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from omnibus.errors import BadRequest
from omnibus.executor.runner import Item
from omnibus_llm.runners.prefill_decode import DecodeRunner, PrefillRunner
from omnibus_llm.runners.talker import TalkRunner, TalkSettings
from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_models import tiny
from omnibus_models.families import load_family
from tests.e2e.questions import OMNI_QUESTIONS, Question, make_audio, make_image, make_question
from tests.oracles import qwen3_omni_moe as oracle
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.llm.halves import Halves, make_core
from tests.unit.models.split import encode_files

NAME, VOICE, TOKENS, FRAMES = "qwen3_omni_moe", "Chelsie", 10, 14
SPEECH = ("prompt", "layout", "rows")
QUESTIONS = [
    OMNI_QUESTIONS["text"],
    OMNI_QUESTIONS["image and audio"],
    make_question("two", make_audio(1.2, 3)),
    make_question(make_image(7), "see?"),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(NAME, tmp_path_factory.mktemp("models") / "omni")


@pytest.fixture(scope="module")
def encoders(checkpoint: Path) -> list[Any]:
    return [load_family(NAME).load(part, checkpoint) for part in ("vision", "audio")]


@pytest.fixture(scope="module")
def answers(checkpoint: Path) -> list[oracle.OmniMoeAnswer]:
    return [oracle.generate_answer(checkpoint, one.plain, one.media, TOKENS, VOICE, FRAMES) for one in QUESTIONS]


@pytest.fixture
async def talk_runner(checkpoint: Path) -> AsyncIterator[TalkRunner]:
    runner = TalkRunner("talker", NAME, checkpoint, "cpu", "float32", TalkSettings(slots=3, context=512))
    await runner.load()
    yield runner
    await runner.close()


def make_think_job(encoders: list[Any], question: Question) -> MemoryJob:
    kinds = [kind for kind, _ in question.parts if kind != "text"]
    items = [Item(dict(one.meta), one.embeds.numpy()) for one in encode_files(encoders, kinds, question.media)]
    inputs = {"messages": question.plain, "items": items, "voice": VOICE, "params": {"max_tokens": TOKENS}}
    return MemoryJob(inputs, wants=("text", *SPEECH))


def make_talk_job(thought: MemoryJob, **params: Any) -> MemoryJob:
    speech_outputs = {name: thought.outputs[name] for name in SPEECH}
    return MemoryJob({**speech_outputs, "voice": VOICE, "params": {"max_codes": FRAMES, **params}}, seed=3)


@pytest.mark.parametrize("share", [3, 4096])
async def test_speech_in_company_is_that_of_the_whole_model(
    checkpoint: Path, encoders: list[Any], answers: list[oracle.OmniMoeAnswer], talk_runner: TalkRunner, share: int
) -> None:
    thinking = ThinkRunner(make_core(checkpoint, NAME, share=share))
    await thinking.load()
    thoughts = [make_think_job(encoders, question) for question in QUESTIONS]
    speech = [make_talk_job(one) for one in thoughts]

    await asyncio.gather(
        *(finish_job(talk_runner, one) for one in speech), *(finish_job(thinking, one) for one in thoughts)
    )
    await thinking.close()

    assert [one.ids for one in thoughts] == [one.ids for one in answers]
    assert [one.codes for one in speech] == [one.frames for one in answers]
    assert [len(item.data["codes"]) for item in speech[0].outputs["codes"].items[:-1]] == [4, 4, 4, 2]


async def test_halves_of_a_thinker_give_a_talker_the_same(
    checkpoint: Path, encoders: list[Any], answers: list[oracle.OmniMoeAnswer], talk_runner: TalkRunner
) -> None:
    halves = Halves(
        PrefillRunner(make_core(checkpoint, NAME, share=7)), DecodeRunner(make_core(checkpoint, NAME)), near=False
    )
    await halves.prefill.load()
    await halves.decode.load()

    for question, answer in zip(QUESTIONS, answers, strict=True):
        first, second = halves.jobs(make_think_job(encoders, question), *SPEECH)
        await asyncio.gather(finish_job(halves.prefill, first), finish_job(halves.decode, second))
        talk_job = MemoryJob(
            {
                "prompt": first.outputs["prompt"],
                "layout": first.outputs["layout"],
                "rows": second.outputs["rows"],
                "voice": VOICE,
                "params": {"max_codes": FRAMES},
            }
        )
        assert (await finish_job(talk_runner, talk_job)).codes == answer.frames
    await halves.prefill.close()
    await halves.decode.close()


async def test_sampled_frames_follow_their_seed_in_any_company(
    checkpoint: Path, encoders: list[Any], talk_runner: TalkRunner
) -> None:
    thinking = ThinkRunner(make_core(checkpoint, NAME))
    await thinking.load()
    thoughts = [await finish_job(thinking, make_think_job(encoders, question)) for question in QUESTIONS]
    await thinking.close()

    alone = [await finish_job(talk_runner, make_talk_job(one, temperature=1.0, seed=5)) for one in thoughts]
    together = [make_talk_job(one, temperature=1.0, seed=5) for one in thoughts]
    await asyncio.gather(*(finish_job(talk_runner, one) for one in together))
    other = await finish_job(talk_runner, make_talk_job(thoughts[0], temperature=1.0, seed=6))
    greedy = await finish_job(talk_runner, make_talk_job(thoughts[0]))

    assert [one.codes for one in together] == [one.codes for one in alone]
    assert len({str(codes) for codes in (alone[0].codes, other.codes, greedy.codes)}) == 3
    assert {len(frame) for frame in other.codes} == {4}


async def test_all_of_a_frame_is_sampled_or_nothing_of_it(
    checkpoint: Path, encoders: list[Any], talk_runner: TalkRunner
) -> None:
    thinking = ThinkRunner(make_core(checkpoint, NAME))
    await thinking.load()
    thought = await finish_job(thinking, make_think_job(encoders, QUESTIONS[0]))
    await thinking.close()

    # Only one first code can win, with or without a draw.
    draws = [
        await finish_job(talk_runner, make_talk_job(thought, temperature=1.0, top_k=1, seed=seed)) for seed in range(3)
    ]
    greedy = [await finish_job(talk_runner, make_talk_job(thought, top_k=1, seed=seed)) for seed in range(3)]

    assert len({one.codes[0][0] for one in draws}) == 1
    assert len({str(one.codes[0][1:]) for one in draws}) == 3
    assert len({str(one.codes) for one in greedy}) == 1


async def test_a_penalty_for_repeated_codes_leaves_the_rest_of_a_frame_alone(
    checkpoint: Path, encoders: list[Any], talk_runner: TalkRunner
) -> None:
    thinking = ThinkRunner(make_core(checkpoint, NAME))
    await thinking.load()
    thought = await finish_job(thinking, make_think_job(encoders, QUESTIONS[0]))
    await thinking.close()

    plain = await finish_job(talk_runner, make_talk_job(thought))
    various = await finish_job(talk_runner, make_talk_job(thought, repetition_penalty=5.0))

    assert various.codes[0] == plain.codes[0]
    assert len({frame[0] for frame in various.codes}) > len({frame[0] for frame in plain.codes})


async def test_an_unknown_voice_is_refused_by_the_talker_too(
    checkpoint: Path, encoders: list[Any], talk_runner: TalkRunner
) -> None:
    thinking = ThinkRunner(make_core(checkpoint, NAME))
    await thinking.load()
    thought = await finish_job(thinking, make_think_job(encoders, QUESTIONS[0]))
    await thinking.close()
    job = make_talk_job(thought)
    job._inputs["voice"] = "nobody"

    with pytest.raises(BadRequest, match="ethan"):
        await finish_job(talk_runner, job)


@pytest.mark.parametrize("params", [{}, {"temperature": 1.0, "seed": 2}])
async def test_frames_go_on_behind_those_that_are_known(
    checkpoint: Path, encoders: list[Any], talk_runner: TalkRunner, params: dict[str, Any]
) -> None:
    thinking = ThinkRunner(make_core(checkpoint, NAME))
    await thinking.load()
    thought = await finish_job(thinking, make_think_job(encoders, QUESTIONS[0]))
    await thinking.close()
    whole = await finish_job(talk_runner, make_talk_job(thought, **params))
    before = talk_runner.stats()["tokens"]

    again = make_talk_job(thought, **params)
    again._resumes = {"codes": {"codes": whole.codes[:8]}}
    await finish_job(talk_runner, again)

    assert again.codes == whole.codes
    assert talk_runner.stats()["tokens"] - before - (len(whole.codes) - 8) in (
        1,
        2,
    )  # the second of them may find the end
