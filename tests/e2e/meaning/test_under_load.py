"""Thirty-two clients at once, each with a scene of its own: nobody gets another one's answer."""

import itertools
from collections.abc import Awaitable

import httpx
import pytest

from omnibus_models.world import listening, looking, scenes, sounds, talks
from tests.e2e.meaning.asking import ask, open_door, paint, some_at_once
from tests.e2e.system import System

pytestmark = pytest.mark.e2e

AT_ONCE, ROUNDS = 32, 3
TONES = [row for count in (1, 2, 3) for row in itertools.product(sounds.TONES, repeat=count)]


def test_no_two_of_those_who_ask_at_once_have_one_answer():
    answers = [scene.caption for scene in crowd()]

    assert len(set(answers)) == len(answers) == AT_ONCE * ROUNDS


def crowd() -> tuple[scenes.Scene, ...]:
    return (scenes.unseen() + scenes.known())[: AT_ONCE * ROUNDS]


async def test_each_of_many_at_once_is_answered_for_its_own_scene(house: System):
    async with open_door(house) as http:
        asked = [_one(http, scene, place) for place, scene in enumerate(crowd())]

        found = await some_at_once(asked, AT_ONCE)

    assert [(told, wanted) for told, wanted in found if told != wanted] == []
    await house.ledger_is_empty()


def _one(http: httpx.AsyncClient, scene: scenes.Scene, place: int) -> Awaitable[tuple[str, str]]:
    """What came and what should have: text, text and speech, a picture, or what was to be repeated."""
    tones = TONES[place % len(TONES)]
    match place % 4:
        case 0:
            return _written(http, talks.both(scene, tones), place)
        case 1:
            return _spoken(http, talks.see(scene), place)
        case 2:
            return _drawn(http, scene, place)
        case _:
            return _written(http, talks.say(scene.caption), place)


async def _written(http: httpx.AsyncClient, talk: talks.Talk, seed: int) -> tuple[str, str]:
    return (await ask(http, talk, seed)).text, talk.answer


async def _spoken(http: httpx.AsyncClient, talk: talks.Talk, seed: int) -> tuple[str, str]:
    answer = await ask(http, talk, seed, "Ethan")
    return f"{answer.text}, {' '.join(listening.words(answer.sound) or [])}", f"{talk.answer}, {talk.answer}"


async def _drawn(http: httpx.AsyncClient, scene: scenes.Scene, seed: int) -> tuple[str, str]:
    seen = looking.seen(await paint(http, scene.caption, seed))
    return seen.caption if seen else "nothing", scene.caption
