"""Charges equal the work that executors reported for a request. It may have completed, failed or been cancelled."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from omnibus.errors import NotFound, Overloaded, StageFailed
from omnibus.executor.job_clock import current_clock
from omnibus_gateway.routing.draining import DrainRate, check_queue_time
from tests.unit.gateway.auth.test_middleware import PATIENCE, Gated, count_of, start_gated_gateway
from tests.unit.gateway.house import TEXT, write_chat_words
from tests.unit.gateway.tenancy.test_metrics import Growth

#: By the first word of a prompt.
SECONDS = {"short": 0.125, "long": 16.0}


def begin_computing(content: str) -> None:
    current_clock().seconds += SECONDS[content.split()[0]]


async def compute_and_answer(job: Any) -> None:
    begin_computing((await job.value("messages"))[-1]["content"])
    await write_chat_words(job)


async def compute_and_fail(job: Any) -> None:
    begin_computing((await job.value("messages"))[-1]["content"])
    raise StageFailed("defect")


async def start_executor(gate: Gated, thinker: Callable[[Any], Awaitable[None]]) -> None:
    gate.home.serve(TEXT)
    await gate.home.executor(TEXT, "L", "thinker", thinker=thinker)


async def recorded_seconds(gate: Gated, id: str) -> float:
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                _, end_record = await gate.home.records.find(id)
            except NotFound:
                end_record = None
            if end_record is not None and end_record.usage is not None:
                return float(end_record.usage.gpu_seconds)
            await asyncio.sleep(0.01)


async def test_what_others_send_does_not_change_what_a_request_is_charged(tmp_path: Path):
    async with start_gated_gateway(tmp_path) as gate:
        await start_executor(gate, compute_and_answer)
        growth = Growth()
        for _ in range(20):
            await gate.ask("a", "long", max_tokens=4000)

        response = await gate.ask("b", "short")

        await count_of(lambda: len(growth("tenant_gpu_seconds_total")), 2)
        assert growth("tenant_gpu_seconds_total")["b",] == pytest.approx(SECONDS["short"])
        assert await recorded_seconds(gate, response.headers["x-request-id"]) == SECONDS["short"]


async def test_what_others_send_does_not_change_what_a_request_is_expected_to_cost(tmp_path: Path):
    async with start_gated_gateway(tmp_path) as gate:
        await start_executor(gate, compute_and_answer)
        for _ in range(10):
            await gate.ask("b", "short")
        assert gate.tenancy.admission is not None
        ratios = gate.tenancy.admission.costs._ratios
        await count_of(lambda: len(ratios), 1)
        [(key, before)] = ratios.items()

        for _ in range(20):
            await gate.ask("a", "long", max_tokens=4000)

        assert (key[0], ratios[key]) == ("b", before)


async def test_a_failed_answer_is_charged_what_was_computed_for_it(tmp_path: Path):
    async with start_gated_gateway(tmp_path) as gate:
        await start_executor(gate, compute_and_fail)
        growth = Growth()

        response = await gate.ask("a", "short")

        assert response.status_code == 502
        await count_of(lambda: len(growth("tenant_gpu_seconds_total")), 1)
        assert growth("tenant_gpu_seconds_total") == {("a",): SECONDS["short"]}
        assert await recorded_seconds(gate, response.headers["x-request-id"]) == SECONDS["short"]


async def test_a_cancelled_answer_is_charged_what_was_computed_for_it_and_gives_its_place_back_at_once(tmp_path: Path):
    invocation_ids: list[str] = []

    async def hold_forever(job: Any) -> None:
        begin_computing((await job.value("messages"))[-1]["content"])
        invocation_ids.append(job.invocation)
        await asyncio.Event().wait()

    async with start_gated_gateway(tmp_path) as gate:
        await start_executor(gate, hold_forever)
        growth = Growth()
        asking = asyncio.create_task(gate.ask("a", "long"))
        await count_of(lambda: len(invocation_ids), 1)

        asking.cancel()

        await count_of(lambda: gate.fair().working, 0)
        await count_of(lambda: len(growth("tenant_gpu_seconds_total")), 1)
        assert growth("tenant_gpu_seconds_total") == {("a",): SECONDS["long"]}
        assert await recorded_seconds(gate, invocation_ids[0]) == SECONDS["long"]
        assert gate.fair().tenant_mark("a") == SECONDS["long"]


async def test_a_request_that_has_its_turn_is_not_refused_for_how_long_others_took(tmp_path: Path):
    async with start_gated_gateway(tmp_path) as gate:
        await start_executor(gate, compute_and_answer)
        [executor] = gate.home.router.members._members.values()
        now = time.monotonic()
        slow = DrainRate(lambda: now)
        for number in range(8):
            slow.add_invocation(str(number))
        for number in range(8):
            now += 25.0
            slow.finish_invocation(str(number), 1.0)
        slow.add_invocation("of another tenant")
        with pytest.raises(Overloaded):
            check_queue_time([slow], 30.0, 10.0)
        executor.drain = slow

        response = await gate.ask("b", "short")

        assert response.status_code == 200
