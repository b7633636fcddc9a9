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
from tests.unit.executor.arithmetic import invocation
from tests.unit.executor.simulated import ALL, ENCODER, profile
from tests.unit.gateway.house import OMNI, VL, House, answered, events, house, image, text
from tests.unit.sidecar import node as nodes

PATIENCE = 20.0  # seconds
FAST = profile({**ALL, "audio": {**ENCODER, "tokens": {"audio": 5}}}, time_scale=1e-5)
FAMILIES = {VL: "qwen2_5_vl", OMNI: "qwen2_5_omni"}


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[House]:
    """A house with simulated executors for every option of both models."""
    async with house(tmp_path) as built:
        built.serve(VL, OMNI)
        assert built.router.plan is not None
        runners = []
        for model, planned in built.router.plan.models.items():
            for option, spec in planned.options.items():
                simulation = Simulation(ExecutorSettings(model=model, option=option, family=FAMILIES[model]), FAST)
                made = {component: simulation.make_runner(component) for component in spec.components}
                for runner in made.values():
                    await runner.load()
                works = {component: runner.run for component, runner in made.items()}
                await built.executor(model, option, *spec.components, **works)
                runners += made.values()
        yield built
        for runner in runners:
            await runner.close()


def usage(body: dict[str, Any]) -> tuple[int, int, int]:
    """Return the tokens of the prompt, its media, and the answer."""
    used = body["usage"]
    media = used["prompt_tokens_details"]
    return used["prompt_tokens"], media["image_tokens"] + media["audio_tokens"], used["completion_tokens"]


@pytest.mark.parametrize("path", ["E>L", "EL"])
async def test_a_picture_and_a_question_are_answered(home: House, path: str):
    response = await home.ask(VL, [text("x" * 40), image()], path=path)

    assert len(answered(response).split()) == 5
    assert usage(response.json()) == (10 + 10, 10, 5)
    assert response.json()["choices"][0]["finish_reason"] == "stop"
    await home.emptied()


async def test_an_answer_is_as_long_as_it_may_be(home: House):
    response = await home.ask(VL, "hello", max_tokens=3)

    assert len(answered(response).split()) == 3
    assert response.json()["choices"][0]["finish_reason"] == "length"


async def test_an_answer_streams(home: House):
    response = await home.ask(VL, "hello", stream=True)

    chunks = events(response)
    said = [chunk["choices"][0]["delta"].get("content") for chunk in chunks[:-1] if chunk["choices"]]
    assert len("".join(filter(None, said)).split()) == 5
    assert chunks[-1] == "[DONE]"


@pytest.mark.parametrize("path", ["Th>Ta>V", "M"])
async def test_speech_has_the_length_of_its_codes(home: House, path: str):
    voice = {"modalities": ["text", "audio"], "audio": {"voice": "Chelsie", "format": "wav"}}

    response = await home.ask(OMNI, "hello", path=path, **voice)

    assert response.status_code == 200, response.text
    spoken = response.json()["choices"][0]["message"]["audio"]
    with wave.open(io.BytesIO(base64.b64decode(spoken["data"]))) as sound:
        assert (sound.getnframes(), sound.getframerate()) == (4 * 3 * 10, 8000)
    assert len(spoken["transcript"].split()) == 5
    await home.emptied()


async def test_the_same_seed_answers_the_same_on_any_path(home: House):
    first = await home.ask(VL, [text("what is it?"), image()], path="E>L", seed=5)
    again = await home.ask(VL, [text("what is it?"), image()], path="EL", seed=5)
    other = await home.ask(VL, [text("what is it?"), image()], path="EL", seed=6)

    assert answered(first) == answered(again)
    assert answered(first) != answered(other)


async def test_a_replay_gives_the_recorded_answer(home: House):
    asked = await home.ask(VL, [text("what is it?"), image()])
    id = asked.headers["x-request-id"]
    await home.ended(id)
    recorded, _ = await home.records.find(id)

    parts = home.bus.request_stream(subjects.REPLAY, graph.encode_invocation(recorded), PATIENCE)
    *_, done = [json.loads(part) async for part in parts]

    assert (done["status"], done["identical"]) == ("done", True)
    await home.emptied()


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

    async with nodes.running(tmp_path):
        executor = ExecutorService(settings)
        bus = await NatsBus.connect(BusSettings(url=nats_url), "hand")
        try:
            await executor.startup()
            body = graph.encode_invocation(invocation([node], ["x"], [(0, "text")]))
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
