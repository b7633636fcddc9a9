"""Tenant metrics for operators: rejections by reason, waiting and running requests, waiting times, and GPU-seconds."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnibus.bus.messages import Chunk
from omnibus.graph import GraphNode
from omnibus.metrics import REGISTRY, TENANTS
from omnibus.metrics.tenants import MAX_TENANTS
from omnibus.settings import GatewaySettings
from omnibus_gateway.dispatch.streams import ResultStream
from omnibus_gateway.routing.assignment import Assignment
from omnibus_gateway.tenancy import fair_queue as metrics
from omnibus_gateway.tenancy.admission import Admission, AdmissionGrant, PlaceRequest
from omnibus_gateway.tenancy.cost_model import RequestCost, RequestCostModel, actual_tokens
from omnibus_gateway.tenancy.rate_limits import RateLimits
from omnibus_gateway.tenancy.tenant import Tenant
from tests.unit.gateway.auth.test_middleware import ADMIN, PATIENCE, add_held_executor, count_of, start_gated_gateway
from tests.unit.gateway.house import TEXT, read_chat_answer
from tests.unit.gateway.request.test_load_report import Ear
from tests.unit.gateway.tenancy.test_rate_limits import RateClock
from tests.unit.gateway.test_several_models import make_router

#: A graph of one model, and one that two models run.
ONE = [GraphNode("spell", "", {}, "")]
BOTH = [
    GraphNode(task, "", {}, "", tuple((n, "out") for n in range(at))) for at, task in enumerate(("think-b", "spell"))
]


def read_value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"omnibus_{name}", labels) or 0.0


class Growth:
    """Increases of counters since creation; other tests count too."""

    def __init__(self) -> None:
        self._before = self._read_samples()

    def __call__(self, name: str) -> dict[tuple[str, ...], float]:
        """Return the nonzero increases by label values, in label name order."""
        now = self._read_samples().get(f"omnibus_{name}", {})
        before = self._before.get(f"omnibus_{name}", {})
        differences = {labels: count - before.get(labels, 0.0) for labels, count in now.items()}
        return {labels: count for labels, count in differences.items() if count}

    def _read_samples(self) -> dict[str, dict[tuple[str, ...], float]]:
        samples_by_name: dict[str, dict[tuple[str, ...], float]] = {}
        for family in REGISTRY.collect():
            for sample in family.samples:
                labels = tuple(value for _, value in sorted(sample.labels.items()))
                samples_by_name.setdefault(sample.name, {})[labels] = sample.value
        return samples_by_name


# Refusals


async def test_a_full_queue_and_a_turn_that_does_not_come_are_counted(tmp_path: Path):
    async with start_gated_gateway(tmp_path, admit=1, admit_queue=1, admit_wait=0.2) as gate, asyncio.timeout(PATIENCE):
        holding_executor = await add_held_executor(gate)
        growth = Growth()
        async with asyncio.TaskGroup() as group:
            first = group.create_task(gate.ask("a"))
            await count_of(lambda: len(holding_executor.begun), 1)
            late = group.create_task(gate.ask("a"))
            await count_of(lambda: gate.fair().waiting, 1)
            full = await gate.ask("a")
            assert (await late).status_code == full.status_code == 429
            holding_executor.go.release()

    assert first.result().status_code == 200
    assert growth("rejected_total") == {(TEXT, "queue"): 1, (TEXT, "turn"): 1}
    assert growth("tenant_refused_total") == {("queue", "a"): 1, ("turn", "a"): 1}


async def test_what_a_key_may_not_is_counted_before_the_model_is_known(tmp_path: Path):
    async with start_gated_gateway(tmp_path, a={"rate": 0.001, "burst": 1.0}) as gate:
        gate.home.serve(TEXT)
        growth = Growth()
        codes = [(await gate.ask("a", model="made-up")).status_code for _ in range(3)]

    assert codes == [404, 429, 429]
    assert growth("rejected_total") == {("", "rate"): 2}
    assert growth("tenant_refused_total") == {("rate", "a"): 2}


async def test_requests_at_a_time_are_counted(tmp_path: Path):
    async with start_gated_gateway(tmp_path, a={"concurrent": 1}) as gate, asyncio.timeout(PATIENCE):
        holding_executor = await add_held_executor(gate)
        growth = Growth()
        async with asyncio.TaskGroup() as group:
            first = group.create_task(gate.ask("a"))
            await count_of(lambda: len(holding_executor.begun), 1)
            assert (await gate.ask("a")).status_code == 429
            holding_executor.go.release()

    assert first.result().status_code == 200
    assert growth("rejected_total") == {("", "concurrent"): 1}
    assert growth("tenant_refused_total") == {("concurrent", "a"): 1}


async def test_gpu_seconds_that_are_used_up_are_counted_for_their_model(tmp_path: Path):
    async with start_gated_gateway(tmp_path, a={"gpu_seconds": 1e-9}) as gate:
        await gate.home.all_of(TEXT)
        growth = Growth()
        codes = [(await gate.ask("a")).status_code for _ in range(2)]

    assert codes == [200, 429]
    assert growth("rejected_total") == {(TEXT, "gpu_seconds"): 1}
    assert growth("tenant_refused_total") == {("gpu_seconds", "a"): 1}


async def test_the_planner_hears_of_what_had_no_turn_and_not_of_what_a_key_may_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("omnibus_gateway.request.load_report.LOAD_REPORT_SECONDS", 0.02)
    limits = {"gpu_seconds": 1e-9}
    async with (
        start_gated_gateway(tmp_path, limits, admit=1, admit_queue=1, admit_wait=0.2) as gate,
        asyncio.timeout(PATIENCE),
    ):
        ear, growth, holding_executor = (
            await Ear().start_listening(gate.home.bus),
            Growth(),
            await add_held_executor(gate),
        )
        async with asyncio.TaskGroup() as group:
            first, spare = (group.create_task(gate.ask(tenant)) for tenant in ("a", "b"))
            await count_of(lambda: len(holding_executor.begun), 2)
            late = group.create_task(gate.ask("b"))
            await count_of(lambda: gate.fair().waiting, 1)
            full, limited_response = await gate.ask("b"), await gate.ask("a")
            await late
            holding_executor.go.release()
            holding_executor.go.release()
        await ear.read_last_event()

    assert (first.result().status_code, spare.result().status_code, late.result().status_code) == (200, 200, 429)
    assert (full.status_code, limited_response.status_code) == (429, 429)
    load = ear.sum_reports(TEXT, "thinker")
    assert (load.came, load.done, load.refused) == (2, 2, 2)
    assert growth("rejected_total") == {(TEXT, "queue"): 1, (TEXT, "turn"): 1, (TEXT, "gpu_seconds"): 1}


# Waiting and running requests


async def test_who_waits_and_who_works_is_told_by_model(tmp_path: Path):
    async with start_gated_gateway(tmp_path, admit=1) as gate, asyncio.timeout(PATIENCE):
        holding_executor = await add_held_executor(gate)
        async with asyncio.TaskGroup() as group:
            requests = [group.create_task(gate.ask(tenant)) for tenant in ("a", "a", "b")]
            await count_of(lambda: len(holding_executor.begun), 2)  # b's request has the spare place
            gauges = (read_value("admission_waiting", model=TEXT), read_value("admission_working", model=TEXT))
            for _ in requests:
                holding_executor.go.release()

        assert gauges == (1, 2)
        assert (read_value("admission_waiting", model=TEXT), read_value("admission_working", model=TEXT)) == (0, 0)


def end_request(grant: AdmissionGrant, gpu_seconds: float) -> None:
    """End the request of ``grant``, which used ``gpu_seconds`` GPU-seconds."""
    grant.close()
    grant.settle(gpu_seconds)


class Hall:
    """An admission of ``room`` requests, on a test clock, with fake executors."""

    def __init__(self, room: int = 1) -> None:
        self.clock = RateClock()
        self.router = make_router()
        self.router.members.remove("s-other")  # so that there is one path
        limits = RateLimits(lambda: 1, self.clock)
        settings = GatewaySettings(admit_wait=60.0)
        self.admission = Admission(
            settings, self.router, RequestCostModel(self.router), limits, lambda: 8 // room, self.clock
        )
        metrics.watch_queues(self.admission.queues)

    def enter_tenant(self, tenant: str, nodes: list[GraphNode], patient: bool = False) -> Any:
        return self.enter_queue(tenant, self.router.assign(nodes), patient)

    def enter_queue(self, tenant: str, assignment: Assignment, patient: bool = False) -> Any:
        ones = (1.0,) * len(assignment.nodes)
        request = PlaceRequest(assignment, RequestCost(1.0, ones, ones), 60.0, patient)
        return self.admission.acquire_grant(Tenant(tenant), request)

    def waiting(self) -> int:
        return sum(queue.fair.waiting for queue in self.admission.queues())


async def test_the_seconds_until_a_turn_are_told():
    hall, growth = Hall(), Growth()
    first = await hall.enter_tenant("a", ONE)
    second = asyncio.create_task(hall.enter_tenant("b", ONE))
    await count_of(hall.waiting, 1)

    hall.clock.now += 3.0
    end_request(first, 1.0)
    end_request(await second, 1.0)

    assert growth("admission_wait_seconds_count") == {("s",): 2}
    assert growth("admission_wait_seconds_sum") == {("s",): pytest.approx(3.0)}


async def test_who_leaves_before_its_turn_has_waited_and_who_is_patient_is_not_told():
    hall, growth = Hall(), Growth()
    first = await hall.enter_tenant("a", ONE)
    leaves = asyncio.create_task(hall.enter_tenant("b", ONE))
    stays = asyncio.create_task(hall.enter_tenant("b", ONE, patient=True))
    await count_of(hall.waiting, 2)

    hall.clock.now += 5.0
    leaves.cancel()
    await asyncio.wait([leaves])
    hall.clock.now += 100.0
    end_request(first, 1.0)
    end_request(await stays, 1.0)

    assert growth("admission_wait_seconds_count") == {("s",): 2}
    assert growth("admission_wait_seconds_sum") == {("s",): pytest.approx(5.0)}


async def test_what_two_models_serve_together_counts_for_each_of_them():
    hall, growth = Hall(room=2), Growth()
    first = await hall.enter_tenant("a", BOTH)
    alone = await hall.enter_tenant("a", ONE)  # in a separate queue, at the same executor
    second = asyncio.create_task(hall.enter_tenant("a", BOTH))
    await count_of(hall.waiting, 1)
    gauges = {
        (name, model): read_value(f"admission_{name}", model=model) for name in ("waiting", "working") for model in "bs"
    }

    end_request(alone, 0.5)
    end_request(first, 1.0)
    end_request(await second, 2.0)

    assert gauges == {("waiting", "b"): 1, ("waiting", "s"): 1, ("working", "b"): 1, ("working", "s"): 2}
    assert growth("admission_wait_seconds_count") == {("b",): 2, ("s",): 3}
    assert growth("tenant_gpu_seconds_total") == {("a",): pytest.approx(3.5)}


async def test_queues_in_which_nobody_is_are_forgotten_when_there_are_many(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("omnibus_gateway.tenancy.admission._MAX_QUEUES", 3)
    hall = Hall()
    works = await hall.enter_tenant("a", ONE)
    waits = asyncio.create_task(hall.enter_tenant("b", ONE))
    await count_of(hall.waiting, 1)
    other = hall.router.assign(BOTH[:1])  # at another executor

    for number in range(9):
        end_request(await hall.enter_queue("a", other._replace(model=f"app-{number}")), 1.0)
        assert len(list(hall.admission.queues())) <= 3
        assert hall.waiting() == 1
    end_request(works, 1.0)
    end_request(await waits, 1.0)


# Usage of tenants


async def test_gpu_seconds_are_told_by_tenant_as_they_were_used(tmp_path: Path):
    async with start_gated_gateway(tmp_path) as gate:
        await gate.home.all_of(TEXT)
        growth = Growth()
        for tenant, words in (("a", 400), ("b", 10), (ADMIN, 10)):
            read_chat_answer(await gate.ask(tenant, "word " * words))
        await count_of(lambda: gate.fair().working, 0)
        gpu_seconds = growth("tenant_gpu_seconds_total")
        queue_counts = growth("admission_wait_seconds_count")

        assert set(gpu_seconds) == {("a",), ("b",), ("",)}
        assert gpu_seconds["a",] > gpu_seconds["b",] > 0
        assert gpu_seconds["",] == pytest.approx(gpu_seconds["b",])
        assert gpu_seconds["a",] == pytest.approx(gate.fair().tenant_mark("a"))
        assert queue_counts == {(TEXT,): 3}


async def test_what_was_refused_has_used_nothing(tmp_path: Path):
    async with start_gated_gateway(tmp_path, a={"gpu_seconds": 1e-9}) as gate:
        await gate.home.all_of(TEXT)
        await gate.ask("a")
        await count_of(lambda: gate.fair().working, 0)
        growth = Growth()

        assert (await gate.ask("a")).status_code == 429

    assert growth("tenant_gpu_seconds_total") == {}
    assert growth("admission_wait_seconds_count") == {}


@pytest.mark.parametrize("rate", [1e-320, 0.5, 0, -1, True, "loud"])
def test_what_an_engine_says_of_its_sound_makes_no_endless_cost(rate: Any):
    stream = ResultStream(0, "audio", lambda handle: np.zeros(480, np.float32))
    stream.feed_chunk(Chunk("i", 0, "audio", 0, 0, {"rate": rate}))
    stream.samples = 480

    assert actual_tokens(["vocoder"], [7.0], {(0, "audio"): stream}) in ([7.0], [50.0 * 480])


def test_tenants_beyond_many_are_told_together():
    TENANTS.used.clear()
    TENANTS.refused.clear()
    _clear_caches()
    try:
        for number in range(2 * MAX_TENANTS):
            metrics.count_gpu_seconds(f"tenant-{number}", 1.0)
            metrics.count_refused(f"tenant-{number}", "rate", "")

        names = {sample.labels["tenant"] for family in TENANTS.used.collect() for sample in family.samples}
        assert len(names) == MAX_TENANTS + 1
        assert read_value("tenant_gpu_seconds_total", tenant="other") == MAX_TENANTS
        assert read_value("tenant_refused_total", tenant="other", reason="rate") == MAX_TENANTS
        assert read_value("tenant_gpu_seconds_total", tenant="tenant-0") == 1
    finally:
        TENANTS.used.clear()
        TENANTS.refused.clear()
        _clear_caches()


def _clear_caches() -> None:
    for cached_function in (TENANTS.tenant_label, TENANTS.gpu_seconds, TENANTS.refusal_counter):
        cached_function.cache_clear()
