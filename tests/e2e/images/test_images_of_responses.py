"""Images of responses, as the official client meets them: a scripted model decides to draw, and another one draws."""

import base64
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.system import System, declare_model, start_system

pytestmark = pytest.mark.e2e

ASSISTANT, MODEL, SIZE = "assistant", "qwen-image-tiny", "32x32"
PROMPT = "a small red cat"
CALL = {"name": "image_generation", "arguments": {"prompt": PROMPT}}
ANSWERS = {
    "batch": {"base": 0.01},
    "step": {"base": 0.005},
    "steps": 12,
    "answers": [{"contains": "draw", "text": "Look.", "calls": [CALL]}],
}
TOOLS: Any = [{"type": "image_generation", "size": SIZE, "partial_images": 2}]


@pytest.fixture(scope="module")
def scripted_system(tmp_path_factory: pytest.TempPathFactory, image_checkpoint: Path) -> Iterator[System]:
    """A model that chats by a script, and one that draws."""
    directory = tmp_path_factory.mktemp("pair")
    profile = directory / "answers.json"
    profile.write_text(json.dumps({"default": {"components": {"thinker": ANSWERS}}}))
    option = {"components": ["thinker"], "service": "llm", "engine": "omnibus_engines:sim"}
    whole = declare_model("qwen_image", image_checkpoint)["options"]["TDV"]
    models = {
        ASSISTANT: declare_model("qwen3", profile, options={"L": option}, paths=[{"options": ["L"]}]),
        MODEL: declare_model("qwen_image", image_checkpoint, options={"TDV": whole}, paths=[{"options": ["TDV"]}]),
    }
    with start_system(directory, models) as system:
        yield system


@pytest.fixture
async def client(scripted_system: System) -> AsyncIterator[openai.AsyncOpenAI]:
    await scripted_system.becomes_ready()
    async with openai.AsyncOpenAI(
        base_url=f"{scripted_system.url}/v1",
        api_key="none",
        max_retries=0,
        timeout=60,
        _strict_response_validation=True,
    ) as new_client:
        yield new_client


async def test_a_model_that_decides_to_draw_has_it_drawn(scripted_system: System, client: openai.AsyncOpenAI) -> None:
    stream = await client.responses.create(
        model=ASSISTANT, input="draw a cat", tools=TOOLS, stream=True, extra_body={"seed": 7}
    )
    events = [event async for event in stream]
    fields: Any = {"model": MODEL, "prompt": PROMPT, "size": SIZE, "extra_body": {"seed": 7}}
    direct = await client.images.generate(**fields)

    last: Any = events[-1]
    message, image = last.response.output
    assert (message.content[0].text, image.type, image.status) == ("Look.", "image_generation_call", "completed")
    assert image.result == direct.data[0].b64_json
    kinds = [event.type for event in events]
    assert kinds.count("response.image_generation_call.partial_image") == 2
    again = [event async for event in await client.responses.retrieve(last.response.id, stream=True, starting_after=4)]
    assert [event.to_dict() for event in again] == [event.to_dict() for event in events[5:]]
    await scripted_system.ledger_is_empty()


async def test_a_model_that_draws_answers_with_an_image(client: openai.AsyncOpenAI) -> None:
    response = await client.responses.create(model=MODEL, input=PROMPT, tools=TOOLS, extra_body={"seed": 7})
    fields: Any = {"model": MODEL, "prompt": PROMPT, "size": SIZE, "extra_body": {"seed": 7}}
    direct = await client.images.generate(**fields)

    [image] = response.output
    assert image.type == "image_generation_call"
    assert base64.b64decode(image.result or "")[:8] == b"\x89PNG\r\n\x1a\n"
    assert image.result == direct.data[0].b64_json
