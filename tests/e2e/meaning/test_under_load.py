"""Concurrent clients with different scenes each get the right answer."""

import itertools
from collections.abc import Awaitable, Callable

import httpx
import pytest

from omnibus_models.world import audio_oracle, dialogues, image_oracle, scenes, tone_synth
from tests.e2e.meaning.asking import ENOUGH, ask, open_door, paint, share, some_at_once
from tests.e2e.system import System

pytestmark = pytest.mark.e2e

SCENES = scenes.held_out_scenes()
TONES = [row for count in (1, 2, 3) for row in itertools.product(tone_synth.TONES, repeat=count)]
#: Actual and expected answer.
Told = tuple[str, str]


@pytest.mark.parametrize(("at_once", "count"), [(15, 15), pytest.param(32, 48, marks=pytest.mark.nightly)])
async def test_each_of_many_at_once_gets_what_it_gets_alone(house: System, at_once: int, count: int):
    """A third request text about image and audio, others speech or images."""
    crowd = list(enumerate(SCENES[:count]))
    async with open_door(house) as http:
        alone = await some_at_once([_one(http, scene, place) for place, scene in crowd], 1)
        crowded = await some_at_once([_one(http, scene, place) for place, scene in crowd], at_once)

    assert len({wanted for _, wanted in crowded}) == count
    assert [(one, other) for one, other in zip(crowded, alone, strict=True) if one != other] == []
    assert share([told == wanted for told, wanted in crowded]) >= ENOUGH
    await house.ledger_is_empty()


def _one(http: httpx.AsyncClient, scene: scenes.ShapeScene, place: int) -> Awaitable[Told]:
    kinds: tuple[Callable[[httpx.AsyncClient, scenes.ShapeScene, int], Awaitable[Told]], ...] = (
        _written,
        _spoken,
        _drawn,
    )
    return kinds[place % len(kinds)](http, scene, place)


async def _written(http: httpx.AsyncClient, scene: scenes.ShapeScene, seed: int) -> Told:
    talk = dialogues.scene_and_tones_question(scene, TONES[seed % len(TONES)])
    return (await ask(http, talk, seed)).text, talk.answer


async def _spoken(http: httpx.AsyncClient, scene: scenes.ShapeScene, seed: int) -> Told:
    talk = dialogues.scene_question(scene)
    answer = await ask(http, talk, seed, "Ethan")
    return (
        f"{answer.text}, {' '.join(audio_oracle.recognize_words(answer.sound) or [])}",
        f"{talk.answer}, {talk.answer}",
    )


async def _drawn(http: httpx.AsyncClient, scene: scenes.ShapeScene, seed: int) -> Told:
    seen = image_oracle.recognize_scene(await paint(http, scene.caption, seed))
    return seen.caption if seen else "nothing", scene.caption
