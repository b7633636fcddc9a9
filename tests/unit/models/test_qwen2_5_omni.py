"""Qwen2.5-Omni in components has the same output as the whole model: ids, codes and waveform."""

from pathlib import Path
from typing import Any

import pytest
import torch

from omnibus.errors import BadMedia, BadRequest, TooLarge
from omnibus_models import families, media
from tests import models_oracle as oracle
from tests.close import assert_close
from tests.unit.models import files
from tests.unit.models.split import encode, talk, think

IMAGE, AUDIO, VIDEO = {"type": "image"}, {"type": "audio"}, {"type": "video"}
TOKENS, CODES, SEED = 10, 40, 7


def user(*parts: dict[str, str]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


CASES = {
    "text": (user(text("hello world, how are you today?")), {}),
    "image": (user(IMAGE, text("what is in this picture?")), {"image": [files.picture(1)]}),
    "audio": (user(AUDIO, text("what do you hear?")), {"audio": [files.tone(2.0)]}),
    "video": (user(VIDEO, text("summarise the video")), {"video": [files.film(2)]}),
    "image and audio": (
        user(IMAGE, AUDIO, text("describe")),
        {"image": [files.picture(2)], "audio": [files.tone(1.3, 1)]},
    ),
    "several of everything": (
        user(AUDIO, IMAGE, text("and"), VIDEO, IMAGE, AUDIO, text("describe the image")),
        {
            "image": [files.picture(3), files.picture(4, 120, 200)],
            "audio": [files.tone(0.7, 2), files.tone(3.1, 3)],
            "video": [files.film(3, 1)],
        },
    ),
}


@pytest.mark.numeric
@pytest.mark.parametrize("case", CASES)
def test_split_components_speak_like_the_whole_model(omni: Path, omni_parts: dict[str, Any], case: str) -> None:
    messages, given = CASES[case]
    encoders = [omni_parts["vision"], omni_parts["audio"]]

    thought = think(omni_parts["thinker"], encoders, messages, given, TOKENS, "Chelsie")
    codes = talk(omni_parts["talker"], thought, CODES, "Chelsie")
    wave = omni_parts["vocoder"].open("Chelsie", SEED).push(codes, last=True)

    expected = oracle.omni_answer(omni, messages, given, TOKENS, "Chelsie", CODES, SEED)
    assert thought.ids == expected[0]
    assert omni_parts["thinker"].decode_ids(thought.ids) == expected[1]
    assert codes == expected[2]
    torch.testing.assert_close(wave, expected[3], rtol=0, atol=1e-5)


@pytest.mark.numeric
@pytest.mark.parametrize("case", CASES)
def test_prompts_are_the_ids_of_the_joint_processor(omni: Path, omni_parts: dict[str, Any], case: str) -> None:
    messages, given = CASES[case]
    thinker = omni_parts["thinker"]
    prompt = thinker.prompt(messages)

    prefill = thinker.assemble_prefill(
        prompt, encode([omni_parts["vision"], omni_parts["audio"]], prompt.modalities, given)
    )

    expected = oracle.omni_inputs(omni, messages, given)["input_ids"][0]
    assert prefill.inputs.shape[0] == len(expected)
    rows = thinker.embed(expected)
    torch.testing.assert_close(prefill.inputs[~prefill.media], rows[~prefill.media], rtol=0, atol=0)


@pytest.mark.numeric
def test_text_alone_needs_no_talker(omni: Path, omni_parts: dict[str, Any]) -> None:
    messages, given = CASES["audio"]

    thought = think(omni_parts["thinker"], [omni_parts["audio"]], messages, given, TOKENS)

    assert thought.ids == oracle.omni_text(omni, messages, given, TOKENS)[0]


@pytest.mark.numeric
def test_another_sound_changes_the_answer(omni_parts: dict[str, Any]) -> None:
    messages = user(AUDIO, text("what do you hear?"))

    answers = {
        tuple(think(omni_parts["thinker"], [omni_parts["audio"]], messages, {"audio": [files.tone(2.0, seed)]}, 12).ids)
        for seed in range(4)
    }

    assert len(answers) == 4


@pytest.mark.numeric
def test_another_voice_changes_the_codes(omni: Path, omni_parts: dict[str, Any]) -> None:
    messages, given = user(text("what is in this picture?")), {}
    spoken = {}
    for voice in ("Chelsie", "Ethan"):
        thought = think(omni_parts["thinker"], [], messages, given, TOKENS, voice)
        spoken[voice] = talk(omni_parts["talker"], thought, CODES, voice)

    assert spoken["Chelsie"] != spoken["Ethan"]
    assert spoken["Ethan"] == oracle.omni_answer(omni, messages, given, TOKENS, "Ethan", CODES, SEED)[2]


@pytest.mark.numeric
def test_a_batch_of_sounds_equals_its_items_alone(omni_parts: dict[str, Any]) -> None:
    audio = omni_parts["audio"]
    batch = [audio.prepare(memoryview(files.tone(each, n)), "audio") for n, each in enumerate((0.1, 0.7, 5.1, 2.0))]

    together = audio.encode(batch)

    for one, item in zip(together, batch, strict=True):
        [alone] = audio.encode([item])
        assert one.embeds.shape[0] == item.meta["n_tokens"]
        assert_close(one.embeds, alone.embeds)


def test_nothing_to_encode_is_nothing(omni_parts: dict[str, Any]) -> None:
    assert omni_parts["audio"].encode([]) == []


def test_a_sound_longer_than_the_models_window_is_refused(omni_parts: dict[str, Any]) -> None:
    with pytest.raises(TooLarge, match="30 seconds"):
        omni_parts["audio"].prepare(memoryview(files.tone(31.0)), "audio")


def test_the_seconds_of_a_sound_are_a_setting(omni: Path) -> None:
    audio = families.family_of(omni).load("audio", omni, limits=media.MediaDecodeLimits(seconds=1.0))

    audio.prepare(memoryview(files.tone(1.0)), "audio")
    with pytest.raises(TooLarge, match="1 seconds"):
        audio.prepare(memoryview(files.tone(1.1)), "audio")


def test_a_click_is_too_short_to_hear(omni_parts: dict[str, Any]) -> None:
    with pytest.raises(BadMedia, match="30 ms"):
        omni_parts["audio"].prepare(memoryview(files.tone(0.01)), "audio")


def test_an_audio_encoder_takes_no_image(omni_parts: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="not image"):
        omni_parts["audio"].prepare(memoryview(files.picture(1)), "image")


def test_an_unknown_voice_is_refused_with_the_known_ones(omni_parts: dict[str, Any]) -> None:
    thinker = omni_parts["thinker"]
    prefill = thinker.assemble_prefill(thinker.prompt(user(text("hello"))), [])

    with pytest.raises(BadRequest, match="Chelsie, Ethan"):
        thinker.talker_prompt(prefill, prefill.inputs, "Nobody")
    with pytest.raises(BadRequest, match="Chelsie, Ethan"):
        omni_parts["vocoder"].open("Nobody", 0)


def test_the_codecs_begin_token_is_never_chosen(omni_parts: dict[str, Any]) -> None:
    talker = omni_parts["talker"]

    scores = talker.logits(torch.randn(2, 48))

    begin = talker.module.codec_bos_token
    assert scores[:, begin].tolist() == [-torch.inf] * 2
    assert torch.isfinite(scores).sum() == 2 * (talker.vocabulary - 1)


def test_the_checkpoint_says_how_long_an_answer_may_sound(omni_parts: dict[str, Any]) -> None:
    assert omni_parts["talker"].max_codes == 96
