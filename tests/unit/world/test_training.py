"""Models are trained on the same inputs that they receive when served."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omnibus_models.families import qwen2_5_omni
from omnibus_models.families.qwen_image import SKIPPED_TOKENS, TEMPLATE
from omnibus_models.world import dialogues, scenes, tone_synth
from tools.world_training import loop, omni, pools, thinker, vae, vocoder
from tools.world_training import painter_model as painter
from tools.world_training.painter import Reader
from tools.world_training.talker import Lesson

FAMILY = qwen2_5_omni.FAMILY


@pytest.fixture(scope="module")
def model() -> Any:
    """An untrained model, with weights large enough for every input to matter."""
    omni_model = omni.build(0).eval()
    loop.spread(omni_model, 0)
    with torch.no_grad():
        for parameter in omni_model.parameters():
            parameter.copy_(parameter.bfloat16())  # as it is stored
    return omni_model


@pytest.fixture(scope="module")
def checkpoint(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("untrained")
    omni.save(model, directory)
    return directory


@pytest.fixture(scope="module")
def teacher(model: Any, checkpoint: Path) -> thinker.Teacher:
    return thinker.Teacher(model, scenes.training_scenes(), 0, (1, 1))


def test_pictures_become_patches_as_the_encoder_prepares_them(checkpoint: Path):
    pictures = pools.pictures(scenes.training_scenes(), 3, 0)
    vision = FAMILY.load("vision", checkpoint)

    prepared_pictures = [
        vision.prepare(memoryview(scenes.encode_png(each.numpy())), "image") for each in pictures.pixels
    ]

    assert [each.features["grid"].tolist() for each in prepared_pictures] == [[[1, 8, 8]]] * 3
    torch.testing.assert_close(
        pools.patches(pictures.pixels), torch.cat([each.features["pixels"] for each in prepared_pictures])
    )


@pytest.mark.parametrize("kind", ["see", "hear", "both", "read"])
@torch.no_grad()
def test_a_question_is_laid_out_as_it_is_served(model: Any, checkpoint: Path, teacher: thinker.Teacher, kind: str):
    batch = teacher.batch(1, kind)
    [talk] = batch.talks
    thinker_engine = FAMILY.load("thinker", checkpoint)
    prefill = thinker_engine.assemble_prefill(thinker_engine.prompt(talk.messages), _encode_media(checkpoint, batch))
    length = len(prefill.inputs)

    hidden = thinker_engine.forward(prefill.inputs[None], prefill.positions[:, None], None, None)

    torch.testing.assert_close(thinker.answered(model.thinker, batch)[:, :length], hidden, atol=1e-4, rtol=1e-4)
    label_mask = batch.labels[0] >= 0
    assert int(label_mask.nonzero()[0]) == length - 1
    tokenizer = omni.tokenizer()
    assert tokenizer.decode(batch.labels[0][label_mask]) == f"{talk.answer}<|im_end|>"


def test_short_questions_are_learnt_with_short_ones(teacher: thinker.Teacher):
    parts = teacher.batches(24, 3)

    lengths = [(batch.ids != teacher._pad).sum(1) for batch in parts]
    assert [len(batch.talks) for batch in parts] == [8, 8, 8]
    assert parts[0].ids.shape[1] < parts[2].ids.shape[1]
    assert lengths[0].float().mean() < lengths[2].float().mean()


@torch.no_grad()
def test_a_talker_learns_from_what_it_is_served(model: Any, checkpoint: Path, teacher: thinker.Teacher):
    batch = teacher.batch(1, "see")
    inputs, positions, labels = Lesson(model, 0).of(batch)
    thinker_engine, talker = FAMILY.load("thinker", checkpoint), FAMILY.load("talker", checkpoint)
    prefill = thinker_engine.assemble_prefill(
        thinker_engine.prompt(batch.talks[0].messages), _encode_media(checkpoint, batch)
    )
    length, words = len(prefill.inputs), batch.talks[0].answer.split()
    hidden = thinker_engine.forward(prefill.inputs[None], prefill.positions[:, None], None, None)[0]
    prompts = [thinker_engine.talker_prompt(prefill, hidden, voice) for voice in tone_synth.VOICES]
    ids = batch.ids[:, length : length + len(words)]
    answer = torch.cat([prefill.inputs, thinker_engine.embed(ids[0])])[None]
    answer_hidden = thinker_engine.forward(answer, batch.positions[:, :, : answer.shape[1]], None, None)[0, length:]
    rows = thinker_engine.talker_row(thinker_engine.embed(ids[0]), answer_hidden)

    starts = [
        talker.start(prompt, prefill.positions, rows[0], voice)
        for prompt, voice in zip(prompts, tone_synth.VOICES, strict=True)
    ]
    codes = tone_synth.speech_codes(batch.talks[0].answer)
    rest = torch.cat([rows[1:], prompts[0][-2:-1], prompts[0][-1:].expand(len(codes) - len(rows), -1)])
    steps = talker.step_inputs(torch.tensor(codes), rest)

    assert any(torch.allclose(inputs[0, : length + 2], start.inputs, atol=1e-4) for start in starts)
    torch.testing.assert_close(inputs[0, length + 2 :], steps, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(positions[:, 0, : length + 2], starts[0].positions)
    assert labels[0, length + 1 :].tolist() == [*codes, talker.module.codec_eos_token]
    assert (labels[0, : length + 1] == -100).all()


@torch.no_grad()
def test_flat_convolutions_are_those_of_a_single_frame():
    autoencoder = painter.build(0)["vae"].eval()
    pixels = pools.pictures(scenes.training_scenes(), 2, 0).pixels
    colours = pixels.permute(0, 3, 1, 2).float()[:, :, None] / 127.5 - 1

    with vae.flat():
        latents = vae.encoded(autoencoder, pixels)
        decoded_pixels = vae.decoded(autoencoder, latents)

    torch.testing.assert_close(latents, autoencoder.encode(colours).latent_dist.mean[:, :, 0], atol=1e-4, rtol=1e-4)
    usual = autoencoder.decode(latents[:, :, None]).sample[:, :, 0]
    torch.testing.assert_close(decoded_pixels.clamp(-1, 1), usual, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_prompts_are_read_as_they_are_served(tmp_path: Path):
    from omnibus_models.families import qwen_image

    components = painter.build(0)
    with torch.no_grad():
        for parameter in components["text_encoder"].parameters():
            parameter.copy_(parameter.bfloat16())  # as it is stored
    painter.save(components, tmp_path)
    text_encoder = qwen_image.FAMILY.load("text_encoder", tmp_path)
    prompts = ["", "a red square on blue", "draw two green circles on a white background"]

    hidden, mask = Reader(components).read(prompts)

    for row, prompt in enumerate(prompts):
        [encoding] = text_encoder.encode([text_encoder.prepare(prompt)])
        torch.testing.assert_close(hidden[row][mask[row]], encoding.embeds, atol=1e-4, rtol=1e-4)


def test_each_word_is_one_token_and_the_pipelines_own_words_are_as_many_as_it_leaves_out():
    for word_tokenizer in (omni.tokenizer(), painter.tokenizer()):
        for word in tone_synth.WORDS:
            assert [len(word_tokenizer(form)["input_ids"]) for form in (word, f" {word}")] == [1, 1]
    before = TEMPLATE.split("{}")[0]
    assert len(painter.tokenizer()(before)["input_ids"]) == SKIPPED_TOKENS


def test_bands_sound_as_codes_say():
    [high] = [place for place, pitch in enumerate(tone_synth.PITCHES) if pitch == 1300]
    codes = [1 + tone_synth.SYLLABLE_CODES * high + phase for phase in range(tone_synth.SYLLABLE_CODES)]

    spectrum = vocoder.bands(codes, "Ethan")

    assert spectrum.shape == (2 * len(codes), omni.MEL)
    assert sorted(set(np.flatnonzero(spectrum[0] > 0))) == [0, 1 + high]
    assert (spectrum[-1] < 0).all()
    assert (vocoder.bands(codes, "Chelsie")[:, 0] < 0).all()


@pytest.mark.parametrize("kind", dialogues.SHARES)
def test_no_question_of_the_training_is_about_what_tests_ask(teacher: thinker.Teacher, kind: str):
    batch = teacher.batch(20, kind)

    assert not {talk.scene for talk in batch.talks} & set(scenes.held_out_scenes())
    assert not {talk.answer for talk in batch.talks} & {scene.caption for scene in scenes.held_out_scenes()}


def _encode_media(checkpoint: Path, batch: thinker.Batch) -> list[Any]:
    """Return the media of a batch of one, encoded alone."""
    items = []
    if batch.pixels is not None:
        encoder = FAMILY.load("vision", checkpoint)
        picture = encoder.prepare(memoryview(scenes.encode_png(np.zeros((64, 64, 3), np.uint8))), "image")
        features = {"pixels": batch.pixels, "grid": batch.grids}
        items += encoder.encode([type(picture)("image", features, picture.meta)])
    if batch.mels:
        encoder = FAMILY.load("audio", checkpoint)
        frames = batch.mels[0].shape[1]
        silence = encoder.prepare(
            memoryview(tone_synth.encode_wav(np.zeros(frames * 160), tone_synth.INPUT_RATE_HERTZ)), "audio"
        )
        items += encoder.encode([type(silence)("audio", {"features": batch.mels[0]}, silence.meta)])
    return items
