"""Chats through a whole gateway, with simulated executors like real ones."""

import base64
import io
import json
import wave
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from omnibus import graph
from omnibus.bus import messages, subjects
from omnibus.bus.messages import Chunk, Hop
from omnibus.bus.nats import NatsBus
from omnibus.executor.service import ExecutorService
from omnibus.executor.settings import ExecutorSettings
from omnibus.executor.sim import Simulation
from omnibus.graph import GraphNode
from omnibus.settings import BusSettings
from tests.unit.executor.arithmetic import make_invocation
from tests.unit.executor.simulated import ALL, ENCODER, make_profile
from tests.unit.gateway.house import (
    OMNI,
    VL,
    ToyGateway,
    make_image_part,
    make_text_part,
    read_chat_answer,
    read_sse_events,
    start_toy_gateway,
)
from tests.unit.sidecar import node as nodes

PATIENCE = 20.0  # seconds
FAST = make_profile({**ALL, "audio": {**ENCODER, "tokens": {"audio": 5}}}, time_scale=1e-5)
FAMILIES = {VL: "qwen2_5_vl", OMNI: "qwen2_5_omni"}


@pytest.fixture
async def simulated_house(tmp_path: Path) -> AsyncIterator[ToyGateway]:
    """A house with simulated executors for every option of both models."""
    async with start_toy_gateway(tmp_path) as gateway_house:
        gateway_house.serve(VL, OMNI)
        assert gateway_house.router.plan is not None
        runners = []
        for model, model_plan in gateway_house.router.plan.models.items():
            for option, spec in model_plan.options.items():
                simulation = Simulation(ExecutorSettings(model=model, option=option, family=FAMILIES[model]), FAST)
                runners_by_component = {component: simulation.make_runner(component) for component in spec.components}
                for runner in runners_by_component.values():
                    await runner.load()
                works = {component: runner.run for component, runner in runners_by_component.items()}
                await gateway_house.executor(model, option, *spec.components, **works)
                runners += runners_by_component.values()
        yield gateway_house
        for runner in runners:
            await runner.close()


def count_usage(body: dict[str, Any]) -> tuple[int, int, int]:
    """Return the tokens of the prompt, its media, and the answer."""
    counts = body["usage"]
    media = counts["prompt_tokens_details"]
    return counts["prompt_tokens"], media["image_tokens"] + media["audio_tokens"], counts["completion_tokens"]


@pytest.mark.parametrize("path", ["E>L", "EL"])
async def test_a_picture_and_a_question_are_answered(simulated_house: ToyGateway, path: str):
    response = await simulated_house.ask(VL, [make_text_part("x" * 40), make_image_part()], path=path)

    assert len(read_chat_answer(response).split()) == 5
    assert count_usage(response.json()) == (10 + 10, 10, 5)
    assert response.json()["choices"][0]["finish_reason"] == "stop"
    await simulated_house.emptied()


async def test_an_answer_is_as_long_as_it_may_be(simulated_house: ToyGateway):
    response = await simulated_house.ask(VL, "hello", max_tokens=3)

    assert len(read_chat_answer(response).split()) == 3
    assert response.json()["choices"][0]["finish_reason"] == "length"


async def test_an_answer_streams(simulated_house: ToyGateway):
    response = await simulated_house.ask(VL, "hello", stream=True)

    chunks = read_sse_events(response)
    texts = [chunk["choices"][0]["delta"].get("content") for chunk in chunks[:-1] if chunk["choices"]]
    assert len("".join(filter(None, texts)).split()) == 5
    assert chunks[-1] == "[DONE]"


@pytest.mark.parametrize("path", ["Th>Ta>V", "M"])
async def test_speech_has_the_length_of_its_codes(simulated_house: ToyGateway, path: str):
    voice = {"modalities": ["text", "audio"], "audio": {"voice": "Chelsie", "format": "wav"}}

    response = await simulated_house.ask(OMNI, "hello", path=path, **voice)

    assert response.status_code == 200, response.text
    audio = response.json()["choices"][0]["message"]["audio"]
    with wave.open(io.BytesIO(base64.b64decode(audio["data"]))) as sound:
        assert (sound.getnframes(), sound.getframerate()) == (4 * 3 * 10, 8000)
    assert len(audio["transcript"].split()) == 5
    await simulated_house.emptied()


async def test_the_same_seed_answers_the_same_on_any_path(simulated_house: ToyGateway):
    first = await simulated_house.ask(VL, [make_text_part("what is it?"), make_image_part()], path="E>L", seed=5)
    again = await simulated_house.ask(VL, [make_text_part("what is it?"), make_image_part()], path="EL", seed=5)
    other = await simulated_house.ask(VL, [make_text_part("what is it?"), make_image_part()], path="EL", seed=6)

    assert read_chat_answer(first) == read_chat_answer(again)
    assert read_chat_answer(first) != read_chat_answer(other)


async def test_a_replay_gives_the_recorded_answer(simulated_house: ToyGateway):
    response = await simulated_house.ask(VL, [make_text_part("what is it?"), make_image_part()])
    id = response.headers["x-request-id"]
    await simulated_house.ended(id)
    recording, _ = await simulated_house.records.find(id)

    parts = simulated_house.bus.request_stream(subjects.REPLAY, graph.encode_invocation(recording), PATIENCE)
    *_, result = [json.loads(part) async for part in parts]

    assert (result["status"], result["identical"]) == ("done", True)
    await simulated_house.emptied()


async def test_an_executor_process_runs_the_engine_by_its_settings(
    nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OMNIBUS_BUS_URL", nats_url)
    monkeypatch.setenv("OMNIBUS_SIDECAR_SOCKET", str(tmp_path / "s"))
    monkeypatch.setenv("OMNIBUS_SIDECAR_NODE", nodes.NODE)
    (tmp_path / "profile.json").write_text(json.dumps({"time_scale": 1e-5, "default": {"components": ALL}}))
    settings = ExecutorSettings(
        model="m",
        family="qwen2_5_vl",
        option="EL",
        components="vision,thinker",
        engine="omnibus_engines:sim",
        profile=str(tmp_path / "profile.json"),
    )
    task = "think-m-thinker"
    node = GraphNode(
        task, "thinker", {"messages": [{"role": "user", "content": "hello"}], "params": {"max_tokens": 4}}, "d"
    )

    async with nodes.run_sidecar(tmp_path):
        executor = ExecutorService(settings)
        bus = await NatsBus.connect(BusSettings(url=nats_url), "hand")
        try:
            await executor.startup()
            body = graph.encode_invocation(make_invocation([node], ["x"], [(0, "text")]))
            parts = [part async for part in bus.request_stream(subjects.task_subject(task), body, PATIENCE)]
        finally:
            await executor.drain(1.0)
            await executor.shutdown()
            await bus.drain()

    replies = [message for part in parts for message in messages.decode_replies(part)]
    chunks = [reply.data for reply in replies if isinstance(reply, Chunk)]
    tokens = [len(chunk["ids"]) for chunk in chunks[:-1]]
    assert (tokens[0], sum(tokens)) == (1, 4)  # tokens after the first are too fast for separate chunks
    assert chunks[-1]["finish_reason"] == "length"
    assert isinstance(replies[-1], Hop)
