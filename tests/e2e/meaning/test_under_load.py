"""Concurrent clients with different scenes each get the right answer."""

import itertools
from collections.abc import Awaitable, Callable

import httpx
import pytest

from omnibus_models.world import audio_oracle, dialogues, image_oracle, scenes, tone_synth
from tests.e2e.meaning.asking import ENOUGH, ask_dialogue, open_door, paint_image, share_of_right, some_at_once
from tests.e2e.system import System

pytestmark = pytest.mark.e2e

SCENES = scenes.held_out_scenes()
TONES = [row for count in (1, 2, 3) for row in itertools.product(tone_synth.TONES, repeat=count)]
#: Actual and expected answer.
Told = tuple[str, str]


@pytest.mark.parametrize(("at_once", "count"), [(15, 15), pytest.param(32, 48, marks=pytest.mark.nightly)])
async def test_each_of_many_at_once_gets_what_it_gets_alone(world_system: System, at_once: int, count: int):
    """A third request text about image and audio, others speech or images."""
    crowd = list(enumerate(SCENES[:count]))
    async with open_door(world_system) as http:
        alone = await some_at_once([_ask_one(http, scene, place) for place, scene in crowd], 1)
        parallel = await some_at_once([_ask_one(http, scene, place) for place, scene in crowd], at_once)

    assert len({expected_text for _, expected_text in parallel}) == count
    assert [(one, other) for one, other in zip(parallel, alone, strict=True) if one != other] == []
    assert share_of_right([text == expected_answer for text, expected_answer in parallel]) >= ENOUGH
    await world_system.ledger_is_empty()


def _ask_one(http: httpx.AsyncClient, scene: scenes.ShapeScene, place: int) -> Awaitable[Told]:
    kinds: tuple[Callable[[httpx.AsyncClient, scenes.ShapeScene, int], Awaitable[Told]], ...] = (
        _ask_written,
        _ask_spoken,
        _ask_drawn,
    )
    return kinds[place % len(kinds)](http, scene, place)


async def _ask_written(http: httpx.AsyncClient, scene: scenes.ShapeScene, seed: int) -> Told:
    talk = dialogues.scene_and_tones_question(scene, TONES[seed % len(TONES)])
    return (await ask_dialogue(http, talk, seed)).text, talk.answer


async def _ask_spoken(http: httpx.AsyncClient, scene: scenes.ShapeScene, seed: int) -> Told:
    talk = dialogues.scene_question(scene)
    answer = await ask_dialogue(http, talk, seed, "Ethan")
    return (
        f"{answer.text}, {' '.join(audio_oracle.recognize_words(answer.sound) or [])}",
        f"{talk.answer}, {talk.answer}",
    )


async def _ask_drawn(http: httpx.AsyncClient, scene: scenes.ShapeScene, seed: int) -> Told:
    recognition = image_oracle.recognize_scene(await paint_image(http, scene.caption, seed))
    return recognition.caption if recognition else "nothing", scene.caption
