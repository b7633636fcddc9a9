"""The trained checkpoints in the libraries alone: they name, speak and draw correctly."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from omnibus import errors
from omnibus_models import world
from omnibus_models.world import audio_oracle, checkpoint_io, dialogues, image_oracle, scenes, tone_synth
from tests import models_oracle as oracle
from tools.world_training import __main__ as making
from tools.world_training import omni
from tools.world_training import painter_model as painter

UNSEEN = scenes.held_out_scenes()
_LARGEST = 6 * 1024**2  # bytes of all weights together

OMNI, PAINTER = (world.checkpoint_directory(family) for family in world.FAMILIES)


def make_media(talk: dialogues.Dialogue, seed: int) -> dict[str, list[bytes]]:
    """Return the files of a question."""
    random = np.random.default_rng(seed)
    files = {}
    if talk.scene:
        files["image"] = [scenes.encode_png(scenes.draw_scene(talk.scene, random))]
    if talk.tones:
        files["audio"] = [
            tone_synth.encode_wav(tone_synth.synthesize_tones(list(talk.tones), random), tone_synth.INPUT_RATE_HERTZ)
        ]
    return files


@pytest.mark.parametrize("kind", dialogues.SHARES)
def test_the_library_alone_answers_right_about_what_no_training_saw(kind: str):
    random = np.random.default_rng(2)
    questions = [
        dialogues.sample_question(random, kind, scene, dialogues.sample_tones(random)) for scene in UNSEEN[::12]
    ]

    answers = [
        oracle.omni_text(OMNI, talk.messages, make_media(talk, seed), 40)[1] for seed, talk in enumerate(questions)
    ]

    assert sum(text == talk.answer for text, talk in zip(answers, questions, strict=True)) >= len(questions) - 1


@pytest.mark.parametrize("voice", tone_synth.VOICES)
def test_the_library_alone_speaks_its_answer(voice: str):
    for seed, scene in enumerate(UNSEEN[::32]):
        talk = dialogues.scene_and_tones_question(scene, ("low", "low", "high"))

        _, text, codes, wave = oracle.omni_answer(OMNI, talk.messages, make_media(talk, seed), 40, voice, 200, seed)

        assert text == talk.answer
        assert codes == tone_synth.speech_codes(text)
        samples = wave.numpy().reshape(-1)
        assert (audio_oracle.recognize_words(samples), audio_oracle.recognize_voice(samples)) == (text.split(), voice)


def test_the_library_alone_draws_what_it_is_told():
    from diffusers import QwenImagePipeline

    pipeline: Any = QwenImagePipeline.from_pretrained(PAINTER)
    pipeline.set_progress_bar_config(disable=True)
    pictures = [
        pipeline(
            scene.caption,
            negative_prompt="",
            width=scenes.SIDE,
            height=scenes.SIDE,
            num_inference_steps=8,
            true_cfg_scale=2.0,
            generator=torch.Generator().manual_seed(seed),
        ).images[0]
        for seed, scene in enumerate(UNSEEN[::8])
    ]

    actual_scenes = [image_oracle.recognize_scene(np.asarray(picture)) for picture in pictures]

    assert (
        sum(actual == scene for actual, scene in zip(actual_scenes, UNSEEN[::8], strict=True)) >= len(actual_scenes) - 1
    )


def test_the_weights_are_small():
    files = [
        path for family in world.FAMILIES for path in world.checkpoint_directory(family).rglob("*") if path.is_file()
    ]

    assert sum(path.stat().st_size for path in files) < _LARGEST
    assert {path.suffix for path in files} <= {
        ".json",
        ".jinja",
        ".safetensors",
        ".pt",
    }  # .pt: the voices, as upstream has them


@pytest.mark.parametrize("family", world.FAMILIES)
def test_each_file_is_the_one_that_was_trained(family: str):
    directory = world.checkpoint_directory(family)
    manifest = json.loads((directory / checkpoint_io.MANIFEST).read_text())

    digests = checkpoint_io.file_digests(directory)

    assert {name: digest for name, digest in digests.items() if name != checkpoint_io.MANIFEST} == manifest["files"]
    parts = {omni.FAMILY: making.SPEAKING, painter.FAMILY: making.PAINTING}[family]
    assert manifest["made"] == {"seed": 0, "steps": making.steps(parts)}


def test_what_is_trained_anew_has_the_same_configuration_and_weights_of_the_same_shapes(tmp_path: Path):
    omni.save(omni.build(0), tmp_path / omni.FAMILY)
    painter.save(painter.build(0), tmp_path / painter.FAMILY)

    for family in world.FAMILIES:
        assert describe_directory(tmp_path / family) == describe_directory(world.checkpoint_directory(family))


def describe_directory(directory: Path) -> dict[str, Any]:
    """Return the configurations, without image statistics, and the shapes of weights."""
    description: dict[str, Any] = {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if path.suffix == ".json" and path.name != checkpoint_io.MANIFEST:
            config = json.loads(path.read_text())
            description[name] = {key: value for key, value in config.items() if not key.startswith("latents_")}
        elif path.suffix == ".safetensors":
            with safe_open(path, "pt") as file:
                description[name] = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    return description


def test_other_families_were_not_trained():
    with pytest.raises(errors.NotFound, match="qwen_image"):
        world.checkpoint_directory("ltx2")


def test_each_checkpoint_is_a_directory_of_the_package():
    for family in world.FAMILIES:
        assert world.checkpoint_directory(family).is_relative_to(Path(world.__file__).parent)
