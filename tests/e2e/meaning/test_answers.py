"""Scenes and audio clips outside the training set are named correctly.

The answers are in text and in speech, in every split of the model.
"""

import itertools

import numpy as np
import pytest

from omnibus_models.world import audio_oracle, dialogues, scenes, tone_synth
from tests.e2e.meaning.asking import ENOUGH, ask_dialogue, open_door, send_chat, share_of_right, some_at_once, thinned
from tests.e2e.system import System

pytestmark = pytest.mark.e2e

UNSEEN = scenes.held_out_scenes()
TONES = [row for count in (1, 2, 3) for row in itertools.product(tone_synth.TONES, repeat=count)]


async def measure_share(house: System, questions: list[dialogues.Dialogue], path: str = "") -> float:
    """The share of right answers."""
    async with open_door(house) as http:
        answers = await some_at_once([ask_dialogue(http, talk, seed, path=path) for seed, talk in enumerate(questions)])
    return share_of_right([answer.text == talk.answer for answer, talk in zip(answers, questions, strict=True)])


@thinned
@pytest.mark.parametrize("path", ["EV>Th", "M"])
async def test_scenes_are_named_right(world_system: System, path: str, every: int):
    assert (
        await measure_share(world_system, [dialogues.scene_question(scene) for scene in UNSEEN[::every]], path)
        >= ENOUGH
    )
    await world_system.ledger_is_empty()


async def test_tones_are_named_right(world_system: System):
    assert await measure_share(world_system, [dialogues.tones_question(row) for row in TONES]) >= ENOUGH


@thinned
async def test_what_is_seen_and_heard_is_named_in_one_answer(world_system: System, every: int):
    pairs = zip(UNSEEN[::every], itertools.cycle(TONES))

    assert (
        await measure_share(world_system, [dialogues.scene_and_tones_question(scene, row) for scene, row in pairs])
        >= ENOUGH
    )


@thinned
@pytest.mark.parametrize("kind", ["colour", "shape", "count", "place", "ground", "say", "read"])
async def test_each_question_gets_the_answer_to_it(world_system: System, kind: str, every: int):
    random = np.random.default_rng(5)
    questions = [dialogues.sample_question(random, kind, scene, TONES[4]) for scene in UNSEEN[:: 2 * every]]

    assert len({talk.answer for talk in questions}) > 1
    assert await measure_share(world_system, questions) >= ENOUGH


@thinned
@pytest.mark.parametrize("voice", tone_synth.VOICES)
async def test_the_spoken_answer_says_the_words_of_the_written_one(world_system: System, voice: str, every: int):
    questions = [
        dialogues.scene_and_tones_question(scene, row)
        for scene, row in zip(UNSEEN[:: 4 * every], itertools.cycle(TONES), strict=False)
    ]

    async with open_door(world_system) as http:
        answers = await some_at_once([ask_dialogue(http, talk, seed, voice) for seed, talk in enumerate(questions)])

    transcripts = [
        (audio_oracle.recognize_words(answer.sound), audio_oracle.recognize_voice(answer.sound)) for answer in answers
    ]
    assert (
        share_of_right(
            [
                transcript == (talk.answer.split(), voice)
                for transcript, talk in zip(transcripts, questions, strict=True)
            ]
        )
        >= ENOUGH
    )
    assert (
        share_of_right([answer.text == talk.answer for answer, talk in zip(answers, questions, strict=True)]) >= ENOUGH
    )
    await world_system.ledger_is_empty()


@pytest.mark.behaviour(
    "transformers 5.19",
    "leaves the last word out of the audio of an answer that `thinker_max_new_tokens` ends, and raises an error for one "
    "token: the row of a token comes with the next one",
    "computes one more token, which is dropped, so that the audio says all of the transcript",
    source="modeling_qwen2_5_omni.py, Qwen2_5OmniForConditionalGeneration.generate",
)
@pytest.mark.parametrize("path", ["", "M"])
async def test_a_cut_answer_is_spoken_as_far_as_it_is_written(world_system: System, path: str):
    sentences = [scene.caption for scene in UNSEEN[::16]]
    cuts = [{"max_tokens": count} for count in range(1, 6)] + [{"stop": [" on"]}, {"stop": [" red"]}, {"stop": ["on"]}]
    cases = [(text, cut) for text in sentences for cut in cuts]

    async with open_door(world_system) as http:
        answers = await some_at_once(
            [
                send_chat(http, dialogues.speech_question(text).messages, "Chelsie", path, seed=1, **cut)
                for text, cut in cases
            ]
        )

    assert all(text.startswith(answer.text.strip()) for (text, _), answer in zip(cases, answers, strict=True))
    transcripts = [audio_oracle.recognize_words(answer.sound) or [] for answer in answers]
    assert (
        share_of_right([words == answer.text.split() for words, answer in zip(transcripts, answers, strict=True)])
        >= ENOUGH
    )
    await world_system.ledger_is_empty()
