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
from tests.e2e.system import System, running

pytestmark = [pytest.mark.e2e, pytest.mark.one_node]  # it has its own nodes

IDS = {"vl-E_c1-0", "vl-L_c1-0", "vl-E_c2-0", "vl-L_c2-0"}
FIRST, SECOND = "E@c1>L@c1", "E@c2>L@c2"
WITHIN = 60.0  # seconds until a change by an operator or a failure takes effect
AT_ONCE = 4


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    directory = tmp_path_factory.mktemp("cells")
    simulated = directory / "simulated.json"
    simulated.write_bytes(msgspec.json.encode({**SIMULATED, "time_scale": 0.2}))
    model = {
        "family": FAMILY,
        "checkpoint": str(simulated),
        "cells": 2,
        "options": {
            "E": {"components": ["vision"], "service": "encoder"},
            "L": {"components": ["thinker"], "service": "llm"},
        },
        "paths": [{"options": ["E", "L"]}],
    }
    settings = {"OMNIBUS_EXECUTOR_ENGINE": "omnibus_engines:sim", "OMNIBUS_GATEWAY_QUARANTINE": "0"}
    with running(directory, {MODEL: model}, "--nodes", "2", **settings) as system:
        yield system


class Answers:
    """Results of requests: ``statuses`` by number, last ``paths``, and all ``ids``."""

    def __init__(self) -> None:
        self.statuses: Counter[int | str] = Counter()
        self.paths: list[str] = []
        self.ids: list[str] = []


@contextlib.asynccontextmanager
async def requests(system: System) -> AsyncIterator[Answers]:
    """Requests with an image inside the block, some at all times."""
    found, stop = Answers(), asyncio.Event()
    body = {"model": MODEL, "messages": [{"role": "user", "content": [PICTURE, {"type": "text", "text": "what?"}]}]}

    async def ask(http: httpx.AsyncClient) -> None:
        while not stop.is_set():
            answer = await http.post("/v1/chat/completions", json=body)
            found.statuses[answer.status_code if answer.status_code == 200 else answer.text] += 1
            found.paths.append(answer.headers.get("x-omnibus-path", ""))
            found.ids.append(answer.headers.get("x-request-id", ""))

    async with httpx.AsyncClient(base_url=system.url, timeout=60) as http, asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(ask(http))
        try:
            yield found
        finally:
            stop.set()


async def until_paths(found: Answers, are: Callable[[set[str]], bool], count: int = 20) -> None:
    """Wait until the last ``count`` answers used such paths."""
    async with asyncio.timeout(WITHIN):
        found.paths.clear()
        while len(found.paths) < count or not are(set(found.paths[-count:])):
            await asyncio.sleep(0.05)


async def test_requests_stay_in_a_cell_that_lies_on_one_node(cells: System):
    assert cells.executors == IDS
    async with requests(cells) as found:
        await until_paths(found, lambda paths: paths == {FIRST, SECOND})
    routes = [graph.decode_invocation((await cells.record(id))[0]).route for id in found.ids[:10]]
    places = await node_by_executor(cells)

    assert found.statuses.keys() == {200}
    assert {tuple(sorted(route)) for route in routes} <= {("vl-E_c1-0", "vl-L_c1-0"), ("vl-E_c2-0", "vl-L_c2-0")}
    assert places["vl-E_c1-0"] == places["vl-L_c1-0"] != places["vl-E_c2-0"] == places["vl-L_c2-0"]


async def node_by_executor(system: System) -> dict[str, tuple[str, str]]:
    """Cell and node of each executor, from its heartbeat."""
    found: dict[str, tuple[str, str]] = {}
    async with asyncio.timeout(WITHIN), system.bus() as bus, contextlib.aclosing(system.statuses(bus)) as heard:
        async for status in heard:
            found[status.id] = (status.cell, status.node)
            if found.keys() == IDS:
                break
    return found


@pytest.mark.parametrize("lost", ["vl-E_c1-0", "vl-L_c1-0"])
async def test_the_other_cell_takes_over_and_no_request_fails(cells: System, lost: str):
    pids = await cells.whole()
    async with requests(cells) as found:
        await until_paths(found, lambda paths: paths == {FIRST, SECOND})
        os.kill(pids[lost], signal.SIGSTOP)  # killed it would be back before twenty answers have come
        await until_paths(found, lambda paths: paths == {SECOND})
        os.kill(pids[lost], signal.SIGKILL)
        await until_paths(found, lambda paths: paths == {FIRST, SECOND})

    assert found.statuses.keys() == {200}
    assert "cell c1 of vl has lost a stage: its requests go to c2 and others" in cells.log


async def give(system: System, cell: str, part: str) -> tuple[int, str]:
    """Set a cell's part of its share; return exit code and output of the command."""
    process = system.command("plan", "cells", MODEL, cell, part)
    output, _ = await asyncio.to_thread(process.communicate, timeout=WITHIN)
    return process.returncode, output


async def test_a_cell_is_drained_and_given_its_share_again(cells: System):
    async with requests(cells) as found:
        await until_paths(found, lambda paths: paths == {FIRST, SECOND})
        code, shown = await give(cells, "c2", "0")
        await until_paths(found, lambda paths: paths == {FIRST}, 40)
        _, back = await give(cells, "c2", "1")
        await until_paths(found, lambda paths: paths == {FIRST, SECOND})

    assert code == 0, shown
    assert [line.split() for line in shown.splitlines()[1:]] == [
        [MODEL, "c1", "1xE", "1xL", "50.0%", "1"],
        [MODEL, "c2", "1xE", "1xL", "50.0%", "0"],
    ]
    assert back.splitlines()[2].split()[-1] == "1"
    assert found.statuses.keys() == {200}
