"""Two cells of simulated executors: each request stays in one.

If one is lost or drained, the other takes over.
"""

import asyncio
import contextlib
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator

import httpx
import msgspec
import pytest

from omnibus import graph
from tests.e2e.planned.cell import FAMILY, MODEL, SIMULATED
from tests.e2e.planned.load import PICTURE
from tests.e2e.system import System, start_system

pytestmark = [pytest.mark.e2e, pytest.mark.one_node]  # it has its own nodes

IDS = {"vl-E_c1-0", "vl-L_c1-0", "vl-E_c2-0", "vl-L_c2-0"}
FIRST, SECOND = "E@c1>L@c1", "E@c2>L@c2"
WITHIN = 60.0  # seconds until a change by an operator or a failure takes effect
AT_ONCE = 4


@pytest.fixture(scope="module")
def cell_system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    directory = tmp_path_factory.mktemp("cells")
    simulation = directory / "simulated.json"
    simulation.write_bytes(msgspec.json.encode({**SIMULATED, "time_scale": 0.2}))
    model = {
        "family": FAMILY,
        "checkpoint": str(simulation),
        "cells": 2,
        "options": {
            "E": {"components": ["vision"], "service": "encoder"},
            "L": {"components": ["thinker"], "service": "llm"},
        },
        "paths": [{"options": ["E", "L"]}],
    }
    settings = {"OMNIBUS_EXECUTOR_ENGINE": "omnibus_engines:sim", "OMNIBUS_GATEWAY_QUARANTINE": "0"}
    with start_system(directory, {MODEL: model}, "--nodes", "2", **settings) as system:
        yield system


class CellAnswers:
    """Results of requests: ``statuses`` by number, last ``paths``, and all ``ids``."""

    def __init__(self) -> None:
        self.statuses: Counter[int | str] = Counter()
        self.paths: list[str] = []
        self.ids: list[str] = []


@contextlib.asynccontextmanager
async def send_requests(system: System) -> AsyncIterator[CellAnswers]:
    """Requests with an image inside the block, some at all times."""
    answers, stop = CellAnswers(), asyncio.Event()
    body = {"model": MODEL, "messages": [{"role": "user", "content": [PICTURE, {"type": "text", "text": "what?"}]}]}

    async def ask_repeatedly(http: httpx.AsyncClient) -> None:
        while not stop.is_set():
            answer = await http.post("/v1/chat/completions", json=body)
            answers.statuses[answer.status_code if answer.status_code == 200 else answer.text] += 1
            answers.paths.append(answer.headers.get("x-omnibus-path", ""))
            answers.ids.append(answer.headers.get("x-request-id", ""))

    async with httpx.AsyncClient(base_url=system.url, timeout=60) as http, asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(ask_repeatedly(http))
        try:
            yield answers
        finally:
            stop.set()


async def until_paths(answers: CellAnswers, are: Callable[[set[str]], bool], count: int = 20) -> None:
    """Wait until the last ``count`` answers used such paths."""
    async with asyncio.timeout(WITHIN):
        answers.paths.clear()
        while len(answers.paths) < count or not are(set(answers.paths[-count:])):
            await asyncio.sleep(0.05)


async def test_requests_stay_in_a_cell_that_lies_on_one_node(cell_system: System):
    assert cell_system.executors == IDS
    async with send_requests(cell_system) as answers:
        await until_paths(answers, lambda paths: paths == {FIRST, SECOND})
    routes = [graph.decode_invocation((await cell_system.record(id))[0]).route for id in answers.ids[:10]]
    places = await node_by_executor(cell_system)

    assert answers.statuses.keys() == {200}
    assert {tuple(sorted(route)) for route in routes} <= {("vl-E_c1-0", "vl-L_c1-0"), ("vl-E_c2-0", "vl-L_c2-0")}
    assert places["vl-E_c1-0"] == places["vl-L_c1-0"] != places["vl-E_c2-0"] == places["vl-L_c2-0"]


async def node_by_executor(system: System) -> dict[str, tuple[str, str]]:
    """Cell and node of each executor, from its heartbeat."""
    places: dict[str, tuple[str, str]] = {}
    async with asyncio.timeout(WITHIN), system.bus() as bus, contextlib.aclosing(system.statuses(bus)) as stream:
        async for status in stream:
            places[status.id] = (status.cell, status.node)
            if places.keys() == IDS:
                break
    return places


@pytest.mark.parametrize("victim", ["vl-E_c1-0", "vl-L_c1-0"])
async def test_the_other_cell_takes_over_and_no_request_fails(cell_system: System, victim: str):
    pids = await cell_system.whole()
    async with send_requests(cell_system) as answers:
        await until_paths(answers, lambda paths: paths == {FIRST, SECOND})
        os.kill(pids[victim], signal.SIGSTOP)  # killed it would be back before twenty answers have come
        await until_paths(answers, lambda paths: paths == {SECOND})
        os.kill(pids[victim], signal.SIGKILL)
        await until_paths(answers, lambda paths: paths == {FIRST, SECOND})

    assert answers.statuses.keys() == {200}
    assert "cell c1 of vl has lost a stage: its requests go to c2 and others" in cell_system.log


async def set_share(system: System, cell: str, part: str) -> tuple[int, str]:
    """Set a cell's part of its share; return exit code and output of the command."""
    process = system.command("plan", "cells", MODEL, cell, part)
    output, _ = await asyncio.to_thread(process.communicate, timeout=WITHIN)
    return process.returncode, output


async def test_a_cell_is_drained_and_given_its_share_again(cell_system: System):
    async with send_requests(cell_system) as answers:
        await until_paths(answers, lambda paths: paths == {FIRST, SECOND})
        code, output = await set_share(cell_system, "c2", "0")
        await until_paths(answers, lambda paths: paths == {FIRST}, 40)
        _, back = await set_share(cell_system, "c2", "1")
        await until_paths(answers, lambda paths: paths == {FIRST, SECOND})

    assert code == 0, output
    assert [line.split() for line in output.splitlines()[1:]] == [
        [MODEL, "c1", "1xE", "1xL", "50.0%", "1"],
        [MODEL, "c2", "1xE", "1xL", "50.0%", "0"],
    ]
    assert back.splitlines()[2].split()[-1] == "1"
    assert answers.statuses.keys() == {200}
