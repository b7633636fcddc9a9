"""Descriptions survive a round trip through images and speech.

Models generate an image from text, describe it, and transcribe the spoken description.
"""

import numpy as np
import pytest

from omnibus_models.world import audio_oracle, dialogues, image_oracle, scenes
from tests.e2e.meaning.asking import (
    ENOUGH,
    PAINTER,
    VoiceAnswer,
    ask_dialogue,
    ask_picture,
    decode_image,
    open_door,
    paint_image,
    share_of_right,
    some_at_once,
    thinned,
)
from tests.e2e.system import System

pytestmark = pytest.mark.e2e

UNSEEN = scenes.held_out_scenes()


@thinned
@pytest.mark.parametrize("path", ["TDV", "T>D>V"])
async def test_scenes_are_drawn_as_they_are_told(world_system: System, path: str, every: int):
    random = np.random.default_rng(7)
    selection = UNSEEN[::every] if path == "TDV" else UNSEEN[:: 2 * every]
    wishes = [dialogues.sample_image_prompt(random, scene) for scene in selection]

    async with open_door(world_system) as http:
        pictures = await some_at_once([paint_image(http, wish, seed, path) for seed, wish in enumerate(wishes)])

    assert (
        share_of_right(
            [image_oracle.recognize_scene(picture) == scene for picture, scene in zip(pictures, selection, strict=True)]
        )
        >= ENOUGH
    )
    await world_system.ledger_is_empty()


async def test_a_request_that_says_no_more_gets_what_the_model_is_declared_with(world_system: System):
    scene, wish = UNSEEN[0], {"model": PAINTER, "prompt": UNSEEN[0].caption, "seed": 1}

    async with open_door(world_system) as http:
        plain = await http.post("/v1/images/generations", json=wish)
        explicit = await http.post("/v1/images/generations", json=wish | {"size": "64x64", "steps": 8, "guidance": 2})
        other = await http.post("/v1/images/generations", json=wish | {"size": "80x64"})

    assert plain.json()["data"] == explicit.json()["data"]
    assert image_oracle.recognize_scene(decode_image(plain)) == scene
    assert decode_image(other).shape == (64, 80, 3)


async def test_another_seed_draws_another_picture_of_the_same_scene(world_system: System):
    scene = UNSEEN[0]

    async with open_door(world_system) as http:
        pictures = await some_at_once([paint_image(http, scene.caption, seed) for seed in range(4)])

    assert len({picture.tobytes() for picture in pictures}) == 4
    assert {image_oracle.recognize_scene(picture) for picture in pictures} == {scene}


async def test_a_picture_of_the_words_for_a_picture_has_the_same_words(world_system: System):
    selection = UNSEEN[1::3]

    async with open_door(world_system) as http:

        async def round_trip(scene: scenes.ShapeScene, seed: int) -> tuple[str, str]:
            first = (await ask_dialogue(http, dialogues.scene_question(scene), seed)).text
            again = await paint_image(http, first, seed)
            return first, (await ask_picture(http, scenes.encode_png(again), dialogues.SEE[0])).text

        captions = await some_at_once([round_trip(scene, seed) for seed, scene in enumerate(selection)])

    assert (
        share_of_right([first == scene.caption for (first, _), scene in zip(captions, selection, strict=True)])
        >= ENOUGH
    )
    assert (
        share_of_right([second == scene.caption for (_, second), scene in zip(captions, selection, strict=True)])
        >= ENOUGH
    )
    await world_system.ledger_is_empty()


@thinned
async def test_what_is_drawn_is_named_in_speech(world_system: System, every: int):
    """Image to description to speech: all components of both models except the audio encoder."""
    selection = UNSEEN[2 :: 4 * every]

    async with open_door(world_system) as http:

        async def round_trip(scene: scenes.ShapeScene, seed: int) -> VoiceAnswer:
            picture = await paint_image(http, scene.caption, seed)
            return await ask_picture(http, scenes.encode_png(picture), dialogues.SEE[0], "Chelsie")

        answers = await some_at_once([round_trip(scene, seed) for seed, scene in enumerate(selection)])

    captions = [scene.caption for scene in selection]
    assert share_of_right([answer.text == caption for answer, caption in zip(answers, captions, strict=True)]) >= ENOUGH
    assert (
        share_of_right([audio_oracle.recognize_words(answer.sound) == answer.text.split() for answer in answers])
        >= ENOUGH
    )
    await world_system.ledger_is_empty()
