"""Failed requests as operators find them: on one gateway, over several, with keys, and without the store."""

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets

from omnibus.errors import BadInput, StoreUnavailable
from omnibus.settings import StoreSettings
from omnibus.store import Store
from omnibus.store.history import MAX_FAILURES
from omnibus_gateway.console.failures import FailureFilters, find_failures
from omnibus_gateway.console.recorder import HistoryRecorder
from omnibus_gateway.http.failures import MAX_KEPT, Failure, FailureLog, find_named_model
from omnibus_gateway.routing.executors import ExecutorTable
from tests.unit.gateway.auth.keyed import ADMIN, keyed_gateways
from tests.unit.gateway.house import OMNI, TEXT, VL, LazyFrontend, ToyGateway, make_image_part, start_toy_gateway
from tests.unit.gateway.realtime.test_connections import expect_rejection
from tests.unit.gateway.realtime_house import connect_caller
from tests.unit.gateway.wires import open_doorway

CHAT = "/v1/chat/completions"
SECRET = "a prompt that no operator reads here"


@pytest.fixture
async def store(valkey_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    failure_store = Store(StoreSettings(url=valkey_url, prefix=f"failures-{request.node.name}-{time.time_ns()}"))
    yield failure_store
    await failure_store.close()


def add_failure(log: FailureLog, id: str, message: str = "this input crashed an engine") -> None:
    log.add_failure("POST", CHAT, id, Failure(BadInput(message).to_problem(), BadInput.status, TEXT))


async def list_failures(home: ToyGateway, query: str = "") -> list[dict[str, Any]]:
    response = await home.http.get(f"/v1/console/failures?{query}")
    assert response.status_code == 200, response.text
    return list(response.json()["data"])


@pytest.mark.parametrize(
    ("method", "path", "content", "model", "status", "code"),
    [
        ("POST", CHAT, b'{"model": "toy.text", "messages": [', "toy.text", 400, "bad_request"),
        ("POST", CHAT, b'{"model": "nobody", "messages": [{"role": "user", "content": "x"}]}', "nobody", 404, "not_found"),
        ("POST", "/v1/embeddings", b'{"model": "toy.text", "input": 7}', "toy.text", 400, "bad_request"),
        ("POST", "/v1/moderations", b'{"input": "x"}', "", 404, "not_found"),
        ("GET", CHAT, b"", "", 405, "rejected"),
        ("POST", "/v1/messages", b'{"model": "nobody", "max_tokens": 1, "messages": []}', "nobody", 400, "bad_request"),
    ],
    ids=["invalid JSON", "unknown model", "wrong type", "unknown route", "wrong method", "other dialect"],
)  # fmt: skip
async def test_a_request_that_never_ran_is_found_with_its_error(
    home: ToyGateway, method: str, path: str, content: bytes, model: str, status: int, code: str
):
    home.serve(TEXT)

    response = await home.http.request(method, path, content=content)

    (failure,) = await list_failures(home)
    assert response.status_code == failure["status"] == status
    assert failure["id"] == (response.headers.get("x-request-id") or response.headers["request-id"])
    assert (failure["method"], failure["path"], failure["model"], failure["code"]) == (method, path, model, code)
    assert failure["message"] in response.json()["error"]["message"]  # other dialects also name the parameter
    assert failure["ran"] is False


async def test_contents_of_requests_are_not_kept(home: ToyGateway):
    home.serve(VL)

    await home.ask(VL, content=[{"type": "text", "text": SECRET}, make_image_part(SECRET.encode())])
    await home.ask(VL, content=SECRET, temperature=9)

    for failure in await list_failures(home):
        assert SECRET not in str(failure)


async def test_an_error_in_a_stream_that_had_begun_is_found(home: ToyGateway):
    async def fail(job: Any) -> None:
        await job.value("messages")
        await job.send("text", {"text": "one ", "ids": [0]})
        raise BadInput("this input crashed an engine")

    home.serve(TEXT)
    await home.executor(TEXT, "L", "thinker", thinker=fail)

    response = await home.ask(TEXT, stream=True, n=1, logprobs=False, user="somebody")

    (failure,) = await list_failures(home)
    assert (response.status_code, failure["status"], failure["ran"]) == (200, 422, True)
    assert failure["id"] == response.headers["x-request-id"]
    assert failure["stage"] == "thinker"


async def test_a_rejected_websocket_is_found(home: ToyGateway):
    await home.all_of(OMNI)
    async with open_doorway(home) as door:
        url = f"ws://localhost:{door.port}/v1/realtime"
        _, error = await expect_rejection(f"{url}?model={OMNI}&intent=singing")
        async with connect_caller(f"ws://localhost:{door.port}"):
            pass

    (failure,) = await list_failures(home)
    assert (failure["status"], failure["path"], failure["id"]) == (400, "/v1/realtime", error["request_id"])
    assert failure["message"] == error["message"]


async def test_a_session_with_an_unknown_model_is_found(home: ToyGateway):
    await home.all_of(OMNI)
    async with (
        open_doorway(home) as door,
        websockets.connect(f"ws://localhost:{door.port}/v1/realtime?model=nobody") as client,
    ):
        event = json.loads(await client.recv())
        await client.wait_closed()

    (failure,) = await list_failures(home)
    assert (failure["status"], failure["model"], failure["id"]) == (404, "nobody", event["event_id"])


async def test_a_request_that_found_no_room_has_no_invocation(tmp_path: Path):
    async with start_toy_gateway(tmp_path, max_inflight=0) as home:
        await home.all_of(TEXT)

        response = await home.ask(TEXT)

        (failure,) = await list_failures(home)
    assert (response.status_code, failure["code"], failure["ran"]) == (429, "overloaded", False)


async def test_successful_requests_and_those_of_operators_are_not_kept(home: ToyGateway):
    home.serve(TEXT)
    await home.executor(TEXT, "L", "thinker")
    assert (await home.ask(TEXT)).status_code == 200
    assert (await home.http.get("/v1/console/executors/nobody")).status_code == 404
    assert (await home.http.get("/v1/invocations/nobody-0-0")).status_code == 404

    assert await list_failures(home) == []


async def test_failures_are_searched_and_counted_by_code(home: ToyGateway):
    home.serve(TEXT)
    for model in ("nobody", "nobody", "somebody"):
        await home.ask(model)
    await home.ask(TEXT, max_tokens=-5)

    whole = (await home.http.get("/v1/console/failures?limit=1")).json()

    assert (whole["codes"], len(whole["data"])) == ({"not_found": 3, "bad_request": 1}, 1)
    assert [each["model"] for each in await list_failures(home, "code=not_found&model=somebody")] == ["somebody"]
    assert [each["model"] for each in await list_failures(home, "q=SOMEBODY+404")] == ["somebody"]
    assert await list_failures(home, f"since={int(time.time()) + 60}") == []
    assert await list_failures(home, "until=1000") == []
    assert (await home.http.get("/v1/console/failures?limit=0")).status_code == 400


@pytest.mark.parametrize("name", ["search", ""])
async def test_the_key_of_a_failed_request_is_named(tmp_path: Path, valkey_url: str, name: str):
    async with keyed_gateways(tmp_path, valkey_url) as (gateway,):
        key = await gateway.create_key("search", note="nightly job", rate=1.0, burst=1.0)
        home, guard = gateway.home, gateway.tenancy.guard_application
        app = LazyFrontend(home.settings, home.table, guard=guard, console=home.console).build_application()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://gateway") as http:
            headers = {"authorization": f"Bearer {name or 'guessed'}"}
            for _ in range(2):
                await http.post(CHAT, json={"model": "nobody", "messages": []}, headers=headers)
            operator = {"authorization": f"Bearer {ADMIN}"}
            failures = (await http.get("/v1/console/failures", headers=operator)).json()["data"]

    found = {(each["status"], each["tenant"], each["key"], each["note"]) for each in failures}
    known = {(400, "search", key.id, "nightly job"), (429, "search", key.id, "nightly job")}
    assert found == (known if name else {(401, "", "", "")})
    assert all("search" not in each["message"] and key.sha256 not in str(each) for each in failures)


async def test_all_gateways_show_the_failures_of_each(tmp_path: Path, store: Store):
    log, other = FailureLog(), FailureLog()
    recorder = HistoryRecorder("one", store, ExecutorTable(), 3600.0, log)
    add_failure(log, "req-1")
    await recorder.record()
    add_failure(log, "req-2")

    here = await find_failures(store, log, FailureFilters())
    elsewhere = await find_failures(store, other, FailureFilters())

    assert [each["id"] for each in here["data"]] == ["req-2", "req-1"]
    assert [each["id"] for each in elsewhere["data"]] == ["req-1"]
    assert here["complete"]


async def test_without_the_store_a_gateway_shows_its_own_failures_and_writes_them_later(store: Store):
    away = Store(StoreSettings(url="redis://127.0.0.1:1", timeout=0.2))
    log = FailureLog()
    recorder = HistoryRecorder("one", away, ExecutorTable(), 3600.0, log)
    add_failure(log, "req-1")
    with pytest.raises(StoreUnavailable):
        await recorder.record()

    own = await find_failures(away, log, FailureFilters())
    recorder._store = store
    await recorder.record()
    await away.close()

    assert (len(own["data"]), own["complete"]) == (1, False)
    assert [each["id"] for each in (await find_failures(store, FailureLog(), FailureFilters()))["data"]] == ["req-1"]


async def test_what_is_kept_of_each_code_is_bounded(store: Store):
    log = FailureLog()
    recorder = HistoryRecorder("one", store, ExecutorTable(), 3600.0, log)
    for _ in range(2):
        for number in range(MAX_FAILURES):
            add_failure(log, f"req-{number}", "x" * 100_000)
        await recorder.record()

    assert len(list(log)) == MAX_KEPT
    assert len(await store.failures()) == MAX_FAILURES
    assert max(len(each) for each in await store.failures()) < 2000


@pytest.mark.parametrize(
    ("body", "model"),
    [
        (b'{"messages": [{"content": "\\"model\\": \\"x\\""}], "model" : "m"}', "m"),
        (b'{"input": "' + b"x" * 400_000 + b'", "model": "late"}', "late"),
        (b'--form\r\n"model": "m"', ""),
        (b"", ""),
        (b"[1, 2", ""),
    ],
    ids=["quoted", "late", "form", "empty", "list"],
)
def test_the_model_of_a_body_is_found_without_reading_all_of_it(body: bytes, model: str):
    assert find_named_model(body) == model
