"""Descriptions survive a round trip through images and speech.

Models generate an image from text, describe it, and transcribe the spoken description.
"""

import numpy as np
import pytest

from omnibus_models.world import audio_oracle, dialogues, image_oracle, scenes
from tests.e2e.meaning.asking import (
    ENOUGH,
    PAINTER,
    Answer,
    ask,
    decode_image,
    look,
    open_door,
    paint,
    share,
    some_at_once,
    thinned,
)
from tests.e2e.system import System

pytestmark = pytest.mark.e2e

UNSEEN = scenes.held_out_scenes()


@thinned
@pytest.mark.parametrize("path", ["TDV", "T>D>V"])
async def test_scenes_are_drawn_as_they_are_told(house: System, path: str, every: int):
    random = np.random.default_rng(7)
    chosen = UNSEEN[::every] if path == "TDV" else UNSEEN[:: 2 * every]
    wishes = [dialogues.sample_image_prompt(random, scene) for scene in chosen]

    async with open_door(house) as http:
        drawn = await some_at_once([paint(http, wish, seed, path) for seed, wish in enumerate(wishes)])

    assert (
        share([image_oracle.recognize_scene(picture) == scene for picture, scene in zip(drawn, chosen, strict=True)])
        >= ENOUGH
    )
    await house.ledger_is_empty()


async def test_a_request_that_says_no_more_gets_what_the_model_is_declared_with(house: System):
    scene, wish = UNSEEN[0], {"model": PAINTER, "prompt": UNSEEN[0].caption, "seed": 1}

    async with open_door(house) as http:
        plain = await http.post("/v1/images/generations", json=wish)
        said = await http.post("/v1/images/generations", json=wish | {"size": "64x64", "steps": 8, "guidance": 2})
        other = await http.post("/v1/images/generations", json=wish | {"size": "80x64"})

    assert plain.json()["data"] == said.json()["data"]
    assert image_oracle.recognize_scene(decode_image(plain)) == scene
    assert decode_image(other).shape == (64, 80, 3)


async def test_another_seed_draws_another_picture_of_the_same_scene(house: System):
    scene = UNSEEN[0]

    async with open_door(house) as http:
        drawn = await some_at_once([paint(http, scene.caption, seed) for seed in range(4)])

    assert len({picture.tobytes() for picture in drawn}) == 4
    assert {image_oracle.recognize_scene(picture) for picture in drawn} == {scene}


async def test_a_picture_of_the_words_for_a_picture_has_the_same_words(house: System):
    chosen = UNSEEN[1::3]

    async with open_door(house) as http:

        async def round_trip(scene: scenes.ShapeScene, seed: int) -> tuple[str, str]:
            first = (await ask(http, dialogues.scene_question(scene), seed)).text
            again = await paint(http, first, seed)
            return first, (await look(http, scenes.encode_png(again), dialogues.SEE[0])).text

        told = await some_at_once([round_trip(scene, seed) for seed, scene in enumerate(chosen)])

    assert share([first == scene.caption for (first, _), scene in zip(told, chosen, strict=True)]) >= ENOUGH
    assert share([second == scene.caption for (_, second), scene in zip(told, chosen, strict=True)]) >= ENOUGH
    await house.ledger_is_empty()


@thinned
async def test_what_is_drawn_is_named_in_speech(house: System, every: int):
    """Image to description to speech: all components of both models except the audio encoder."""
    chosen = UNSEEN[2 :: 4 * every]

    async with open_door(house) as http:

        async def round_trip(scene: scenes.ShapeScene, seed: int) -> Answer:
            drawn = await paint(http, scene.caption, seed)
            return await look(http, scenes.encode_png(drawn), dialogues.SEE[0], "Chelsie")

        said = await some_at_once([round_trip(scene, seed) for seed, scene in enumerate(chosen)])

    captions = [scene.caption for scene in chosen]
    assert share([answer.text == caption for answer, caption in zip(said, captions, strict=True)]) >= ENOUGH
    assert share([audio_oracle.recognize_words(answer.sound) == answer.text.split() for answer in said]) >= ENOUGH
    await house.ledger_is_empty()
