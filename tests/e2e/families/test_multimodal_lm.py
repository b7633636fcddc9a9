"""Multimodal models without a family of their own answer like the library's ``generate``, whole and apart."""

import asyncio
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from omnibus_models import tiny
from omnibus_models.families._media_parts import choose_class
from omnibus_models.media import decode_audio
from omnibus_models.miniature import build_copy, shrink_parts
from tests.auto_families.media_copies import make_copy
from tests.e2e.questions import Question, make_audio, make_image, make_question
from tests.e2e.shapes.test_shapes import send_question
from tests.e2e.system import System, declare_model, start_system
from tests.nightly import covering

pytestmark = pytest.mark.e2e

#: Types of models that take audio, by the names of their copies. Qwen2-Audio does not come apart.
LISTENERS = {"listener": "glmasr", "whole": "qwen2_audio"}
MODEL, TOKENS = "multimodal-lm-tiny", 24
QUESTIONS = {
    "text": make_question("hello world, how are you today?"),
    "an image": make_question(make_image(1), "what is in this picture?"),
    "two images": make_question(make_image(2, 120, 60), "and", make_image(3, 64, 100), "describe the image"),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("multimodal_lm", tmp_path_factory.mktemp("models") / "whole")


@pytest.fixture(scope="module")
def listener_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("models")
    return {name: write_listener(directory / name, model_type) for name, model_type in LISTENERS.items()}


def write_listener(directory: Path, model_type: str) -> Path:
    """Write a copy of a model that takes audio."""
    config, processor = make_copy(model_type)
    cls, config = choose_class(config)
    small = shrink_parts(config)
    # The tokenizer of a served model is its own.
    small.audio_token_id, small.text_config.vocab_size = config.audio_token_id, config.text_config.vocab_size
    model = build_copy(cls, small)
    model.generation_config.eos_token_id = processor.tokenizer.eos_token_id
    model.save_pretrained(directory)
    processor.save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def system(
    tmp_path_factory: pytest.TempPathFactory, checkpoint: Path, listener_checkpoints: dict[str, Path]
) -> Iterator[System]:
    models = {
        name: declare_model("multimodal_lm", each) for name, each in {MODEL: checkpoint, **listener_checkpoints}.items()
    }
    with start_system(tmp_path_factory.mktemp("system"), models) as system:
        yield system


@pytest.fixture(autouse=True)
async def wait_for_executors(system: System) -> None:
    await system.whole()
    await system.becomes_ready()


def generate_answer(checkpoint: Path, question: Question) -> tuple[list[int], str]:
    """Return the ids and the text of the library's greedy answer, by its own template, processor and model."""
    from transformers import AutoModelForMultimodalLM, AutoProcessor

    processor: Any = AutoProcessor.from_pretrained(checkpoint)
    model = AutoModelForMultimodalLM.from_pretrained(checkpoint, dtype=torch.float32)
    text = processor.apply_chat_template(question.plain, tokenize=False, add_generation_prompt=True)
    images = [Image.open(io.BytesIO(data)).convert("RGB") for data in question.media.get("image", ())]
    media = {"images": images} if images else {}
    if "audio" in question.media:
        media = {"audio": [decode_audio(memoryview(data)) for data in question.media["audio"]]}
    inputs = processor(text=[text], return_tensors="pt", **media)
    answer = model.generate(**inputs, max_new_tokens=TOKENS, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    return answer.tolist(), processor.tokenizer.decode(answer, skip_special_tokens=True)


@pytest.mark.cell("transformers", "multimodal_lm", "tokens")
@covering(name=QUESTIONS, shape=["E>L", "EL", "E>EL"])
async def test_ids_and_text_are_those_of_the_whole_model(system: System, checkpoint: Path, name: str, shape: str):
    question = QUESTIONS[name]
    ids, text = generate_answer(checkpoint, question)
    path = shape if question.media else {"E>L": "L", "EL": "EL", "E>EL": "EL"}[shape]

    answers = [await send_question(system, question, path, model=MODEL) for _ in range(2)]

    assert answers == [(text, ids)] * 2
    await system.ledger_is_empty()


@pytest.mark.parametrize("model", LISTENERS)
@pytest.mark.parametrize("shape", ["E>L", "EL"])
async def test_audio_is_heard_as_by_the_whole_model(
    system: System, listener_checkpoints: dict[str, Path], model: str, shape: str
):
    question = make_question(make_audio(1.0, 3), "what do you hear in this audio clip?")
    ids, text = generate_answer(listener_checkpoints[model], question)

    assert await send_question(system, question, shape, model=model) == (text, ids)
    await system.ledger_is_empty()


async def test_requests_at_the_same_time_each_get_their_own_answer(system: System, checkpoint: Path):
    questions = [make_question(make_image(seed, 60 + 8 * seed, 60), "describe") for seed in range(6)]
    expected_texts = [generate_answer(checkpoint, question)[1] for question in questions]

    async with system.client() as client:
        answers = await asyncio.gather(
            *(
                client.chat.completions.create(model=MODEL, messages=one.messages, max_tokens=TOKENS, temperature=0)
                for one in questions
            )
        )

    assert [answer.choices[0].message.content for answer in answers] == expected_texts
    await system.ledger_is_empty()


async def test_a_modality_that_the_checkpoint_lacks_is_refused(system: System):
    async with system.client() as client:
        with pytest.raises(Exception, match="audio") as refusal:
            await client.chat.completions.create(
                model=MODEL, messages=make_question(make_audio(0.5), "what do you hear?").messages, max_tokens=4
            )

    assert getattr(refusal.value, "status_code", 0) == 400
