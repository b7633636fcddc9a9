"""Samples from the vocoder, before rounding to 16 bits."""

from pathlib import Path

import numpy as np
import pytest

from tests import models_oracle as oracle
from tests.e2e import by_hand
from tests.e2e.omni.speech import CODES, SEED, TOKENS, VOICE, make_speech_body
from tests.e2e.questions import make_audio, make_image, make_question
from tests.e2e.system import System

pytestmark = pytest.mark.e2e

QUESTION = make_question(make_image(2), make_audio(1.1, 1), "describe")


@pytest.mark.one_node  # by hand its end is sent to one
@pytest.mark.parametrize("path", ["EV>EA>Th>Ta>V", "M"])
async def test_float_samples_are_those_of_the_whole_model(omni: System, omni_checkpoint: Path, path: str):
    _, text, codes, reference = oracle.omni_answer(
        omni_checkpoint, QUESTION.plain, QUESTION.media, TOKENS, VOICE, CODES, SEED
    )

    answer = await by_hand.replay_record(
        omni, await by_hand.record_chat(omni, make_speech_body(QUESTION), path), QUESTION
    )

    assert answer.text == text
    np.testing.assert_allclose(answer.sound, reference.numpy().reshape(-1), rtol=0, atol=1e-5)
    assert len(answer.sound) == len(codes) * 480
    await omni.ledger_is_empty()
