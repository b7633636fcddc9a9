"""Each kind of answer: the parts that its replay compares, and the reported place of a difference."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest

from omnibus.bus import subjects
from omnibus.executor.runner import Job
from omnibus.families import catalog
from omnibus.structured.calls import call_head
from tests.unit.gateway.house import (
    OMNI,
    PAINTER,
    TOYS,
    VL,
    ToyGateway,
    build_chat_body,
    make_image_part,
    make_text_part,
    start_toy_gateway,
)
from tests.unit.gateway.samples import make_sample_sound

EMBEDDER, RERANKER = "toy-embedder", "toy-reranker"
CHAT = "/v1/chat/completions"
PATIENCE = 20.0  # seconds
SPOKEN = {"modalities": ["text", "audio"], "audio": {"voice": "Chelsie", "format": "pcm16"}}
CALLED = {"name": "add", "input_schema": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]


class AnswerKind(NamedTuple):
    """A request, its compared parts, and the place of a difference."""

    path: str
    sent: dict[str, Any]
    compared: list[str]
    differs: str


def build_request(**more: Any) -> dict[str, Any]:
    return {"json": build_chat_body(VL, "one two", **more)}


#: The toys write ``You said one two [SEED]``, plus one thing of each kind once they have changed.
KINDS = {
    "chat": AnswerKind(
        CHAT, build_request(seed=3), ["thinker.text (21 characters of text, 5 tokens)"],
        "thinker.text differs: text from character 21 on",
    ),
    "streamed chat": AnswerKind(
        CHAT, build_request(seed=3, stream=True), ["thinker.text (21 characters of text, 5 tokens)"],
        "thinker.text differs: text from character 21 on",
    ),
    "chat with an image": AnswerKind(
        CHAT, {"json": build_chat_body(VL, [make_text_part("look"), make_image_part()], seed=3)},
        ["thinker.text (27 characters of text, 5 tokens)"], "thinker.text differs: text from character 27 on",
    ),
    "several answers": AnswerKind(
        CHAT, build_request(seed=3, n=2),
        ["thinker.text (21 characters of text, 5 tokens)"] * 2,
        "thinker.text differs: text from character 21 on of all answers",
    ),
    "tool calls": AnswerKind(
        CHAT, build_request(tools=TOOLS), ["thinker.text (1 tool call)"],
        "thinker.text differs: arguments of tool call 0 (add) from character 6 on",
    ),
    "message": AnswerKind(
        "/v1/messages", {"json": build_chat_body(VL, "one two", max_tokens=9, tools=[CALLED])},
        ["thinker.text (1 tool call)"], "thinker.text differs: arguments of tool call 0 (add) from character 6 on",
    ),
    "completion": AnswerKind(
        "/v1/completions", {"json": {"model": VL, "prompt": "one two", "seed": 3}},
        ["thinker.text (21 characters of text, 5 tokens)"], "thinker.text differs: text from character 21 on",
    ),
    "spoken chat": AnswerKind(
        CHAT, {"json": build_chat_body(OMNI, "one", seed=3, **SPOKEN)},
        ["thinker.text (17 characters of text, 4 tokens)", "vocoder.audio (960 samples)"],
        "thinker.text differs: text from character 17 on",
    ),
    "speech": AnswerKind(
        "/v1/audio/speech", {"json": {"model": OMNI, "input": "one two", "voice": "Chelsie"}},
        ["thinker.text (8 characters of text, 2 tokens)", "vocoder.audio (480 samples)"],
        "thinker.text differs: text from character 8 on",
    ),
    "transcription": AnswerKind(
        "/v1/audio/transcriptions",
        {"data": {"model": OMNI, "seed": "3"}, "files": {"file": ("a.wav", make_sample_sound("wav", "pcm_s16le", 0.5, 16000))}},
        [], "thinker.text differs: text from character",
    ),
    "image": AnswerKind(
        "/v1/images/generations",
        {"json": {"model": PAINTER, "prompt": "a boat", "size": "64x48", "steps": 2, "seed": 5}},
        ["text_encoder.tokens (1 value)", "vae.image (1 image of 48 x 64 pixels)"], "vae.image differs: its digest is another one",
    ),
    "embeddings": AnswerKind(
        "/v1/embeddings", {"json": {"model": EMBEDDER, "input": ["one two", "three"]}},
        ["embedder.embedding (2 rows of 3)", "embedder.tokens (1 value)"],
        "embedder.embedding differs: its digest is another one",
    ),
    "rerank": AnswerKind(
        "/v1/rerank", {"json": {"model": RERANKER, "query": "one", "documents": ["one two", "three"]}},
        ["reranker.scores (2 numbers)", "reranker.tokens (1 value)"], "reranker.scores differs: its digest is another one",
    ),
}  # fmt: skip


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[ToyGateway]:
    async with start_toy_gateway(tmp_path) as gateway:
        gateway.changed = False
        works = {"thinker": _make_thinker(gateway), "vae": _make_painter(gateway), "embedder": _make_embedder(gateway)}
        works["reranker"] = _make_reranker(gateway)
        texts = {
            EMBEDDER: catalog.embedding_declaration("qwen2", ""),
            RERANKER: catalog.model_declaration("cross_encoder", ""),
        }
        gateway.serve(VL, OMNI, PAINTER, **texts)
        await gateway.executor(EMBEDDER, "B", "embedder", **works)
        await gateway.executor(RERANKER, "R", "reranker", **works)
        for model in (VL, OMNI, PAINTER):
            for option, spec in gateway.router.plan.models[model].options.items():
                parts = {part: works[part] for part in spec.components if part in works}
                await gateway.executor(model, option, *spec.components, **parts)
        yield gateway


def _make_thinker(home: ToyGateway) -> Callable[[Job], Awaitable[None]]:
    """Return a thinker with another word or argument once the house changed."""

    async def run_thinker(job: Job) -> None:
        params = await job.value("params")
        if not isinstance(params, dict) or not params.get("tools"):
            await TOYS["thinker"](Longer(job) if home.changed else job)
            return
        number = 2 if home.changed else 1
        await job.send("text", {"calls": call_head("add") + f'{{"x": {number}}}'})
        job.close("text", {"finish_reason": "stop", "usage": {"prompt_tokens": 5, "completion_tokens": 7}})

    return run_thinker


class Longer:
    """A job whose text and rows end with one more word."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job, name)

    def close(self, output: str, data: dict[str, Any] | None = None) -> None:
        self._job.close(output, data)

    async def value(self, name: str) -> Any:
        job_value = await self._job.value(name)
        return (
            {**job_value, "say": f"{job_value['say']} more"} if name == "params" and job_value.get("say") else job_value
        )

    async def send(self, output: str, data: dict[str, Any], array: Any = None) -> None:
        await self._job.send(output, {**data, "text": data["text"].replace("]", "] more")}, array)


def _make_painter(home: ToyGateway) -> Callable[[Job], Awaitable[None]]:
    async def run_painter(job: Job) -> None:
        if not home.changed:
            await TOYS["vae"](job)
            return
        await job.value("latents")
        await job.put("image", {}, np.zeros((48, 64, 3), np.uint8))

    return run_painter


def _make_embedder(home: ToyGateway) -> Callable[[Job], Awaitable[None]]:
    async def run_embedder(job: Job) -> None:
        if not home.changed:
            await TOYS["embedder"](job)
            return
        await job.put("embedding", {}, np.ones((2, 3), np.float32))
        await job.put("tokens", {"value": 3})

    return run_embedder


def _make_reranker(home: ToyGateway) -> Callable[[Job], Awaitable[None]]:
    async def run_reranker(job: Job) -> None:
        if not home.changed:
            await TOYS["reranker"](job)
            return
        await job.put("scores", {}, np.ones(2, np.float32))
        await job.put("tokens", {"value": 3})

    return run_reranker


async def send_request(home: ToyGateway, kind: AnswerKind) -> str:
    """Send a request of ``kind`` and return its id once recorded."""
    response: httpx.Response = await home.http.post(kind.path, **kind.sent)
    assert response.status_code == 200, response.text
    id = response.headers["x-request-id"]
    await home.ended(id)
    return id


async def replay_invocation(home: ToyGateway, id: str) -> dict[str, Any]:
    [*records] = await home.bus.read_records(f"{subjects.ROOT}.inv.*.{id}")
    *_, last = [json.loads(part) async for part in home.bus.request_stream(subjects.REPLAY, records[0].data, PATIENCE)]
    await home.emptied()
    return dict(last)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
async def test_a_replay_says_what_of_an_answer_it_compared(home: ToyGateway, kind: AnswerKind):
    id = await send_request(home, kind)

    reply = await replay_invocation(home, id)

    assert (reply.get("status"), reply.get("identical")) == ("done", True), reply
    assert reply["compared"] == kind.compared or (not kind.compared and reply["compared"])


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
async def test_a_replay_names_the_place_where_an_answer_differs(home: ToyGateway, kind: AnswerKind):
    id = await send_request(home, kind)
    home.changed = True

    reply = await replay_invocation(home, id)

    assert (reply["status"], reply["identical"]) == ("done", False), reply
    assert reply["why"].startswith(kind.differs)
