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
from tests.unit.models.split import encode_files, talk_greedily, think_greedily

IMAGE, AUDIO, VIDEO = {"type": "image"}, {"type": "audio"}, {"type": "video"}
TOKENS, CODES, SEED = 10, 40, 7


def make_user_chat(*parts: dict[str, str]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def make_text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


CASES = {
    "text": (make_user_chat(make_text("hello world, how are you today?")), {}),
    "image": (make_user_chat(IMAGE, make_text("what is in this picture?")), {"image": [files.make_picture(1)]}),
    "audio": (make_user_chat(AUDIO, make_text("what do you hear?")), {"audio": [files.make_tone(2.0)]}),
    "video": (make_user_chat(VIDEO, make_text("summarise the video")), {"video": [files.make_film(2)]}),
    "image and audio": (
        make_user_chat(IMAGE, AUDIO, make_text("describe")),
        {"image": [files.make_picture(2)], "audio": [files.make_tone(1.3, 1)]},
    ),
    "several of everything": (
        make_user_chat(AUDIO, IMAGE, make_text("and"), VIDEO, IMAGE, AUDIO, make_text("describe the image")),
        {
            "image": [files.make_picture(3), files.make_picture(4, 120, 200)],
            "audio": [files.make_tone(0.7, 2), files.make_tone(3.1, 3)],
            "video": [files.make_film(3, 1)],
        },
    ),
}


@pytest.mark.numeric
@pytest.mark.parametrize("case", CASES)
def test_split_components_speak_like_the_whole_model(omni: Path, omni_parts: dict[str, Any], case: str) -> None:
    messages, media_files = CASES[case]
    encoders = [omni_parts["vision"], omni_parts["audio"]]

    thought = think_greedily(omni_parts["thinker"], encoders, messages, media_files, TOKENS, "Chelsie")
    codes = talk_greedily(omni_parts["talker"], thought, CODES, "Chelsie")
    wave = omni_parts["vocoder"].open("Chelsie", SEED).push(codes, last=True)

    reference = oracle.omni_answer(omni, messages, media_files, TOKENS, "Chelsie", CODES, SEED)
    assert thought.ids == reference[0]
    assert omni_parts["thinker"].decode_ids(thought.ids) == reference[1]
    assert codes == reference[2]
    torch.testing.assert_close(wave, reference[3], rtol=0, atol=1e-5)


@pytest.mark.numeric
@pytest.mark.parametrize("case", CASES)
def test_prompts_are_the_ids_of_the_joint_processor(omni: Path, omni_parts: dict[str, Any], case: str) -> None:
    messages, media_files = CASES[case]
    thinker = omni_parts["thinker"]
    prompt = thinker.prompt(messages)

    prefill = thinker.assemble_prefill(
        prompt, encode_files([omni_parts["vision"], omni_parts["audio"]], prompt.modalities, media_files)
    )

    reference_ids = oracle.omni_inputs(omni, messages, media_files)["input_ids"][0]
    assert prefill.inputs.shape[0] == len(reference_ids)
    rows = thinker.embed(reference_ids)
    torch.testing.assert_close(prefill.inputs[~prefill.media], rows[~prefill.media], rtol=0, atol=0)


@pytest.mark.numeric
def test_text_alone_needs_no_talker(omni: Path, omni_parts: dict[str, Any]) -> None:
    messages, media_files = CASES["audio"]

    thought = think_greedily(omni_parts["thinker"], [omni_parts["audio"]], messages, media_files, TOKENS)

    assert thought.ids == oracle.omni_text(omni, messages, media_files, TOKENS)[0]


@pytest.mark.numeric
def test_another_sound_changes_the_answer(omni_parts: dict[str, Any]) -> None:
    messages = make_user_chat(AUDIO, make_text("what do you hear?"))

    answers = {
        tuple(
            think_greedily(
                omni_parts["thinker"], [omni_parts["audio"]], messages, {"audio": [files.make_tone(2.0, seed)]}, 12
            ).ids
        )
        for seed in range(4)
    }

    assert len(answers) == 4


@pytest.mark.numeric
def test_another_voice_changes_the_codes(omni: Path, omni_parts: dict[str, Any]) -> None:
    messages, media_files = make_user_chat(make_text("what is in this picture?")), {}
    codes_by_voice = {}
    for voice in ("Chelsie", "Ethan"):
        thought = think_greedily(omni_parts["thinker"], [], messages, media_files, TOKENS, voice)
        codes_by_voice[voice] = talk_greedily(omni_parts["talker"], thought, CODES, voice)

    assert codes_by_voice["Chelsie"] != codes_by_voice["Ethan"]
    assert codes_by_voice["Ethan"] == oracle.omni_answer(omni, messages, media_files, TOKENS, "Ethan", CODES, SEED)[2]


@pytest.mark.numeric
def test_a_batch_of_sounds_equals_its_items_alone(omni_parts: dict[str, Any]) -> None:
    audio = omni_parts["audio"]
    batch = [
        audio.prepare(memoryview(files.make_tone(each, n)), "audio") for n, each in enumerate((0.1, 0.7, 5.1, 2.0))
    ]

    together = audio.encode(batch)

    for one, item in zip(together, batch, strict=True):
        [alone] = audio.encode([item])
        assert one.embeds.shape[0] == item.meta["n_tokens"]
        assert_close(one.embeds, alone.embeds)


def test_nothing_to_encode_is_nothing(omni_parts: dict[str, Any]) -> None:
    assert omni_parts["audio"].encode([]) == []


def test_a_sound_longer_than_the_models_window_is_refused(omni_parts: dict[str, Any]) -> None:
    with pytest.raises(TooLarge, match="30 seconds"):
        omni_parts["audio"].prepare(memoryview(files.make_tone(31.0)), "audio")


def test_the_seconds_of_a_sound_are_a_setting(omni: Path) -> None:
    audio = families.family_of(omni).load("audio", omni, limits=media.MediaDecodeLimits(seconds=1.0))

    audio.prepare(memoryview(files.make_tone(1.0)), "audio")
    with pytest.raises(TooLarge, match="1 seconds"):
        audio.prepare(memoryview(files.make_tone(1.1)), "audio")


def test_a_click_is_too_short_to_hear(omni_parts: dict[str, Any]) -> None:
    with pytest.raises(BadMedia, match="30 ms"):
        omni_parts["audio"].prepare(memoryview(files.make_tone(0.01)), "audio")


def test_an_audio_encoder_takes_no_image(omni_parts: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="not image"):
        omni_parts["audio"].prepare(memoryview(files.make_picture(1)), "image")


def test_an_unknown_voice_is_refused_with_the_known_ones(omni_parts: dict[str, Any]) -> None:
    thinker = omni_parts["thinker"]
    prefill = thinker.assemble_prefill(thinker.prompt(make_user_chat(make_text("hello"))), [])

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
