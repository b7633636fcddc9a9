"""What runs in one executor stays in it: no message, no memory of the arena, and the same answer."""

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest

from omnibus import graph
from omnibus.bus import messages, subjects
from omnibus.bus.messages import Chunk
from tests.e2e.images.test_images import WISHES, paint
from tests.e2e.omni.speech import same, spoken, taken, wanted, whole_model
from tests.e2e.questions import OMNI_QUESTIONS, VL_QUESTIONS
from tests.e2e.system import VL, System
from tests.e2e.watch import Watch

pytestmark = pytest.mark.e2e

SPEECH = "EV>EA>Th>Ta+V"
SPOKEN = OMNI_QUESTIONS["image and audio"]
PICTURED = VL_QUESTIONS["two images"]


class Edge(NamedTuple):
    """A chunk between executors, by options."""

    producer: str
    consumer: str
    output: str


class Traffic(NamedTuple):
    """What one request moved: edges, blocks of the arena that were given out, and those that messages named."""

    edges: set[Edge]
    granted: int
    named: int


async def chat(system: System, body: dict[str, Any], path: str) -> httpx.Response:
    async with system.http() as http:
        answer = await http.post("/v1/chat/completions", json=body, headers={"x-omnibus-path": path})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-omnibus-path"] == path
    return answer


async def traffic(system: System, request: Callable[[], Awaitable[httpx.Response]]) -> Traffic:
    async with system.tensors() as tensors, Watch.on(system) as watch:
        before = (await tensors.stats())["granted_total"]
        answer = await request()
        id = answer.headers["x-request-id"]
        await watch.end(id)
        await system.ledger_is_empty()
        granted = (await tensors.stats())["granted_total"] - before
    sent = graph.decode((await system.record(id))[0])
    options = dict(zip(sent.route, sent.options, strict=True))
    edges = {
        Edge(sent.options[chunk.node], options[delivery.subject.split(".")[2]], chunk.output)
        for delivery in watch.seen
        if delivery.subject.startswith(f"{subjects.ROOT}.edge.")
        for chunk in messages.decode_edges(delivery.data)
        if isinstance(chunk, Chunk) and chunk.inv == id
    }
    bodies = [msgspec.json.decode(one.data) for one in watch.seen if one.data.startswith(b"{")]
    return Traffic(edges, granted, len(set(handles(bodies))))


def handles(value: Any) -> Iterator[tuple[int, int]]:
    """Whatever names a block in a message, wherever it stands."""
    if isinstance(value, dict) and "generation" in value:
        yield value["id"], value["generation"]
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from handles(each)


async def test_embeddings_of_an_encoder_beside_its_llm_are_not_moved(together: System):
    body = {"model": VL, "messages": PICTURED.messages, "max_tokens": 8, "temperature": 0}

    moved = await traffic(together, lambda: chat(together, body, "EL"))

    assert moved == Traffic(set(), granted=2, named=2)  # the files of two images


async def test_codes_of_a_talker_beside_its_vocoder_are_not_moved(together: System):
    moved = await traffic(together, lambda: chat(together, wanted(SPOKEN), SPEECH))

    assert {edge for edge in moved.edges if edge.producer == "Ta+V"} == set()
    assert {edge for edge in moved.edges if edge.consumer == "Ta+V"} == {
        Edge("Th", "Ta+V", output) for output in ("prompt", "layout", "rows")
    }
    assert moved.granted == moved.named


async def test_what_a_whole_model_thinks_and_talks_is_not_moved(together: System):
    moved = await traffic(together, lambda: chat(together, wanted(SPOKEN), "M"))

    assert moved.edges == set()
    assert moved.granted == moved.named


async def test_what_guides_a_picture_and_its_latents_are_not_moved(together: System):
    async def painted() -> httpx.Response:
        return (await paint(together, WISHES["square"], "TDV"))[1]

    moved = await traffic(together, painted)

    assert moved == Traffic(set(), granted=1, named=1)  # the picture


@pytest.mark.cell("transformers", "qwen2_5_omni", "tokens")
@pytest.mark.cell("transformers", "qwen2_5_omni", "waveform")
@pytest.mark.parametrize("shape", [SPEECH])
@pytest.mark.parametrize("name", OMNI_QUESTIONS)
async def test_speech_sounds_like_that_of_the_whole_model(
    together: System, omni_checkpoint: Path, name: str, shape: str
):
    question = OMNI_QUESTIONS[name]

    answer = await chat(together, wanted(question), taken(shape, question, speech=True))

    same(spoken(answer.json()), whole_model(omni_checkpoint, question))
    await together.ledger_is_empty()
