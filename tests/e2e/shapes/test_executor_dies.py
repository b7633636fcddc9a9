"""Another shape continues the answer when half of a language model dies."""

import os
import signal
from pathlib import Path

import pytest

from tests import models_oracle as oracle
from tests.e2e.questions import make_image, make_question
from tests.e2e.system import VL, System

pytestmark = pytest.mark.e2e

TOKENS = 300
QUESTION = make_question(make_image(1), "describe the image")


@pytest.mark.parametrize(("path", "dies"), [("E>P>D", "D"), ("EP>D", "EP"), ("ED>P", "ED"), ("E>PD", "PD")])
async def test_an_answer_goes_on_in_another_shape_and_is_still_right(
    shapes: System, executor_pids: dict[str, int], vl_checkpoint: Path, path: str, dies: str
):
    text = oracle.vl_answer(vl_checkpoint, QUESTION.plain, QUESTION.media, TOKENS)[1]
    victim, answer_text = f"qwen2_5-vl-tiny-{dies}-0", ""

    async with shapes.client() as client:
        stream = await client.chat.completions.create(
            model=VL,
            messages=QUESTION.messages,
            max_tokens=TOKENS,
            temperature=0,
            stream=True,
            extra_headers={"x-omnibus-path": path},
        )
        async for chunk in stream:
            answer_text += chunk.choices[0].delta.content or ""
            if answer_text and victim in executor_pids:
                os.kill(executor_pids.pop(victim), signal.SIGKILL)

    assert victim not in executor_pids
    assert answer_text == text
    await shapes.ledger_is_empty()
