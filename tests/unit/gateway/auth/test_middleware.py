"""A gateway with API keys: access, order and isolation of tenants."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from omnibus import api_key
from omnibus.api_key import KeyRecord
from omnibus.settings import GatewaySettings, StoreSettings
from omnibus.store import Store
from omnibus.task import record
from omnibus_gateway.auth.tenancy import Tenancy
from omnibus_gateway.openai.parse import parse_chat
from omnibus_gateway.tenancy.fair_queue import FairQueue
from omnibus_gateway.tenancy.tenant import Tenant, acting_as
from tests.unit.gateway.house import (
    TEXT,
    VL,
    ToyGateway,
    build_chat_body,
    read_chat_answer,
    read_error_body,
    start_toy_gateway,
    write_chat_words,
)
from tests.unit.sidecar.node import wait_until

ADMIN = "open-sesame"
PATIENCE = 20.0


class Gated:
    """A house with key checks: ``a`` and ``b`` are tenants with a key each."""

    def __init__(self, home: ToyGateway, file: Path, **changes: Any) -> None:
        self.home = home
        self.file = file
        settings = GatewaySettings(keys_file=str(file), admin_token=ADMIN, **changes)
        home.settings = home.runs.settings = settings
        self.tenancy = Tenancy(settings, Store(StoreSettings(url="redis://127.0.0.1:1", timeout=0.2)), home.router)
        home.runs.admission = self.tenancy.admission
        transport = httpx.ASGITransport(app=self.tenancy.guard_application(home.app))
        self.http = httpx.AsyncClient(transport=transport, base_url="http://gateway")

    async def ask(self, tenant: str, content: Any = "hello", model: str = TEXT, **more: Any) -> httpx.Response:
        return await self.get("POST", "/v1/chat/completions", tenant, json=build_chat_body(model, content, **more))

    async def get(self, method: str, path: str, key: str = "", **more: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return await self.http.request(method, path, headers=headers, **more)

    def fair(self, model: str = TEXT) -> FairQueue:
        """Return the queue of ``model``, empty before its first request."""
        assert self.tenancy.admission is not None
        fair_queues = [queue.fair for queue in self.tenancy.admission.queues() if queue.models == (model,)]
        return fair_queues[0] if fair_queues else FairQueue(0)


def write_keys_file(path: Path, **tenants: dict[str, Any]) -> None:
    """Write a file of keys: each tenant's key is its name."""
    records = [KeyRecord(api_key.hash_key(name), name, **limits) for name, limits in tenants.items()]
    path.write_bytes(msgspec.json.encode({"keys": records}))


@asynccontextmanager
async def start_gated_gateway(directory: Path, a: dict[str, Any] | None = None, **changes: Any) -> AsyncIterator[Gated]:
    file = directory / "keys.json"
    write_keys_file(file, a=a or {}, b={})
    async with start_toy_gateway(directory) as home:
        gateway = Gated(home, file, **changes)
        await gateway.tenancy.startup(home.bus, lambda: None)
        try:
            yield gateway
        finally:
            await gateway.http.aclose()
            await gateway.tenancy.shutdown()


@pytest.fixture
async def gate(tmp_path: Path) -> AsyncIterator[Gated]:
    async with start_gated_gateway(tmp_path) as gateway:
        await gateway.home.all_of(TEXT)
        yield gateway


# Access


@pytest.mark.parametrize("key", ["", "wrong", "A", "a b"])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/chat/completions"),
        ("GET", "/v1/models"),
        ("POST", "/v1/videos"),
        ("POST", "/v1/apps/echo/invoke"),
        ("GET", "/v1/anything"),
        ("GET", "/metrics"),
        ("GET", "/openapi.json"),
    ],
)
async def test_without_a_key_nobody_comes_in(gate: Gated, key: str, method: str, path: str):
    rejection = await gate.get(method, path, key)

    assert (rejection.status_code, read_error_body(rejection)["code"]) == (401, "unauthorized")
    assert rejection.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("path", ["/health", "/healthz", "/livez", "/ping", "/readyz", "/version"])
async def test_probes_need_no_key(gate: Gated, path: str):
    assert (await gate.get("GET", path)).status_code == 200


@pytest.mark.parametrize("key", ["", "a", "wrong"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
async def test_metrics_name_tenants_so_they_are_the_operators_alone(gate: Gated, key: str, method: str):
    rejection = await gate.get(method, "/metrics", key)

    assert rejection.status_code == 401
    assert b"omnibus_" not in rejection.content
    assert "omnibus_requests_total" in (await gate.get("GET", "/metrics", ADMIN)).text


async def test_a_key_comes_in_and_so_does_the_operator(gate: Gated):
    assert read_chat_answer(await gate.ask("a")).startswith("You said hello")
    assert (await gate.get("GET", "/v1/models", ADMIN)).status_code == 200


async def test_a_key_is_sent_as_a_bearers(gate: Gated):
    for header in ("a", "Basic a", "Bearer", "bearer  "):
        rejection = await gate.http.get("/v1/models", headers={"authorization": header})
        assert rejection.status_code == 401
    assert (await gate.http.get("/v1/models", headers={"authorization": "bEaReR a"})).status_code == 200


async def test_a_file_that_changes_is_read_again(gate: Gated):
    write_keys_file(gate.file, a={}, newcomer={"rate": 5.0})
    gate.tenancy._book.reload_file(gate.file)

    assert (await gate.get("GET", "/v1/models", "newcomer")).status_code == 200
    assert (await gate.get("GET", "/v1/models", "b")).status_code == 401


@pytest.mark.parametrize("wrong", ["{", '{"keys": [{"sha256": "ab", "tenant": "a"}]}', '{"keys": 1}', "[]"])
async def test_a_file_that_cannot_be_read_leaves_the_keys_in_force(gate: Gated, wrong: str):
    gate.file.write_text(wrong)
    gate.tenancy._book.reload_file(gate.file)

    assert (await gate.get("GET", "/v1/models", "a")).status_code == 200


# Limits of a key


async def test_a_rate_is_refused_before_the_body_is_read(tmp_path: Path):
    async with start_gated_gateway(tmp_path, a={"rate": 0.001, "burst": 1.0}) as gate:
        assert (await gate.get("GET", "/v1/models", "a")).status_code == 200

        rejection = await gate.ask("a")

        assert (rejection.status_code, read_error_body(rejection)["code"]) == (429, "overloaded")
        assert int(rejection.headers["retry-after"]) >= 1
        assert (await gate.get("GET", "/v1/models", "b")).status_code == 200


async def test_gpu_seconds_that_are_used_up_are_refused(tmp_path: Path):
    async with start_gated_gateway(tmp_path, a={"gpu_seconds": 1e-9}) as gate:
        await gate.home.all_of(TEXT)
        assert (await gate.ask("a")).status_code == 200

        rejection = await gate.ask("a")

        assert (rejection.status_code, read_error_body(rejection)["type"]) == (429, "rate_limit_error")
        assert "GPU-seconds" in read_error_body(rejection)["message"]
        assert (await gate.ask("b")).status_code == 200


# Turns


class HeldAdmissionThinker:
    """A thinker that answers one request at each release."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.go = asyncio.Semaphore(0)

    async def __call__(self, job: Any) -> None:
        messages = await job.value("messages")
        self.begun.append(messages[-1]["content"])
        await self.go.acquire()
        await write_chat_words(job)


async def add_held_executor(gate: Gated) -> HeldAdmissionThinker:
    held_thinker = HeldAdmissionThinker()
    gate.home.serve(TEXT)
    await gate.home.executor(TEXT, "L", "thinker", thinker=held_thinker)
    return held_thinker


async def count_of(read_count: Callable[[], int], target: int) -> None:
    await wait_until(lambda: read_count() == target)


async def test_the_light_tenant_does_not_wait_behind_the_heavy_ones_queue(tmp_path: Path):
    async with start_gated_gateway(tmp_path, admit=1) as gate, asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        held_thinker = await add_held_executor(gate)
        heavy = [group.create_task(gate.ask("a", f"heavy {number}")) for number in range(5)]
        await count_of(lambda: gate.fair().waiting, 4)
        light = group.create_task(gate.ask("b", "light"))
        await count_of(lambda: len(held_thinker.begun), 2)  # the place reserved for tenants without running work
        assert gate.fair().waiting == 4

        for _ in range(6):
            held_thinker.go.release()
        answers = [await each for each in (*heavy, light)]

    assert [each.status_code for each in answers] == [200] * 6
    assert held_thinker.begun.index("light") == 1
    assert [each for each in held_thinker.begun if each != "light"] == [f"heavy {number}" for number in range(5)]
    assert gate.fair().working == 0


async def test_a_full_queue_is_429_with_retry_after_and_others_come_in(tmp_path: Path):
    async with start_gated_gateway(tmp_path, admit=1, admit_queue=2) as gate, asyncio.timeout(PATIENCE):
        held_thinker = await add_held_executor(gate)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(gate.ask("a")) for _ in range(3)]
            await count_of(lambda: gate.fair().waiting, 2)

            rejection = await gate.ask("a")
            other = group.create_task(gate.ask("b"))
            await count_of(lambda: len(held_thinker.begun), 2)
            for _ in range(4):
                held_thinker.go.release()

        assert (rejection.status_code, read_error_body(rejection)["code"]) == (429, "overloaded")
        assert int(rejection.headers["retry-after"]) >= 1
        assert {each.result().status_code for each in (*tasks, other)} == {200}


async def test_a_turn_that_does_not_come_in_time_is_429(tmp_path: Path):
    async with start_gated_gateway(tmp_path, admit=1, admit_wait=0.05) as gate, asyncio.timeout(PATIENCE):
        held_thinker = await add_held_executor(gate)
        async with asyncio.TaskGroup() as group:
            first = group.create_task(gate.ask("a"))
            await count_of(lambda: len(held_thinker.begun), 1)

            rejection = await gate.ask("a")
            held_thinker.go.release()

        assert (rejection.status_code, first.result().status_code) == (429, 200)
        assert "turn" in read_error_body(rejection)["message"]
        assert (gate.fair().waiting, gate.fair().working) == (0, 0)


async def test_a_client_that_leaves_while_it_waits_leaves_the_queue(tmp_path: Path):
    async with start_gated_gateway(tmp_path, admit=1) as gate, asyncio.timeout(PATIENCE):
        held_thinker = await add_held_executor(gate)
        async with asyncio.TaskGroup() as group:
            first = group.create_task(gate.ask("a"))
            await count_of(lambda: len(held_thinker.begun), 1)
            second = group.create_task(gate.ask("a"))
            await count_of(lambda: gate.fair().waiting, 1)

            second.cancel()
            await count_of(lambda: gate.fair().waiting, 0)
            held_thinker.go.release()

        assert first.result().status_code == 200
        assert gate.fair().working == 0
        await gate.home.emptied()


async def test_a_request_that_fails_gives_its_turn_back(tmp_path: Path):
    async def raise_defect(_: Any) -> None:
        raise RuntimeError("defect")

    async with start_gated_gateway(tmp_path, admit=1) as gate, asyncio.timeout(PATIENCE):
        gate.home.serve(TEXT)
        await gate.home.executor(TEXT, "L", "thinker", thinker=raise_defect)

        assert [(await gate.ask("a")).status_code for _ in range(3)] == [502] * 3

        assert gate.fair().working == 0


async def test_without_executors_a_request_fails_at_once_and_does_not_wait(gate: Gated):
    gate.home.serve(VL)

    rejection = await gate.ask("a", model=VL)

    assert (rejection.status_code, read_error_body(rejection)["code"]) == (503, "stage_unavailable")
    assert gate.fair(VL).working == 0


async def test_what_an_answer_took_corrects_what_it_was_expected_to_take(gate: Gated):
    assert gate.tenancy.admission is not None
    before = gate.fair().tenant_mark("a")

    read_chat_answer(await gate.ask("a", max_tokens=5000))  # it takes a dozen
    await wait_until(lambda: gate.fair().working == 0)

    assert 0 < gate.fair().tenant_mark("a") - before < 0.1  # 5000 tokens without measurements count as 5 seconds


async def test_segments_that_are_sent_at_once_have_one_turn(tmp_path: Path):
    async with start_gated_gateway(tmp_path, admit=1) as gate, asyncio.timeout(PATIENCE):
        await gate.home.all_of(TEXT)
        with acting_as(Tenant("a")):
            run = gate.home.chat.open_request(TEXT)
        request = parse_chat(json.dumps(build_chat_body(TEXT, "hello")).encode())
        prepared_chat = await gate.home.chat.prepare_chat(request, gate.home.router.get_model(TEXT))
        segment = record(gate.home.chat.get_task(TEXT).invoke, prepared_chat.input, run.choice_point)

        await asyncio.gather(*(run.wait_admission(segment, step) for step in range(3)))
        assert (gate.fair().working, gate.fair().waiting) == (1, 0)
        run.end("failed")

        assert (gate.fair().working, gate.fair().waiting) == (0, 0)


# Logs


async def test_keys_are_in_no_log_and_no_record(gate: Gated, caplog: pytest.LogCaptureFixture):
    caplog.set_level(0)
    write_keys_file(gate.file, **{"tenant-x": {}})
    gate.tenancy._book.reload_file(gate.file)
    response = await gate.ask("tenant-x")
    invocation, _ = await gate.home.records.find(response.headers["x-request-id"])

    assert not any("Bearer" in text for text in caplog.messages)
    assert "tenant-x" not in json.dumps(msgspec.to_builtins(invocation))
