"""``/v1/completions`` with a real model and the official client.

The client checks every answer against its own types.
"""

from collections.abc import AsyncIterator

import openai
import pytest

from tests.e2e.routes.conftest import OMNI
from tests.e2e.system import System

pytestmark = pytest.mark.e2e

PROMPT = "the cat and the dog"


@pytest.fixture
async def strict_client(system: System) -> AsyncIterator[openai.AsyncOpenAI]:
    await system.becomes_ready()
    async with openai.AsyncOpenAI(
        base_url=f"{system.url}/v1", api_key="none", max_retries=0, timeout=60, _strict_response_validation=True
    ) as new_client:
        yield new_client


async def test_texts_are_completed(strict_client: openai.AsyncOpenAI):
    completion = await strict_client.completions.create(
        model=OMNI, prompt=[PROMPT, "two"], n=2, max_tokens=5, temperature=0
    )

    assert [choice.index for choice in completion.choices] == [0, 1, 2, 3]
    assert completion.choices[0].text == completion.choices[1].text  # greedy
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 20


async def test_a_stream_says_the_same(system: System, strict_client: openai.AsyncOpenAI):
    whole = await strict_client.completions.create(model=OMNI, prompt=PROMPT, max_tokens=8, seed=3, echo=True)
    # A stream's events have no `finish_reason` yet, which is null here as at OpenAI: the strict type does not allow it.
    async with system.client() as client:
        stream = await client.completions.create(
            model=OMNI, prompt=PROMPT, max_tokens=8, seed=3, echo=True, stream=True
        )
        events = [event async for event in stream]

    assert "".join(choice.text for event in events for choice in event.choices) == whole.choices[0].text
    assert whole.choices[0].text.startswith(PROMPT)
    assert [choice.finish_reason for event in events for choice in event.choices][-1] == whole.choices[0].finish_reason
