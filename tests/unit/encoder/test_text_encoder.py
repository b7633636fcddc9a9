"""Prompts of many requests are encoded together, each as if alone."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omnibus.errors import BadRequest, ContextTooLong
from omnibus.executor.runner import Item
from omnibus_encoder.media_encoder import EncodeSettings
from omnibus_encoder.text_engines import TextEncodeRunner
from omnibus_models import tiny
from omnibus_models.contract import Encoded
from omnibus_models.families import load_family
from tests.close import assert_close
from tests.unit.jobs import MemoryJob, finish_job


@pytest.fixture(scope="module")
def image_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen_image", tmp_path_factory.mktemp("models") / "image")


@pytest.fixture
async def runner(image_checkpoint: Path) -> AsyncIterator[TextEncodeRunner]:
    encode_runner = TextEncodeRunner("text_encoder", "qwen_image", image_checkpoint, "cpu", "float32", EncodeSettings())
    await encode_runner.load()
    yield encode_runner
    await encode_runner.close()


def encode_alone(image: Path, prompt: str) -> np.ndarray:
    encoder: Any = load_family("qwen_image").load("text_encoder", image)
    return encoder.encode([encoder.prepare(prompt)])[0].embeds.numpy()


@pytest.mark.numeric
async def test_prompt_and_negative_prompt_are_filled_up_to_the_longer_one(
    runner: TextEncodeRunner, image_checkpoint: Path
) -> None:
    one = await finish_job(runner, MemoryJob({"prompt": "a red square", "negative_prompt": ""}))

    embeds, mask = one.array("embeds"), one.array("mask")
    assert (mask.dtype.name, embeds.dtype.name, mask.shape) == ("bool", "float32", embeds.shape[:2])
    assert mask[0].all()
    for row, counts, prompt in zip(embeds, mask, ["a red square", ""], strict=True):
        assert_close(row[counts], encode_alone(image_checkpoint, prompt))
        assert not row[~counts].any()


@pytest.mark.numeric
async def test_a_prompt_of_a_film_is_the_same_whoever_is_there(tmp_path: Path) -> None:
    path = tiny.build("ltx2", tmp_path / "ltx2")
    runner = TextEncodeRunner("text_encoder", "ltx2", path, "cpu", "float32", EncodeSettings())
    await runner.load()
    lone = await finish_job(runner, MemoryJob({"prompt": "a red square", "negative_prompt": ""}))
    prompts = ["a red square", "a green circle on a hill " * 6, "a red square", "a cat"]

    jobs = [MemoryJob({"prompt": prompt, "negative_prompt": ""}) for prompt in prompts]
    await asyncio.gather(*(finish_job(runner, one) for one in jobs))

    for one in (jobs[0], jobs[2]):
        # The computations are the same in one process, so the results are equal to the bit.
        assert np.array_equal(one.array("embeds"), lone.array("embeds"))
    await runner.close()


@pytest.mark.numeric
async def test_without_a_negative_prompt_there_is_one_row(runner: TextEncodeRunner, image_checkpoint: Path) -> None:
    one = await finish_job(runner, MemoryJob({"prompt": "a red square"}))

    assert_close(one.array("embeds")[0], encode_alone(image_checkpoint, "a red square"))
    assert one.array("mask").shape == one.array("embeds").shape[:2]
    assert len(one.array("mask")) == 1


async def test_the_tokens_of_a_prompt_are_counted_for_who_wants_to_know(runner: TextEncodeRunner) -> None:
    one = await finish_job(
        runner, MemoryJob({"prompt": "a red square", "negative_prompt": "x " * 30}, wants=("tokens",))
    )

    assert one.outputs["tokens"].items[0].data == {"value": int(one.array("mask")[0].sum())}


@pytest.mark.numeric
async def test_prompts_of_many_requests_share_batches(runner: TextEncodeRunner, image_checkpoint: Path) -> None:
    prompts = [f"{count} birds over the hill " * count for count in range(1, 7)]
    jobs = [MemoryJob({"prompt": prompt, "negative_prompt": " "}) for prompt in prompts]

    await asyncio.gather(*(finish_job(runner, one) for one in jobs))

    for prompt, one in zip(prompts, jobs, strict=True):
        assert_close(one.array("embeds")[0][one.array("mask")[0]], encode_alone(image_checkpoint, prompt))
    assert max(map(int, runner.stats()["batches"])) > 2


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"prompt": 3}, "prompt"),
        ({}, "prompt"),
        ({"prompt": "a", "colour": 1}, "colour"),
        ({"prompt": "a", "items": [1]}, "list of embeddings"),
        ({"prompt": "a", "items": [Item({}, None)]}, "list of embeddings"),
        ({"prompt": "a", "items": [Item({}, np.zeros((4, 64), np.float32))]}, "only text"),
        ({"prompt": "a <|im_start|> b"}, "im_start"),
        ({"prompt": "a", "negative_prompt": "<|im_end|>"}, "im_end"),
    ],
)
async def test_wrong_inputs_are_refused(runner: TextEncodeRunner, inputs: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        await finish_job(runner, MemoryJob(inputs))


async def test_a_prompt_that_is_too_long_is_refused(runner: TextEncodeRunner) -> None:
    with pytest.raises(ContextTooLong, match="1024"):
        await finish_job(runner, MemoryJob({"prompt": "hill " * 2000}))

    assert (await finish_job(runner, MemoryJob({"prompt": "hill"}))).array("embeds").size


# Prompts with images


@pytest.fixture(scope="module")
def edit_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen_image_edit", tmp_path_factory.mktemp("models") / "edit")


@pytest.fixture
async def edit_runner(edit_checkpoint: Path) -> AsyncIterator[TextEncodeRunner]:
    encode_runner = TextEncodeRunner(
        "text_encoder", "qwen_image_edit", edit_checkpoint, "cpu", "float32", EncodeSettings()
    )
    await encode_runner.load()
    yield encode_runner
    await encode_runner.close()


def make_picture(seed: int) -> Item:
    """Return the read-only embedding of an image of 2 x 3 tokens."""
    rows = np.random.default_rng(seed).standard_normal((6, 64), np.float32)
    rows.setflags(write=False)
    return Item({"modality": "image", "grid_thw": [1, 4, 6], "n_tokens": 6}, rows)


@pytest.mark.numeric
async def test_prompts_of_many_requests_are_each_about_their_own_picture(
    edit_runner: TextEncodeRunner, edit_checkpoint: Path
) -> None:
    encoder: Any = load_family("qwen_image_edit").load("text_encoder", edit_checkpoint)
    jobs = [
        MemoryJob({"prompt": "make it red " * seed, "negative_prompt": "", "items": [make_picture(seed)]})
        for seed in range(1, 5)
    ]

    await asyncio.gather(*(finish_job(edit_runner, one) for one in jobs))

    for seed, one in enumerate(jobs, 1):
        item = make_picture(seed)
        about = [Encoded(torch.tensor(item.array), item.data)]
        for row, counts, text in zip(one.array("embeds"), one.array("mask"), ["make it red " * seed, ""], strict=True):
            [reference] = encoder.encode([encoder.prepare(text, about)])
            assert_close(row[counts], reference.embeds.numpy())
    assert max(map(int, edit_runner.stats()["batches"])) > 2


async def test_a_prompt_about_no_picture_is_refused_where_one_is_needed(edit_runner: TextEncodeRunner) -> None:
    with pytest.raises(BadRequest, match="edits one image, not 0"):
        await finish_job(edit_runner, MemoryJob({"prompt": "make it red"}))
