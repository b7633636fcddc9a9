"""Models with encoders answer in vLLM as in the library's ``generate``, without code for their class."""

import asyncio
from pathlib import Path

import pytest

from omnibus.errors import StageFailed
from omnibus_models import miniature, tiny
from omnibus_models.families import load_family
from omnibus_models.families._media_parts import choose_class
from tests import nightly
from tests.auto_families.media_copies import make_copy
from tests.e2e.families.test_multimodal_lm import TOKENS, generate_answer
from tests.e2e.questions import make_image, make_question
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.llm.runners.test_thinker import make_chat_job
from tests.unit.models.split import encode_files
from tests.vllm.conftest import IN_PROCESS, encode_items, start_vllm

pytestmark = [*IN_PROCESS, pytest.mark.asyncio(loop_scope="module")]

QUESTIONS = [
    make_question("hello world, how are you today?"),
    make_question(make_image(1), "what is in this picture?"),
    make_question("look", make_image(2, 120, 60), "describe the image"),
]
#: Types, two of which run by day: M-RoPE; text between the rows of an image.
TYPES = ("exaone4_5", "glm_ocr", "idefics3", "internvl", "llava_next", "llava_onevision", "mistral3")
_BY_DAY = ("glm_ocr", "idefics3")
#: Those of which there are tiny models with wide heads.
TINY = ("llava", "qwen2_5_vl", "qwen2_vl", "qwen3_vl")
_VOCABULARY = 1024  # that of the tokenizers of copies


def write_copy(model_type: str, directory: Path) -> Path:
    """Write a small model of ``model_type`` with heads as large as usual, and its processor."""
    config, processor = make_copy(model_type)
    cls, config = choose_class(config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(miniature, "VOCABULARY", _VOCABULARY)
        small = miniature.shrink_parts(config)
    small.get_text_config(decoder=True).vocab_size = _VOCABULARY
    model = miniature.build_copy(cls, small)
    model.generation_config.eos_token_id = processor.tokenizer.eos_token_id
    model.save_pretrained(directory)
    processor.save_pretrained(directory)
    return directory


@pytest.fixture(params=[*_BY_DAY, *nightly.mark_nightly(*sorted({*TYPES, *TINY} - {*_BY_DAY}))])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param in TINY:
        return tiny.build(request.param, tmp_path / "tiny", wide=True)
    return write_copy(request.param, tmp_path)


def make_jobs(checkpoint: Path) -> list[MemoryJob]:
    encoder = load_family("multimodal_lm").load("encoder", checkpoint)
    return [
        make_chat_job(
            one.plain,
            encode_items(encode_files([encoder], [kind for kind, _ in one.parts if kind != "text"], one.media)),
            max_tokens=TOKENS,
            ignore_eos=False,
        )
        for one in QUESTIONS
    ]


async def test_a_batch_of_prompts_with_and_without_images_says_what_generate_says(checkpoint: Path) -> None:
    jobs = make_jobs(checkpoint)

    async with start_vllm("multimodal_lm", checkpoint, batch=8) as runner:
        await asyncio.gather(*(finish_job(runner, job) for job in jobs))

    assert [(job.ids, job.text) for job in jobs] == [generate_answer(checkpoint, one) for one in QUESTIONS]
    assert len({tuple(job.ids) for job in jobs}) == len(QUESTIONS)


async def test_positions_that_vllm_would_not_take_are_refused(tmp_path: Path) -> None:
    checkpoint = write_copy("paddleocr_vl", tmp_path)  # whose configuration does not divide its rotary axes
    text, image, _ = make_jobs(checkpoint)

    async with start_vllm("multimodal_lm", checkpoint) as runner:
        with pytest.raises(StageFailed, match="positions of this model as in text"):
            await finish_job(runner, image)
        await finish_job(runner, text)

    assert text.text == generate_answer(checkpoint, QUESTIONS[0])[1]
