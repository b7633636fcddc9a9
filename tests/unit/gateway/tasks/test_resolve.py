"""Choosing a model's composite task by its components' functions."""

import pytest

from omnibus.errors import BadRequest
from omnibus.families import catalog
from omnibus.plan import Plan
from omnibus.task import MLLM, Omni
from omnibus.task.library import DrawInput, EditInput, ImageEdit, ImageGeneration, VideoGeneration, VideoInput
from omnibus_gateway.tasks.resolve import (
    create_chat_task,
    create_image_task,
    create_video_task,
    max_reference_images,
    request_class,
)
from omnibus_planner.declared import declarations_file
from omnibus_planner.declared.declarations_file import DeclaredModel


def make_plan(*families: str) -> Plan:
    declarations = {name: DeclaredModel(name, "") for name in families}
    return Plan(1, 0, 1000.0, declarations_file.build_static_plans(declarations))


ALL = make_plan(*catalog.FAMILIES)
PAINTERS = {"qwen_image", "qwen_image_edit", "glm_image", "janus"}


@pytest.mark.parametrize("family", sorted(PAINTERS))
def test_the_painter_has_each_component_in_its_place(family: str):
    task = create_image_task(family, ALL)

    assert isinstance(task, ImageEdit if family == "qwen_image_edit" else ImageGeneration)
    assert (task.text_encoder.component, task.denoiser.component, task.decoder.component) == (
        "text_encoder",
        "dit",
        "vae",
    )
    assert {each.model for each in (task.text_encoder, task.denoiser, task.decoder)} == {family}
    if isinstance(task, ImageEdit):
        assert (task.vision.component, task.vae_encoder.component) == ("vision", "vae_encoder")
    else:
        assert (task.prior is not None) == (family == "glm_image")


def test_how_many_pictures_a_painter_takes_follows_from_its_request():
    making, editing = create_image_task("qwen_image", ALL), create_image_task("qwen_image_edit", ALL)

    assert (request_class(making), max_reference_images(making)) == (DrawInput, 0)
    assert (request_class(editing), max_reference_images(editing)) == (EditInput, 1)


def test_a_model_that_does_both_chats_and_makes_pictures():
    assert isinstance(create_chat_task("janus", ALL), MLLM)
    assert isinstance(create_image_task("janus", ALL), ImageGeneration)


def test_a_model_that_speaks_is_an_omni_model():
    assert isinstance(create_chat_task("qwen2_5_omni", ALL), Omni)


def test_the_filmer_has_each_component_in_its_place():
    task = create_video_task("ltx2", ALL)

    assert isinstance(task, VideoGeneration)
    assert task.sound is not None
    assert task.frame_encoder is not None
    parts = (task.text_encoder, task.frame_encoder, task.denoiser, task.decoder, task.sound)
    assert [part.component for part in parts] == ["text_encoder", "vae_encoder", "dit", "vae", "audio_vae"]
    assert request_class(task) is VideoInput


@pytest.mark.parametrize("family", ["qwen2", "qwen_image", "janus"])
def test_a_model_that_makes_no_videos_says_what_it_has(family: str):
    with pytest.raises(BadRequest, match="has no video output: its components"):
        create_video_task(family, ALL)


@pytest.mark.parametrize("family", ["qwen2", "qwen2_5_vl", "qwen2_5_omni", "ltx2"])
def test_a_model_that_makes_no_pictures_says_what_it_has(family: str):
    with pytest.raises(BadRequest, match="has no image output: its components"):
        create_image_task(family, ALL)


@pytest.mark.parametrize("family", ["qwen_image", "qwen_image_edit", "ltx2"])
def test_a_model_that_only_makes_pictures_is_no_chat_model(family: str):
    with pytest.raises(BadRequest, match="is not a chat model: its components are .*dit"):
        create_chat_task(family, ALL)
