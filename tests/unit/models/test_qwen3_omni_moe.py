"""Qwen3-Omni in components has the same output as the whole model: ids, frames of codes and waveform."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from omnibus.errors import BadMedia, BadRequest, Fatal
from omnibus_models import families, tiny
from omnibus_models.contract import Encoded, Prepared
from tests.close import assert_close
from tests.oracles import qwen3_omni_moe as oracle
from tests.unit.models import files
from tests.unit.models.split import encode_files, talk_greedily, think_greedily
from tests.unit.models.test_loading import copy_without, count_parameters
from tests.unit.models.test_qwen2_5_omni import AUDIO, IMAGE, VIDEO, make_text, make_user_chat
from tests.unit.models.test_qwen2_5_omni import CASES as PLAIN

TOKENS, FRAMES, VOICE = 10, 20, "Ethan"
HISTORY = [
    {"role": "system", "content": "you are a helpful assistant."},
    *make_user_chat(IMAGE, make_text("describe the image")),
    {"role": "assistant", "content": "a red square."},
    *make_user_chat(AUDIO, make_text("and this?")),
]
CASES = {
    **{name: case for name, case in PLAIN.items() if name != "several of everything"},
    "less than a window of sound": (make_user_chat(AUDIO, make_text("what?")), {"audio": [files.make_tone(0.4)]}),
    "a chat": (HISTORY, {"image": [files.make_picture(5)], "audio": [files.make_tone(1.2, 4)]}),
    # For audio of several lengths the library changes the shorter inputs.
    "several of everything": (
        make_user_chat(AUDIO, IMAGE, make_text("and"), VIDEO, IMAGE, AUDIO, make_text("describe the image")),
        {
            "image": [files.make_picture(3), files.make_picture(4, 120, 200)],
            "audio": [files.make_tone(1.7, 2), files.make_tone(1.7, 3)],
            "video": [files.make_film(3, 1)],
        },
    ),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen3_omni_moe", tmp_path_factory.mktemp("models") / "omni")


@pytest.fixture(scope="module")
def parts(checkpoint: Path) -> dict[str, Any]:
    family = families.family_of(checkpoint)
    return {name: family.load(name, checkpoint) for name in family.components}


def speak_answer(
    parts: dict[str, Any], messages: Any, media_files: Any, voice: str = VOICE
) -> tuple[list[int], list[Any]]:
    """Return ids and frames of a spoken answer."""
    thought = think_greedily(parts["thinker"], [parts["vision"], parts["audio"]], messages, media_files, TOKENS, voice)
    return thought.ids, talk_greedily(parts["talker"], thought, FRAMES, voice)


@pytest.mark.numeric
@pytest.mark.parametrize("case", CASES)
def test_split_components_speak_like_the_whole_model(checkpoint: Path, parts: dict[str, Any], case: str) -> None:
    messages, media_files = CASES[case]

    ids, frames = speak_answer(parts, messages, media_files)
    wave = parts["vocoder"].open(VOICE, 0).push(frames, last=True)

    reference = oracle.generate_answer(checkpoint, messages, media_files, TOKENS, VOICE, FRAMES)
    assert ids == reference.ids
    assert parts["thinker"].decode_ids(ids) == reference.text
    assert frames == reference.frames
    torch.testing.assert_close(wave, reference.wave, rtol=0, atol=1e-5)


@pytest.mark.numeric
@pytest.mark.parametrize("case", CASES)
def test_prompts_are_the_ids_of_the_joint_processor(checkpoint: Path, parts: dict[str, Any], case: str) -> None:
    messages, media_files = CASES[case]
    thinker = parts["thinker"]
    prompt = thinker.prompt(messages)

    layout = thinker.layout(prompt, encode_files([parts["vision"], parts["audio"]], prompt.modalities, media_files))

    assert layout.ids == oracle.make_inputs(checkpoint, messages, media_files)["input_ids"][0].tolist()


@pytest.mark.numeric
def test_text_alone_needs_no_talker(checkpoint: Path, parts: dict[str, Any]) -> None:
    messages, media_files = CASES["a chat"]

    thought = think_greedily(parts["thinker"], [parts["vision"], parts["audio"]], messages, media_files, TOKENS)

    assert (thought.ids, parts["thinker"].decode_ids(thought.ids)) == oracle.generate_text(
        checkpoint, messages, media_files, TOKENS
    )


@pytest.mark.parametrize(("part", "kind"), [(IMAGE, "image"), (AUDIO, "audio"), (VIDEO, "video")])
def test_another_medium_changes_the_answer_and_the_speech(parts: dict[str, Any], part: Any, kind: str) -> None:
    make = {
        "image": files.make_picture,
        "audio": lambda seed: files.make_tone(2.0, seed),
        "video": lambda s: files.make_film(2, s),
    }

    answers = [
        speak_answer(parts, make_user_chat(part, make_text("describe")), {kind: [make[kind](seed)]})
        for seed in range(3)
    ]

    assert len({str(ids) for ids, _ in answers}) > 1
    assert len({str(frames) for _, frames in answers}) == 3


@pytest.mark.numeric
def test_a_medium_is_heard_by_the_talker_itself(parts: dict[str, Any]) -> None:
    messages, media_files = CASES["image"]
    thought = think_greedily(parts["thinker"], [parts["vision"]], messages, media_files, TOKENS, VOICE)

    frames = talk_greedily(parts["talker"], thought, FRAMES, VOICE)
    media = thought.prefill.spoken[1].nonzero()[:, 0]
    thought.prompt_rows[media] = 0.0

    assert len(media) == 6
    assert talk_greedily(parts["talker"], thought, FRAMES, VOICE) != frames


def test_the_talker_hears_users_alone_and_how_the_answer_begins(parts: dict[str, Any]) -> None:
    thinker = parts["thinker"]
    prompt = thinker.prompt(HISTORY)
    items = encode_files([parts["vision"], parts["audio"]], prompt.modalities, CASES["a chat"][1])

    layout, prefill = thinker.layout(prompt, items), thinker.assemble_prefill(prompt, items)

    places, media, *positions = prefill.layout.tolist()
    heard_text = thinker._tokenizer.decode([layout.ids[place] for place in places if not prefill.media[place]])
    mark = "<|vision_start|><|vision_end|>", "<|audio_start|><|audio_end|>"
    turns = [
        f"<|im_start|>user\n{mark[0]}describe the image<|im_end|>\n",
        f"<|im_start|>user\n{mark[1]}and this?<|im_end|>\n",
    ]
    assert heard_text == "".join([*turns, "<|im_start|>assistant\n"])
    assert [places[at] for at, flag in enumerate(media) if flag] == prefill.media.nonzero()[:, 0].tolist()
    assert min(map(min, positions)) == 0


def test_another_voice_changes_the_frames(checkpoint: Path, parts: dict[str, Any]) -> None:
    messages, media_files = CASES["text"]

    frames = {voice: speak_answer(parts, messages, media_files, voice)[1] for voice in ("Aiden", "chelsie", "Ethan")}

    assert len({str(each) for each in frames.values()}) == 3
    assert frames["Aiden"] == oracle.generate_answer(checkpoint, messages, media_files, TOKENS, "Aiden", FRAMES).frames


SECONDS = (0.1, 0.7, 5.1, 2.0, 1.0, 0.99)


def prepare_sounds(audio: Any, seconds: tuple[float, ...] = SECONDS) -> list[Prepared]:
    return [audio.prepare(memoryview(files.make_tone(each, n)), "audio") for n, each in enumerate(seconds)]


@pytest.mark.numeric
def test_a_batch_of_sounds_equals_its_items_alone(parts: dict[str, Any]) -> None:
    audio = parts["audio"]
    batch = prepare_sounds(audio)

    together = audio.encode(batch)

    for one, item in zip(together, batch, strict=True):
        [alone] = audio.encode([item])
        assert one.meta == item.meta
        assert one.embeds.shape[0] == item.meta["n_tokens"]
        assert_close(one.embeds, alone.embeds)


@pytest.mark.numeric
def test_in_the_library_a_short_sound_depends_on_those_beside_it(checkpoint: Path, parts: dict[str, Any]) -> None:
    tower = oracle.load_whole(checkpoint)[0].thinker.audio_tower.requires_grad_(False)
    short, long = prepare_sounds(parts["audio"], (0.5, 2.0))
    mels = [each.features["features"] for each in (short, long)]
    lengths = torch.tensor([mel.shape[1] for mel in mels])

    alone = tower(mels[0], feature_lens=lengths[:1]).last_hidden_state
    beside = tower(torch.cat(mels, dim=1), feature_lens=lengths).last_hidden_state[: len(alone)]

    # If this fails, all audio of a batch can go through the tower at once.
    assert not torch.allclose(alone, beside, rtol=0, atol=1e-3)
    assert_close(parts["audio"].encode([short, long])[0].embeds, alone)


def test_a_sound_may_be_longer_than_half_a_minute(parts: dict[str, Any]) -> None:
    item = parts["audio"].prepare(memoryview(files.make_tone(31.0, rate=8000)), "audio")

    assert item.meta == {"modality": "audio", "n_tokens": 31 * 13, "audio_len": 3100}


def test_nothing_to_encode_is_nothing(parts: dict[str, Any]) -> None:
    assert parts["audio"].encode([]) == []


@pytest.mark.parametrize("seconds", [0.001, 0.012, 0.029])
def test_a_click_is_too_short_to_hear(parts: dict[str, Any], seconds: float) -> None:
    with pytest.raises(BadMedia, match="30 ms"):
        parts["audio"].prepare(memoryview(files.make_tone(seconds)), "audio")


def test_an_audio_encoder_takes_no_image(parts: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="not image"):
        parts["audio"].prepare(memoryview(files.make_picture(1)), "image")


@pytest.mark.parametrize("frames", [150, 0, -3, None, 155.0, 10**400])
def test_a_sound_that_is_not_what_its_meta_data_says_is_refused(parts: dict[str, Any], frames: Any) -> None:
    thinker = parts["thinker"]
    prompt = thinker.prompt(make_user_chat(AUDIO))
    sound = Encoded(torch.zeros(21, 64), {"modality": "audio", "audio_len": 160})
    assert len(thinker.layout(prompt, [sound]).ids) == len(prompt.ids) + 20

    with pytest.raises(BadRequest) as caught:
        thinker.layout(prompt, [Encoded(sound.embeds, {**sound.meta, "audio_len": frames})])

    assert caught.value.param == "items"


def test_a_sound_without_rows_is_refused(parts: dict[str, Any]) -> None:
    thinker = parts["thinker"]

    with pytest.raises(BadRequest):
        thinker.layout(
            thinker.prompt(make_user_chat(AUDIO)), [Encoded(torch.zeros(0, 64), {"modality": "audio", "audio_len": 0})]
        )


def test_an_unknown_voice_is_refused_with_the_known_ones(parts: dict[str, Any]) -> None:
    thinker = parts["thinker"]
    prefill = thinker.assemble_prefill(thinker.prompt(make_user_chat(make_text("hello"))), [])
    rows = thinker.talker_prompt(prefill, torch.zeros(len(prefill.inputs), 128), "Ethan")

    for refuses in (
        lambda: thinker.talker_prompt(prefill, torch.zeros(len(prefill.inputs), 128), "Nobody"),
        lambda: parts["talker"].start(rows, prefill.layout, rows[0], "Nobody"),
        lambda: parts["vocoder"].open("Nobody", 0),
    ):
        with pytest.raises(BadRequest, match="aiden, chelsie, ethan"):
            refuses()


def test_what_is_no_code_is_never_chosen(parts: dict[str, Any]) -> None:
    talker = parts["talker"]

    scores = talker.logits(torch.randn(2, 48))

    assert talker.eos == {64}
    assert torch.isfinite(scores).nonzero()[:, 1].tolist() == [*range(65), *range(65)]


def test_the_checkpoint_says_how_long_an_answer_may_sound(parts: dict[str, Any]) -> None:
    assert parts["talker"].max_codes == 48


def test_the_library_knows_nothing_of_sound_where_it_counts_a_talkers_positions(checkpoint: Path) -> None:
    from transformers import Qwen3OmniMoeConfig

    # If this fails, neither the family nor its oracle must add it.
    assert not hasattr(Qwen3OmniMoeConfig.from_pretrained(checkpoint).talker_config, "audio_config")


@pytest.mark.numeric
def test_a_model_without_a_talker_does_not_speak(checkpoint: Path, tmp_path: Path) -> None:
    silent = copy_without(checkpoint, tmp_path / "silent", "talker.")
    config = silent / "config.json"
    config.write_text(re.sub(r'"enable_audio_output": true', '"enable_audio_output": false', config.read_text()))
    messages, media_files = CASES["image"]
    family = families.family_of(silent)
    vision, thinker = (family.load(part, silent) for part in ("vision", "thinker"))

    thought = think_greedily(thinker, [vision], messages, media_files, TOKENS)

    assert not thinker.speaks
    assert thought.ids == oracle.generate_text(checkpoint, messages, media_files, TOKENS)[0]
    with pytest.raises(BadRequest, match="no talker"):
        thinker.talker_prompt(thought.prefill, thought.prefill.inputs, VOICE)


def test_a_template_that_begins_answers_in_another_way_leaves_no_speech(checkpoint: Path, tmp_path: Path) -> None:
    other = shutil.copytree(checkpoint, tmp_path / "other")
    template = other / "chat_template.jinja"
    template.write_text(template.read_text() + "{%- if add_generation_prompt -%}<tts_pad>{%- endif -%}")
    thinker = families.family_of(other).load("thinker", other)

    prefill = thinker.assemble_prefill(thinker.prompt(make_user_chat(make_text("hello"))), [])

    with pytest.raises(BadRequest, match="template"):
        thinker.talker_prompt(prefill, torch.zeros(len(prefill.inputs), 128), VOICE)


def test_an_engine_that_runs_the_layers_itself_is_refused(checkpoint: Path) -> None:
    with pytest.raises(Fatal, match="omnibus_engines:transformers"):
        families.family_of(checkpoint).reader(checkpoint)


def test_the_components_share_nothing_and_leave_nothing_out(checkpoint: Path, parts: dict[str, Any]) -> None:
    whole, _ = oracle.load_whole(checkpoint)

    assert {name: part.parameters for name, part in parts.items()} == {
        "vision": count_parameters(whole.thinker.visual),
        "audio": count_parameters(whole.thinker.audio_tower),
        "thinker": count_parameters(whole.thinker.model) + count_parameters(whole.thinker.lm_head),
        "talker": count_parameters(whole.talker),
        "vocoder": count_parameters(whole.code2wav),
    }
    assert sum(part.parameters for part in parts.values()) == count_parameters(whole)


@pytest.mark.parametrize(
    ("component", "weight_name"),
    [
        ("vision", "visual.merger_list.1"),
        ("audio", "audio_tower.conv_out"),
        ("thinker", "thinker.model.layers.1.mlp.experts"),
        ("talker", "talker.model.layers.1.mlp.experts"),
        ("talker", "code_predictor.lm_head.2"),
        ("vocoder", "code2wav.decoder.3"),
    ],
)
def test_missing_weights_are_fatal(checkpoint: Path, tmp_path: Path, component: str, weight_name: str) -> None:
    broken_checkpoint = copy_without(checkpoint, tmp_path / "broken", weight_name)

    with pytest.raises(Fatal, match=weight_name.removeprefix("thinker.").removeprefix("code2wav.")):
        families.family_of(broken_checkpoint).load(component, broken_checkpoint)


def test_a_tiny_checkpoint_is_small(checkpoint: Path) -> None:
    assert sum(path.stat().st_size for path in checkpoint.rglob("*") if path.is_file()) < 3 << 20
