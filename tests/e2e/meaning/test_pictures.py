"""What is told is drawn: scenes that no training saw, each for whoever asked for it."""

import numpy as np
import pytest

from omnibus_models.world import looking, scenes, talks
from tests.e2e.meaning.asking import ENOUGH, open_door, paint, share, some_at_once
from tests.e2e.system import System

pytestmark = pytest.mark.e2e

UNSEEN = scenes.unseen()
AT_ONCE = 32


@pytest.mark.parametrize("path", ["TDV", "T>D>V"])
async def test_scenes_are_drawn_as_they_are_told(house: System, path: str):
    random = np.random.default_rng(7)
    chosen = UNSEEN if path == "TDV" else UNSEEN[::2]
    wishes = [talks.wish(random, scene) for scene in chosen]

    async with open_door(house) as http:
        drawn = await some_at_once([paint(http, wish, seed, path) for seed, wish in enumerate(wishes)])

    assert share([looking.seen(picture) == scene for picture, scene in zip(drawn, chosen, strict=True)]) >= ENOUGH
    await house.ledger_is_empty()


async def test_words_of_a_picture_draw_a_picture_of_the_same_words(house: System):
    """Words, picture, words as its pixels have them, picture again: nothing is lost on the way."""
    chosen = UNSEEN[1::4]

    async with open_door(house) as http:

        async def round_trip(scene: scenes.Scene, seed: int) -> tuple[scenes.Scene | None, scenes.Scene | None]:
            first = looking.seen(await paint(http, scene.caption, seed))
            again = looking.seen(await paint(http, first.caption, seed + 1)) if first else None
            return first, again

        found = await some_at_once([round_trip(scene, seed) for seed, scene in enumerate(chosen)])

    assert share([first == scene for (first, _), scene in zip(found, chosen, strict=True)]) >= ENOUGH
    assert share([again == first for first, again in found]) >= ENOUGH


async def test_another_seed_draws_another_picture_of_the_same_scene(house: System):
    scene = UNSEEN[0]

    async with open_door(house) as http:
        drawn = await some_at_once([paint(http, scene.caption, seed) for seed in range(4)])

    assert len({picture.tobytes() for picture in drawn}) == 4
    assert {looking.seen(picture) for picture in drawn} == {scene}


async def test_each_of_many_at_once_gets_its_own_picture(house: System):
    """What each gets in a crowd shows what it gets alone."""
    wishes = [scene.caption for scene in UNSEEN[:AT_ONCE]]
    assert len(set(wishes)) == AT_ONCE

    async with open_door(house) as http:
        alone = await some_at_once([paint(http, wish, seed, "TDV") for seed, wish in enumerate(wishes)], 1)
        crowded = await some_at_once([paint(http, wish, seed) for seed, wish in enumerate(wishes)], AT_ONCE)

    seen = [[looking.seen(picture) for picture in drawn] for drawn in (alone, crowded)]
    assert seen[0] == seen[1]
    assert (
        share([found is not None and found.caption == wish for found, wish in zip(seen[1], wishes, strict=True)])
        >= ENOUGH
    )
    await house.ledger_is_empty()
