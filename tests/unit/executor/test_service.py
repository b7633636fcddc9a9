"""The executor's process: its identity from settings, and a run on a real bus and sidecar."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from omnibus import graph
from omnibus.bus import messages, subjects
from omnibus.bus.messages import Chunk, ExecutorStatus, Hop
from omnibus.bus.nats import NatsBus
from omnibus.errors import BadRequest
from omnibus.executor.service import ExecutorService, load_engine
from omnibus.executor.settings import ExecutorSettings
from omnibus.graph import GraphNode
from omnibus.settings import BusSettings
from omnibus_gateway.routing.executors import ExecutorTable
from tests.unit.executor.arithmetic import make_invocation
from tests.unit.plugins.dists import install_toy, open_installer
from tests.unit.sidecar import node as nodes
from tests.unit.sidecar.node import wait_until

PATIENCE = 20.0  # seconds
OMNI = {"model": "qwen2.5-omni", "family": "qwen2_5_omni", "option": "E", "components": "vision,audio"}


def make_service(**settings: Any) -> ExecutorService:
    return ExecutorService(ExecutorSettings(**{**OMNI, **settings}))


def test_unit_tasks_are_named_after_the_familys_kinds():
    assert make_service().make_identity("n").tasks == {
        "encode-qwen2_5-omni-vision": "vision",
        "encode-qwen2_5-omni-audio": "audio",
    }


def test_unit_tasks_that_are_told_are_those_of_the_components_in_their_order():
    identity = make_service(tasks="encode-gemma-a-vision,hear-b-audio", family="").make_identity("n")

    assert identity.tasks == {"encode-gemma-a-vision": "vision", "hear-b-audio": "audio"}


def test_an_executor_is_of_the_option_that_the_plan_names():
    identity = make_service(option="Ta+V").make_identity("n")

    assert identity.option == "Ta+V"
    assert identity.id.startswith("qwen2_5-omni-Ta_V-")


def test_without_an_option_it_is_named_after_its_components():
    assert make_service(option="").make_identity("n").option == "vision+audio"


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"model": ""}, "set OMNIBUS_EXECUTOR_MODEL and OMNIBUS_EXECUTOR_COMPONENTS"),
        ({"components": ""}, "set OMNIBUS_EXECUTOR_MODEL and OMNIBUS_EXECUTOR_COMPONENTS"),
        ({"components": "vision,nose"}, r"unknown components \['nose'\]; qwen2_5_omni has \['audio', "),
        ({"family": "qwen9"}, "no model family 'qwen9'"),
        ({"tasks": "encode-a"}, "OMNIBUS_EXECUTOR_TASKS='encode-a' must name one unit task for each of vision, audio"),
        ({"tasks": "a,b,c"}, "must name one unit task for each"),
        ({"tasks": "a.b,c"}, "must name one unit task for each"),
        ({"tasks": "a,a"}, "have the same unit task: a"),
    ],
)
def test_settings_that_make_no_executor_are_named(settings: dict[str, Any], fault: str):
    with pytest.raises(BadRequest, match=fault):
        make_service(**settings).make_identity("n")


@pytest.mark.parametrize("path", ["nothing", "omnibus.nothing:engine", "omnibus.executor.python_task:nothing"])
def test_an_engine_that_is_not_there_is_named_with_its_variable(path: str):
    with pytest.raises(BadRequest, match=f"OMNIBUS_EXECUTOR_ENGINE='{path}' must name module:function"):
        load_engine(path)


async def test_an_executor_that_cannot_start_publishes_the_error(nats_url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMNIBUS_BUS_URL", nats_url)
    bus = await NatsBus.connect(BusSettings(url=nats_url), "hand")
    statuses: list[ExecutorStatus] = []
    await bus.subscribe(
        subjects.event_subject(subjects.EXECUTOR),
        lambda delivery: statuses.append(msgspec.json.decode(delivery.data, type=ExecutorStatus)),
    )
    executor = make_service(engine="omnibus.nothing:engine")

    with pytest.raises(BadRequest):
        await executor.startup()
    await executor.shutdown()
    await wait_until(lambda: bool(statuses))
    await bus.drain()

    [status] = statuses
    assert (status.model, status.option, status.state) == ("qwen2.5-omni", "E", "gone")
    assert status.fault.startswith("BadRequest: OMNIBUS_EXECUTOR_ENGINE='omnibus.nothing:engine' must name")
    table = ExecutorTable()
    table.handle_status(status)
    assert table.start_fault("qwen2.5-omni") == status.fault
    table.handle_status(msgspec.structs.replace(status, state="ready", fault=""))
    assert table.start_fault("qwen2.5-omni") == ""


async def test_an_executor_runs_the_engine_of_a_plugin(nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMNIBUS_BUS_URL", nats_url)
    monkeypatch.setenv("OMNIBUS_SIDECAR_SOCKET", str(tmp_path / "s"))
    monkeypatch.setenv("OMNIBUS_SIDECAR_NODE", nodes.NODE)
    task = "encode-m-eye"
    settings = ExecutorSettings(
        model="m", family="toy", checkpoint="/weights", option="E+", components="eye", engine="toy_host:engine"
    )

    with open_installer(tmp_path / "site", monkeypatch) as install:
        install_toy(install, "toy_host")
        async with nodes.run_sidecar(tmp_path):
            executor = ExecutorService(settings)
            bus = await NatsBus.connect(BusSettings(url=nats_url), "hand")
            try:
                await executor.startup()
                body = graph.encode_invocation(make_invocation([GraphNode(task, "eye", {}, "d")], ["x"], [(0, "said")]))
                parts = [part async for part in bus.request_stream(subjects.task_subject(task), body, PATIENCE)]
            finally:
                await executor.drain(1.0)
                await executor.shutdown()
                await bus.drain()

    replies = [message for part in parts for message in messages.decode_replies(part)]
    assert [reply.data for reply in replies if isinstance(reply, Chunk)] == [{"by": "eye", "of": "/weights"}]
    assert isinstance(replies[-1], Hop)
