"""Replays of apps with growing graphs: all segments rerun, and tool results come from the record."""

import json
from pathlib import Path
from typing import Any

import pytest

from omnibus.bus import subjects
from tests.unit.gateway.apps.estate import AppCluster, AppGateway
from tests.unit.gateway.house import TOYS, VL, build_chat_body

PATIENCE = 20.0  # seconds

#: Calls its model, looks something up, and calls it again with the result. A file counts the look-ups.
AGENT = """
    from pathlib import Path

    from omnibus.app import App
    from omnibus.task import ChatInput, ChatOutput, CompositeTask, MLLM, Think, tool

    MODEL = MLLM(encoders={}, thinker=Think(model="toy-vl", component="thinker"))


    def look_up(words: str) -> str:
        with Path("{log}").open("a") as log:
            log.write("x")
        return str(len(words))


    class Agent(CompositeTask):
        model: MLLM = MODEL

        async def invoke(self, request: str) -> ChatOutput:
            said = await self.model.invoke(ChatInput.of(request, max_tokens=40)).text
            for _ in range(2):
                found = await tool(look_up, said)
                said = await self.model.invoke(ChatInput.of("found " + found, max_tokens=40)).text
            return self.model.invoke(ChatInput.of("so " + found, max_tokens=40))


    AGENT = Agent()
"""
SERVES = """

    async def serve(request: str) -> str:
        return await (await AGENT(request)).text
"""
CHATS = """
    app = App(model="agent-chat")


    async def serve(request: ChatInput) -> ChatOutput:
        return await AGENT(request.messages[-1]["content"])
"""


async def replay_request(cluster: AppCluster, id: str) -> list[dict[str, Any]]:
    bus = cluster.home.bus
    body = (await bus.read_records(f"{subjects.ROOT}.inv.*.{id}"))[0].data
    parts = [json.loads(part) async for part in bus.request_stream(subjects.REPLAY, body, PATIENCE)]
    await cluster.home.emptied()
    return parts


@pytest.mark.parametrize("chats", [False, True])
async def test_an_agent_is_replayed_as_a_whole_without_its_tools(
    cluster: AppCluster, gate: AppGateway, tmp_path: Path, chats: bool
):
    await cluster.home.all_of(VL)
    log = tmp_path / "looked"
    cluster.write("agent", AGENT + (CHATS if chats else SERVES), log=str(log))
    await gate.register("agent")
    if chats:
        response = await gate.http.post("/v1/chat/completions", json=build_chat_body("agent-chat", "one two"))
    else:
        response = await gate.http.post("/v1/apps/agent/invoke", json="one two")
    assert response.status_code == 200, response.text
    id = response.headers["x-request-id"]
    end_record = await cluster.home.ended(id)
    for later in end_record.segments:
        await cluster.home.ended(later)
    assert (len(end_record.segments), log.read_text()) == (3, "xx")

    *running, outcome = await replay_request(cluster, id)
    (alone, one) = await replay_request(cluster, f"{id}_2")

    assert [part["replay_of"] for part in running] == [id, *end_record.segments]
    assert (outcome["status"], outcome["identical"]) == ("done", True), outcome
    assert [each.partition(" (")[0] for each in outcome["compared"]] == [
        f"segment {each}: thinker.text" for each in (id, *end_record.segments)
    ]
    assert (alone["replay_of"], one["identical"], len(one["compared"])) == (f"{id}_2", True, 1)
    assert log.read_text() == "xx"


async def test_the_segment_in_which_an_agent_differs_is_named(cluster: AppCluster, gate: AppGateway, tmp_path: Path):
    is_changed = False

    async def think_or_lose(job: Any) -> None:
        messages = await job.value("messages")
        if is_changed and "found" in json.dumps(messages[-1]["content"]):
            await job.send("text", {"text": "lost"})
            job.close("text", {"finish_reason": "stop", "usage": {}})
            return
        await TOYS["thinker"](job)

    cluster.home.serve(VL)
    await cluster.home.executor(VL, "EL", "vision", "thinker", thinker=think_or_lose)
    cluster.write("agent", AGENT + SERVES, log=str(tmp_path / "looked"))
    await gate.register("agent")
    response = await gate.http.post("/v1/apps/agent/invoke", json="one two")
    id = response.headers["x-request-id"]
    end_record = await cluster.home.ended(id)
    for later in end_record.segments:
        await cluster.home.ended(later)
    is_changed = True

    *_, outcome = await replay_request(cluster, id)

    assert (outcome["identical"], outcome["first"]["segment"], outcome["first"]["stage"]) == (
        False,
        f"{id}_1",
        "thinker",
    )
