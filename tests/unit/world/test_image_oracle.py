"""An image's content is recognised from its pixels alone."""

import io

import numpy as np
import pytest
from PIL import Image

from omnibus_models.world import image_oracle, scenes
from omnibus_models.world.scenes import COLOURS, ShapeScene


def test_every_scene_is_told_from_a_picture_of_it():
    random = np.random.default_rng(1)

    wrong = [
        scene
        for scene in scenes.all_scenes()
        if image_oracle.recognize_scene(scenes.draw_scene(scene, random)) != scene
    ]

    assert len(wrong) <= 1  # of 630: noise may blur one


def test_the_plainest_pictures_are_always_told():
    random = np.random.default_rng(0)

    assert [
        scene
        for scene in scenes.all_scenes()
        if image_oracle.recognize_scene(scenes.draw_scene(scene, random, 0)) != scene
    ] == []


def test_a_larger_picture_shows_the_same_scene():
    scene = ShapeScene(2, "red", "circle", "middle", "blue")
    large = Image.fromarray(scenes.draw_scene(scene, np.random.default_rng(2))).resize((200, 200))

    assert image_oracle.recognize_scene(np.asarray(large)) == scene


@pytest.mark.parametrize("colour", COLOURS.values(), ids=COLOURS)
def test_a_plain_surface_shows_nothing(colour: tuple[int, int, int]):
    assert image_oracle.recognize_scene(np.full((64, 64, 3), colour, np.uint8)) is None


def test_noise_shows_nothing_that_is_meant():
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)

    assert image_oracle.recognize_scene(noise) not in set(scenes.all_scenes())


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"colour": "green"}, "colour"),
        ({"shape": "square"}, "shape"),
        ({"ground": "white"}, "ground"),
        ({"count": 3}, "count"),
    ],
)
def test_one_difference_is_told_as_that_difference(changes: dict[str, object], field: str):
    scene = ShapeScene(2, "red", "circle", "middle", "blue")
    other = ShapeScene(**{**vars(scene), **changes})

    actual_scene = image_oracle.recognize_scene(scenes.draw_scene(other, np.random.default_rng(3)))

    assert actual_scene is not None
    assert {name for name in vars(scene) if getattr(actual_scene, name) != getattr(scene, name)} == {field}


def test_captions_are_all_different_and_lead_back_to_their_scenes():
    every = scenes.all_scenes()

    assert len({scene.caption for scene in every}) == len(every) == 630
    assert all(scenes.scene_of_caption(scene.caption) == scene for scene in every)
    assert scenes.scene_of_caption("a red square on red") is None


def test_scenes_of_the_tests_are_of_every_kind_and_none_of_the_training():
    unseen = scenes.held_out_scenes()

    assert not set(unseen) & set(scenes.training_scenes())
    assert 60 <= len(unseen) <= 130
    for name in ("colour", "shape", "place", "ground"):
        assert {getattr(scene, name) for scene in unseen} == {getattr(scene, name) for scene in scenes.all_scenes()}
    assert {scene.count for scene in unseen} == {1, 2}


def test_a_picture_is_a_png_file_of_its_pixels():
    picture = scenes.draw_scene(scenes.all_scenes()[0], np.random.default_rng(0))

    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(scenes.encode_png(picture)))), picture)
