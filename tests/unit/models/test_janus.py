"""The parts of Janus answer and paint like the whole model. They run token by token, in any batch."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from omnibus.errors import BadMedia, BadRequest, ContextTooLong, Fatal
from omnibus_models import families, tiny
from omnibus_models.contract import Encoded, ImageSpec
from tests.close import assert_close
from tests.oracles import janus as oracle
from tests.oracles import plain
from tests.unit.models import files
from tests.unit.models.control_tokens import is_text
from tests.unit.models.split import think_greedily

RED, CIRCLE, NOTHING = "a red square", "a green circle on a blue background near the hill", "dogs"
TOKENS = 24


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("janus", tmp_path_factory.mktemp("models") / "janus")


@pytest.fixture(scope="module")
def parts(checkpoint: Path) -> dict[str, Any]:
    family = families.family_of(checkpoint)
    return {name: family.load(name, checkpoint) for name in family.components}


# Chats


def make_chat(*content: Any) -> list[dict[str, Any]]:
    parts = [{"type": "image"} if part is None else {"type": "text", "text": part} for part in content]
    return [{"role": "user", "content": parts}]


CHATS: dict[str, tuple[list[dict[str, Any]], list[bytes]]] = {
    "text": ([{"role": "user", "content": "hello there, how are you?"}], []),
    "image": (make_chat(None, "describe the image"), [files.make_picture(1)]),
    "two images": (
        make_chat("here", None, "and", None, "compare the two"),
        [files.make_picture(2, 60, 90), files.make_picture(3)],
    ),
    "turns": (
        [
            {"role": "system", "content": "be short."},
            *make_chat(None, "what is in this picture?"),
            {"role": "assistant", "content": "a dog."},
            *make_chat("and a cat?"),
        ],
        [files.make_picture(4, 200, 20)],
    ),
}


@pytest.mark.numeric
@pytest.mark.parametrize("name", CHATS)
def test_greedy_ids_are_those_of_the_whole_model(parts: dict[str, Any], checkpoint: Path, name: str) -> None:
    messages, images = CHATS[name]
    ids, text = plain.generate_answer(checkpoint, messages, {"image": images}, TOKENS)

    thought = think_greedily(parts["thinker"], [parts["vision"]], messages, {"image": images}, TOKENS)

    assert thought.ids == ids
    assert parts["thinker"].decode_ids(thought.ids) == text


@pytest.mark.numeric
def test_another_picture_changes_the_answer(parts: dict[str, Any]) -> None:
    messages = make_chat(None, "describe the image")

    answers = [
        think_greedily(parts["thinker"], [parts["vision"]], messages, {"image": [files.make_picture(seed)]}, TOKENS).ids
        for seed in range(3)
    ]

    assert answers[0] != answers[1] != answers[2]


@pytest.mark.numeric
def test_pictures_of_a_batch_are_as_if_each_were_alone(parts: dict[str, Any]) -> None:
    vision = parts["vision"]
    items = [vision.prepare(memoryview(files.make_picture(seed, 40 + 30 * seed, 60)), "image") for seed in range(4)]

    together = vision.encode(items)

    for item, actual in zip(items, together, strict=True):
        assert (actual.meta["modality"], actual.meta["n_tokens"]) == ("image", 16)
        assert_close(actual.embeds, vision.encode([item])[0].embeds)


def test_what_the_joint_processor_says_before_a_chat_is_said(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, tmp_path / "polite")
    config_path = tmp_path / "polite" / "processor_config.json"
    config_path.write_text(json.dumps({**json.loads(config_path.read_text()), "use_default_system_prompt": True}))
    family = families.family_of(checkpoint)

    plain_ids, polite = (
        list(family.load("thinker", path).prompt(make_chat("hello there")).ids)
        for path in (checkpoint, tmp_path / "polite")
    )

    assert plain_ids == oracle.chat_ids(checkpoint, "hello there")
    assert polite == oracle.chat_ids(tmp_path / "polite", "hello there")
    assert len(polite) > len(plain_ids)


@pytest.mark.parametrize(
    "item",
    [
        Encoded(torch.zeros(15, 64), {"modality": "image", "n_tokens": 16}),
        Encoded(torch.zeros(16, 64), {"modality": "image"}),
        Encoded(torch.zeros(16, 64), {"modality": "image", "n_tokens": "many"}),
        Encoded(torch.zeros(0, 64), {"modality": "image", "n_tokens": 0}),
        Encoded(torch.zeros(16, 63), {"modality": "image", "n_tokens": 16}),
        Encoded(torch.zeros(16, 64), {"modality": "video", "n_tokens": 16}),
    ],
)
def test_items_that_are_none_of_its_own_are_refused(parts: dict[str, Any], item: Encoded) -> None:
    thinker = parts["thinker"]

    with pytest.raises(BadRequest):
        thinker.layout(thinker.prompt(make_chat(None, "what?")), [item])


@pytest.mark.parametrize(
    ("data", "modality", "error"),
    [(b"", "image", BadMedia), (b"no picture", "image", BadMedia), (files.make_picture(1), "video", BadRequest)],
)
def test_files_that_are_no_pictures_are_refused(
    parts: dict[str, Any], data: bytes, modality: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        parts["vision"].prepare(memoryview(data), modality)


def test_control_tokens_of_a_chat_are_text(parts: dict[str, Any]) -> None:
    assert is_text(parts["thinker"], "<begin_of_image>")


# Images


def encode_guides(parts: dict[str, Any], prompt: str, guided: bool = True) -> list[Tensor]:
    encoder = parts["text_encoder"]
    items = [encoder.prepare(prompt), *([encoder.prepare_negative(prompt, "")] if guided else [])]
    return [one.embeds for one in encoder.encode(items)]


def make_spec(seed: int = 1, guidance: float | None = None, **more: Any) -> ImageSpec:
    return ImageSpec(**{"width": 64, "height": 64, "steps": 20, "seed": seed, "guidance": guidance, **more})


def draw_image(parts: dict[str, Any], prompt: str, picture: ImageSpec, guided: bool = True) -> Any:
    """Return an image after all of its steps, alone."""
    one = parts["dit"].open(picture, encode_guides(parts, prompt, guided))
    while one.done < one.steps:
        parts["dit"].step([one])
    return one


@pytest.mark.numeric
def test_a_prompt_is_put_as_the_joint_processor_puts_it(parts: dict[str, Any], checkpoint: Path) -> None:
    prompts = [RED, CIRCLE, "", "{}"]
    encoder = parts["text_encoder"]

    for prompt in prompts:
        reference = oracle.make_inputs(checkpoint, prompt)["input_ids"][0]
        torch.testing.assert_close(encoder.prepare(prompt).features["ids"], reference)
        assert len(encoder.prepare_negative(prompt, " ").features["ids"]) == len(reference)


PICTURES = [(RED, make_spec(1, 5.0)), (CIRCLE, make_spec(2, 2.5)), (RED, make_spec(3))]


@pytest.mark.numeric
@pytest.mark.parametrize(("prompt", "picture"), PICTURES)
def test_tokens_and_colours_are_those_of_the_whole_model(
    parts: dict[str, Any], checkpoint: Path, prompt: str, picture: ImageSpec
) -> None:
    tokens, colours = oracle.generate_image(checkpoint, prompt, picture.seed, picture.guidance)

    one = draw_image(parts, prompt, picture)

    assert one.chosen == tokens
    assert len(set(tokens)) > 4
    pixels = parts["vae"].decode(parts["dit"].latents(one)).numpy()
    assert pixels.shape == (64, 64, 3)
    assert pixels.std() > 10
    np.testing.assert_allclose(pixels, colours, atol=0.51)  # rounded


def test_pictures_that_come_and_go_are_as_if_each_were_alone(parts: dict[str, Any]) -> None:
    wishes = [(RED, 1, 3.0), (CIRCLE, 2, None), (NOTHING, 3, 1.0), (RED, 4, 6.0), (CIRCLE, 5, 1.0)]
    waiting = [
        parts["dit"].open(make_spec(seed, guidance), encode_guides(parts, prompt)) for prompt, seed, guidance in wishes
    ]
    everybody, running, sizes = list(waiting), [], []

    while waiting or running:
        running += [waiting.pop(0)] if waiting else []
        parts["dit"].step(running)
        sizes.append(len(running))
        running = [one for one in running if one.done < one.steps]

    assert max(sizes) == len(wishes)
    assert [one.rows for one in everybody] == [2, 2, 1, 2, 1]
    for (prompt, seed, guidance), one in zip(wishes, everybody, strict=True):
        assert one.chosen == draw_image(parts, prompt, make_spec(seed, guidance)).chosen


def test_pictures_that_take_turns_are_as_if_each_were_alone(parts: dict[str, Any]) -> None:
    dit = parts["dit"]
    ones = [
        dit.open(make_spec(seed), encode_guides(parts, prompt)) for seed, prompt in enumerate((RED, CIRCLE, NOTHING))
    ]

    for turn in range(ones[0].steps):
        left_out = ones[turn % 3]
        dit.step([one for one in ones if one is not left_out and one.done < one.steps])
    while going := [one for one in ones if one.done < one.steps]:
        dit.step(going)

    for seed, prompt in enumerate((RED, CIRCLE, NOTHING)):
        assert ones[seed].chosen == draw_image(parts, prompt, make_spec(seed)).chosen


def test_another_seed_prompt_or_guidance_makes_another_picture(parts: dict[str, Any]) -> None:
    first, *other_images = (
        draw_image(parts, prompt, make_spec(seed, guidance)).chosen
        for prompt, seed, guidance in [(RED, 1, 3.0), (RED, 2, 3.0), (CIRCLE, 1, 3.0), (RED, 1, 1.0)]
    )

    assert first == draw_image(parts, RED, make_spec(1, 3.0)).chosen
    assert first not in other_images


def test_a_picture_has_the_size_that_the_model_makes(parts: dict[str, Any]) -> None:
    assert parts["dit"].default_size == (64, 64)
    for sides in [{"width": 1024, "height": 1024}, {"width": 0}, {"height": 32}]:
        with pytest.raises(BadRequest, match="this model generates images of 64x64"):
            parts["dit"].open(make_spec(1, **sides), encode_guides(parts, RED))


def test_without_a_twin_the_prompt_guides_alone(parts: dict[str, Any]) -> None:
    assert (
        draw_image(parts, RED, make_spec(1, 5.0), guided=False).chosen
        == draw_image(parts, RED, make_spec(1, 1.0)).chosen
    )


def test_a_step_that_fails_leaves_everybody_where_they_were(
    parts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    dit = parts["dit"]
    ones = [dit.open(make_spec(seed), encode_guides(parts, RED)) for seed in (1, 2)]
    for _ in range(3):
        dit.step(ones)
    scores = dit._token_scores

    with monkeypatch.context() as patch:
        patch.setattr(dit, "_token_scores", lambda hidden: scores(hidden) * float("nan"))
        with pytest.raises(Fatal, match="not numbers"):
            dit.step(ones)
    assert [one.done for one in ones] == [3, 3]
    while ones[0].done < ones[0].steps:
        dit.step(ones)

    assert [one.chosen for one in ones] == [draw_image(parts, RED, make_spec(seed)).chosen for seed in (1, 2)]


def test_a_picture_that_is_made_again_by_itself_takes_no_memory_of_others(parts: dict[str, Any]) -> None:
    dit = parts["dit"]
    ones = [dit.open(make_spec(seed), encode_guides(parts, RED)) for seed in (1, 2)]

    for _ in range(4):
        dit.step(ones)
    together = ones[0].cache
    dit.step(ones[:1])

    assert together is ones[1].cache
    assert (together.count, ones[0].cache.count) == (4, 2)


def test_a_preview_has_the_colours_of_what_is_painted(parts: dict[str, Any]) -> None:
    dit, vae = parts["dit"], parts["vae"]
    palette, one = dit.palette(), dit.open(make_spec(), encode_guides(parts, RED))
    generator = torch.Generator().manual_seed(9)

    images, previews = [], []
    for _ in range(40):
        one.chosen = torch.randint(64, (one.steps,), generator=generator).tolist()
        images.append(vae.decode(dit.latents(one)).float().view(4, 16, 4, 16, 3).mean((1, 3)))
        previews.append(dit.preview(one, palette).float())

    differences = [torch.stack(samples) - torch.stack(samples).mean(0) for samples in (images, previews)]
    assert np.corrcoef(differences[0].flatten(), differences[1].flatten())[0, 1] > 0.2


def test_a_preview_is_grey_where_nothing_is_painted_yet(parts: dict[str, Any]) -> None:
    dit = parts["dit"]
    palette, one = dit.palette(), dit.open(make_spec(), encode_guides(parts, RED))
    for _ in range(5):
        dit.step([one])

    preview_pixels = dit.preview(one, palette)

    assert (preview_pixels.shape, preview_pixels.dtype) == ((4, 4, 3), torch.uint8)
    grey = (preview_pixels == 127).all(-1).flatten()
    assert grey[5:].all()
    assert not grey[:5].all()


@pytest.mark.parametrize(
    ("picture", "param"),
    [
        (make_spec(width=60), "width"),
        (make_spec(height=128), "height"),
        (make_spec(frames=9), "frames"),
    ],
)
def test_pictures_that_cannot_be_made_are_refused(parts: dict[str, Any], picture: ImageSpec, param: str) -> None:
    with pytest.raises(BadRequest, match=param) as caught:
        parts["dit"].open(picture, encode_guides(parts, RED))

    assert caught.value.param == param


@pytest.mark.parametrize("shapes", [[(9, 63)], [(9, 64), (8, 64)], [(0, 64)], [(64,)], [(4096, 64)], []])
def test_guides_that_are_none_of_its_own_are_refused(parts: dict[str, Any], shapes: Sequence[tuple[int, ...]]) -> None:
    with pytest.raises(BadRequest, match="embeddings"):
        parts["dit"].open(make_spec(), [torch.zeros(shape) for shape in shapes])


def test_prompts_that_cannot_be_used_are_refused(parts: dict[str, Any]) -> None:
    encoder = parts["text_encoder"]

    with pytest.raises(BadRequest, match="begin_of_image"):
        encoder.prepare("a <begin_of_image> b")
    with pytest.raises(BadRequest, match="does not support negative prompts"):
        encoder.prepare_negative(RED, "clouds")
    with pytest.raises(ContextTooLong, match="4080"):
        encoder.prepare("hill " * 5000)


@pytest.mark.parametrize(
    "latents",
    [
        torch.zeros(1, 1, 4, 5),
        torch.zeros(4, 1, 4, 4),
        torch.full((1, 1, 4, 4), 64.0),
        torch.full((1, 1, 4, 4), -1.0),
        torch.full((1, 1, 4, 4), 0.5),
        torch.full((1, 1, 4, 4), float("nan")),
    ],
)
def test_latents_that_are_no_tokens_are_refused(parts: dict[str, Any], latents: Tensor) -> None:
    with pytest.raises(BadRequest, match="tokens"):
        parts["vae"].decode(latents)


# Loading


def test_half_precision_makes_pictures_too(parts: dict[str, Any], checkpoint: Path) -> None:
    half = families.family_of(checkpoint).load("dit", checkpoint, dtype="bfloat16")
    one, reference = (dit.open(make_spec(), encode_guides(parts, RED)) for dit in (half, parts["dit"]))

    torch.testing.assert_close(one.hidden.float(), reference.hidden, rtol=0, atol=0.1)
    while one.done < one.steps:
        half.step([one])
    assert max(one.chosen) < 64
