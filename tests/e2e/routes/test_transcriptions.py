"""Transcriptions equal the whole model's answer to the documented instruction.

They are tested whole and streamed.
"""

from pathlib import Path
from typing import Any

import openai
import pytest

from omnibus_gateway.openai.transcriptions import LANGUAGE, SYSTEM, USER
from tests import models_oracle as oracle
from tests.e2e.system import OMNI, System
from tests.unit.models import files

pytestmark = pytest.mark.e2e

SOUND = files.make_tone(1.5, 3)
TOKENS = 12
WISH: dict[str, Any] = {"model": OMNI, "file": ("tone.wav", SOUND), "extra_body": {"max_tokens": TOKENS}}


def whole_model(checkpoint: Path, instruction: str = USER) -> str:
    """Answer of the whole model from ``generate``."""
    content = [{"type": "text", "text": instruction}, {"type": "audio"}]
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": content}]
    _, text = oracle.omni_text(checkpoint, messages, {"audio": [SOUND]}, TOKENS)
    return text


async def test_it_is_the_answer_of_the_whole_model(client: openai.AsyncOpenAI, system: System, omni_checkpoint: Path):
    transcription = await client.audio.transcriptions.create(**WISH)

    assert transcription.text == whole_model(omni_checkpoint)
    assert transcription.usage is not None
    assert transcription.usage.input_token_details.audio_tokens > 0
    assert transcription.usage.output_tokens == TOKENS
    await system.ledger_is_empty()


async def test_a_language_changes_what_is_asked(client: openai.AsyncOpenAI, omni_checkpoint: Path):
    transcription = await client.audio.transcriptions.create(**WISH, language="de")

    assert transcription.text == whole_model(omni_checkpoint, USER + LANGUAGE.format(language="de"))


async def test_other_forms_hold_the_same_text(client: openai.AsyncOpenAI, system: System):
    plain = await client.audio.transcriptions.create(**WISH)

    text = await client.audio.transcriptions.create(**WISH, response_format="text")
    verbose = await client.audio.transcriptions.create(**WISH, response_format="verbose_json")
    stream: Any = await client.audio.transcriptions.create(**WISH, stream=True)
    events = [event async for event in stream]

    assert text == verbose.text == events[-1].text == plain.text
    assert verbose.duration == pytest.approx(1.5)
    assert events[-1].usage.total_tokens == plain.usage.total_tokens
    await system.ledger_is_empty()


async def test_a_broken_file_is_refused_and_the_next_one_is_heard(client: openai.AsyncOpenAI, system: System):
    with pytest.raises(openai.BadRequestError) as error:
        await client.audio.transcriptions.create(**{**WISH, "file": ("cut.wav", SOUND[:1000])})

    assert error.value.param == "file"
    assert (await client.audio.transcriptions.create(**WISH)).text
    await system.ledger_is_empty()
