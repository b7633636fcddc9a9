"""Workers with a process: their limit, and workers that start on the first call."""

import asyncio
import re
import time
from pathlib import Path

import pytest

from omnibus.errors import DeadlineExceeded
from omnibus.metrics.collectors import REGISTRY
from omnibus_gateway.apps.worker_supervisor import WarmWorkers
from tests.unit.gateway.apps.estate import ECHO, LOUD, PATIENT, AppCluster, AppGateway, find_worker_pids
from tests.unit.gateway.apps.test_served_apps import SLOW
from tests.unit.gateway.house import VL, read_error_body
from tests.unit.sidecar.node import wait_until


class Worker:
    """A fake worker for tests of the pool."""

    def __init__(self, *, idle: bool = True) -> None:
        self.is_idle = idle
        self.cooled = 0

    def cool(self) -> None:
        self.cooled += 1


def test_the_idle_worker_that_was_called_least_recently_gives_up_its_place():
    pool = WarmWorkers(3)
    first, second, third, fourth, busy = Worker(), Worker(), Worker(), Worker(), Worker(idle=False)
    for worker in (busy, first, second):
        pool.add(worker)
    assert not pool.has_room
    pool.touch(first)

    pool.add(third)
    assert (second.cooled, first.cooled, busy.cooled, len(pool)) == (1, 0, 0, 3)
    pool.add(fourth)
    assert (first.cooled, busy.cooled, len(pool)) == (1, 0, 3)


def test_workers_over_the_limit_leave_when_they_are_idle():
    pool = WarmWorkers(1)
    first, second = Worker(idle=False), Worker(idle=False)
    pool.add(first)
    pool.add(second)
    assert len(pool) == 2

    pool.note_idle()
    assert len(pool) == 2
    second.is_idle = True
    pool.note_idle()

    assert (first.cooled, second.cooled, len(pool)) == (0, 1, 1)


async def test_who_is_called_waits_for_a_place_in_turn():
    pool = WarmWorkers(1)
    busy, second, third = Worker(idle=False), Worker(idle=False), Worker()
    pool.add(busy)
    waiting = [asyncio.ensure_future(pool.take_place(worker)) for worker in (second, third)]
    await asyncio.sleep(0)

    busy.is_idle = True
    pool.note_idle()
    await waiting[0]
    assert (busy.cooled, waiting[1].done()) == (1, False)
    pool.discard(second)
    await waiting[1]
    assert (second.cooled, len(pool)) == (0, 1)


async def test_a_place_of_who_left_is_the_next_ones():
    pool = WarmWorkers(1)
    busy, second, third = Worker(idle=False), Worker(), Worker()
    pool.add(busy)
    leaving, next_one = [asyncio.ensure_future(pool.take_place(worker)) for worker in (second, third)]
    await asyncio.sleep(0)

    pool.discard(busy)  # the first one is cancelled before it starts
    leaving.cancel()

    await next_one
    assert (leaving.cancelled(), len(pool)) == (True, 1)


@pytest.fixture
async def small_gateway(cluster: AppCluster) -> AppGateway:
    """A gateway with room for one worker, and two apps: ``quiet``, which is cold, and ``echo``."""
    gate = cluster.gateway(app_workers=1)
    for name in ("quiet", "echo"):
        cluster.write(name, ECHO, by=name)
        await gate.register(name)
    await wait_until(lambda: len(find_worker_pids()) == 1)
    return gate


def read_states(gate: AppGateway) -> dict[str, str]:
    views = {name: gate.apps.registry.worker_view(name) for name in gate.apps.registry.records}
    return {name: view.state for name, view in views.items() if view is not None}


async def test_a_call_starts_the_worker_of_an_app_that_has_none(small_gateway: AppGateway):
    before = REGISTRY.get_sample_value("omnibus_app_cold_starts_total") or 0.0
    assert read_states(small_gateway) == {"quiet": "cold", "echo": "ready"}
    assert (await small_gateway.ask("GET", "/v1/apps/quiet")).json()["worker"] == {"state": "cold", "version": 1}

    answers = await asyncio.gather(*(small_gateway.invoke("quiet", {"text": "hi"}) for _ in range(5)))

    assert {answer["by"] for answer in answers} == {"quiet"}
    assert read_states(small_gateway) == {"quiet": "ready", "echo": "cold"}
    await wait_until(lambda: len(find_worker_pids()) == 1)
    assert REGISTRY.get_sample_value("omnibus_app_cold_starts_total") == before + 1
    assert REGISTRY.get_sample_value("omnibus_app_workers") == 1


async def test_a_gateway_that_starts_is_ready_with_as_many_workers_as_it_may_have(
    cluster: AppCluster, small_gateway: AppGateway
):
    fresh = cluster.gateway(app_workers=1)
    await wait_until(lambda: not fresh.apps.registry.starting_apps)

    assert sorted(read_states(fresh).values()) == ["cold", "ready"]
    assert "apps" not in (await fresh.http.get("/readyz")).json()
    for name in ("quiet", "echo"):
        assert (await fresh.invoke(name, {"text": "hi"}))["by"] == name


async def test_a_worker_with_requests_keeps_its_process(cluster: AppCluster, small_gateway: AppGateway, tmp_path: Path):
    cluster.write("patient", PATIENT, by="patient")
    await small_gateway.register("patient")
    begin_path, go = tmp_path / "begun", tmp_path / "go"
    waiting = asyncio.ensure_future(small_gateway.invoke("patient", {"begun": str(begin_path), "go": str(go)}))
    await wait_until(begin_path.exists)

    with pytest.raises(DeadlineExceeded, match="echo did not answer within its deadline"):
        await small_gateway.apps.registry.warm_worker("echo", time.time() + 0.05)
    calling = asyncio.ensure_future(small_gateway.invoke("echo", {"text": "hi"}))
    await asyncio.sleep(0.05)
    assert (calling.done(), read_states(small_gateway)["patient"]) == (False, "ready")
    go.touch()

    assert await waiting == "patient"
    assert (await calling)["by"] == "echo"
    assert read_states(small_gateway) == {"quiet": "cold", "echo": "ready", "patient": "cold"}


async def test_a_cold_app_that_does_not_start_is_broken_until_it_is_updated(
    cluster: AppCluster, small_gateway: AppGateway
):
    cluster.write("quiet", "raise ValueError('not today')\n")

    response = await small_gateway.http.post("/v1/apps/quiet/invoke", json={"text": "hi"})

    details = read_error_body(response)
    assert (response.status_code, details["code"], details["stage"]) == (503, "stage_unavailable", "quiet")
    assert re.search("broken at this gateway: .*not today", details["message"])
    assert read_states(small_gateway)["quiet"] == "broken"
    cluster.write("quiet", ECHO, by="better")
    await small_gateway.update("quiet")
    assert (await small_gateway.invoke("quiet", {"text": "hi"}))["by"] == "better"


async def test_an_app_that_leaves_while_its_worker_starts(
    cluster: AppCluster, small_gateway: AppGateway, tmp_path: Path
):
    go = tmp_path / "go"
    cluster.write("quiet", SLOW, go=str(go))
    calling = asyncio.ensure_future(small_gateway.http.post("/v1/apps/quiet/invoke", json=1))
    await wait_until(lambda: read_states(small_gateway)["echo"] == "cold" and len(find_worker_pids()) == 1)

    await small_gateway.ask("DELETE", "/v1/apps/quiet")

    response = await calling
    assert (response.status_code, read_error_body(response)["code"]) == (404, "not_found")
    assert (await small_gateway.invoke("echo", {"text": "hi"}))["by"] == "echo"
    await wait_until(lambda: len(find_worker_pids()) == 1)


async def test_a_chat_starts_the_worker_of_its_model(cluster: AppCluster, small_gateway: AppGateway):
    await cluster.home.all_of(VL)
    cluster.write("loud", LOUD, model="loud")
    await small_gateway.register("loud")
    await small_gateway.invoke("echo", {"text": "hi"})
    assert read_states(small_gateway)["loud"] == "cold"

    chat = {"model": "loud", "messages": [{"role": "user", "content": "say so"}]}
    response = await small_gateway.http.post("/v1/chat/completions", json=chat)

    assert response.status_code == 200, response.text
    assert response.json()["choices"][0]["message"]["content"].isupper()
    assert read_states(small_gateway) == {"quiet": "cold", "echo": "cold", "loud": "ready"}
