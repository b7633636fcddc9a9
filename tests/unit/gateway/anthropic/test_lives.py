"""Life of a message's request: counts, keys, disconnects, records and replays are those of chats."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from omnibus.settings import StoreSettings
from omnibus.store import Store
from omnibus_gateway.application import Frontend
from omnibus_gateway.auth.tenancy import Tenancy
from tests.unit.gateway.anthropic.house import (
    PATH,
    build_message_body,
    post_message,
    read_message,
    read_message_error,
    read_message_events,
)
from tests.unit.gateway.auth.test_middleware import ADMIN, write_keys_file
from tests.unit.gateway.house import TEXT, VL, ToyGateway, start_toy_gateway
from tests.unit.gateway.http.test_exchange import ExchangeClient, ExchangeSpeaker, wait_statuses
from tests.unit.sidecar.node import wait_until

COUNT = f"{PATH}/count_tokens"


def count_body(**more: Any) -> dict[str, Any]:
    return {name: value for name, value in build_message_body("one two", **more).items() if name != "max_tokens"}


async def test_tokens_are_counted_and_no_answer_is_made(home: ToyGateway):
    response = await home.http.post(COUNT, json=count_body(system="Be kind.", thinking={"type": "adaptive"}))

    assert response.json() == {"input_tokens": 7}
    assert response.headers["request-id"]
    await home.emptied()


@pytest.mark.parametrize(
    ("more", "param"), [({"stream": True}, "stream"), ({"max_tokens": 3}, "max_tokens"), ({"model": ""}, "model")]
)
async def test_a_count_has_only_the_fields_of_a_prompt(home: ToyGateway, more: dict[str, Any], param: str):
    response = await home.http.post(COUNT, json=count_body() | more)

    assert response.status_code == 400
    assert read_message_error(response)["message"].startswith(f"{param}: ")


async def test_the_record_is_that_of_a_chat(home: ToyGateway):
    response = await post_message(home, "hello there", stream=True)
    run = response.headers["request-id"]

    end = await home.ended(run)
    assert end.status == "done"
    assert end.answer is not None
    assert end.answer.text.startswith("You said hello there")
    start = read_message_events(response.text)[0]["message"]
    assert start["id"] == f"msg_{run}"


async def test_headers_of_prices_and_paths_work_as_for_chats(home: ToyGateway):
    priced = await home.http.post(PATH, json=build_message_body(), headers={"x-omnibus-usage": "true"})
    pinned = await home.http.post(PATH, json=build_message_body(), headers={"x-omnibus-path": "nowhere"})

    assert "omnibus" in read_message(priced)["usage"]
    assert pinned.status_code in (400, 404)
    assert read_message_error(pinned)


@pytest.fixture
def speaker() -> ExchangeSpeaker:
    return ExchangeSpeaker()


@pytest.fixture
async def slow_gateway(tmp_path: Path, speaker: ExchangeSpeaker) -> AsyncIterator[ToyGateway]:
    async with start_toy_gateway(tmp_path) as gateway:
        gateway.serve(VL)
        await gateway.executor(VL, "EL", "vision", "thinker", thinker=speaker)
        yield gateway


@pytest.mark.parametrize("calls_back", [False, True], ids=["watched", "called back"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_client_that_leaves_stops_everything(
    slow_gateway: ToyGateway, speaker: ExchangeSpeaker, stream: bool, calls_back: bool
):
    client = ExchangeClient(build_message_body(model=VL, stream=stream), calls_back)
    client.scope |= {"path": PATH, "raw_path": PATH.encode()}
    serving = asyncio.ensure_future(slow_gateway.app(client.scope, client.receive, client.send))
    await asyncio.wait_for(speaker.spoke.wait(), 10)

    client.leave()

    await asyncio.wait_for(serving, 10)
    await wait_until(lambda: speaker.stopped)
    assert await wait_statuses(slow_gateway) == ["cancelled"]
    await slow_gateway.emptied()


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a gateway whose only key is ``a``."""
    write_keys_file(tmp_path / "keys.json", a={"rate": 100})
    keys = {"keys_file": str(tmp_path / "keys.json"), "admin_token": ADMIN}
    async with start_toy_gateway(tmp_path, **keys) as gateway:
        await gateway.all_of(TEXT)
        nowhere = Store(StoreSettings(url="redis://127.0.0.1:1", timeout=0.2))
        tenancy = Tenancy(gateway.settings, nowhere, gateway.router)
        gateway.runs.admission = tenancy.admission
        await tenancy.startup(gateway.bus, lambda: None)
        frontend = Frontend(gateway.settings, gateway.table, guard=tenancy.guard_application)
        transport = httpx.ASGITransport(app=frontend.build_application())
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            yield client
        await tenancy.shutdown()


@pytest.mark.parametrize("headers", [{"x-api-key": "a"}, {"authorization": "Bearer a"}])
@pytest.mark.parametrize("path", [PATH, COUNT])
async def test_keys_are_accepted_in_both_headers(guarded: httpx.AsyncClient, headers: dict[str, str], path: str):
    body = build_message_body() if path == PATH else count_body()
    response = await guarded.post(path, json=body, headers={**headers, "anthropic-version": "2023-06-01"})

    assert response.status_code == 200, response.text
    assert "x-ratelimit-limit-requests" in response.headers


@pytest.mark.parametrize("headers", [{}, {"x-api-key": "b"}, {"authorization": "Bearer b", "x-api-key": "a"}])
async def test_other_keys_are_refused_in_the_same_format(guarded: httpx.AsyncClient, headers: dict[str, str]):
    response = await guarded.post(PATH, json=build_message_body(), headers=headers)

    assert response.status_code == 401
    assert read_message_error(response)["type"] == "authentication_error"


async def test_other_routes_take_keys_in_one_header_only(guarded: httpx.AsyncClient):
    response = await guarded.get("/v1/models", headers={"x-api-key": "a"})

    assert response.status_code == 401
    assert response.json()["error"]["code"] == "unauthorized"
