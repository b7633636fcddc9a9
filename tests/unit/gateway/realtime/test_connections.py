"""Handshakes, limits and ends of realtime connections, over real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets
from websockets.exceptions import ConnectionClosed, InvalidStatus

from omnibus.api_key import hash_key
from omnibus.settings import StoreSettings
from omnibus.store import Store
from omnibus_gateway.auth.access_rules import SameOriginMiddleware
from tests.unit.gateway.auth.test_middleware import Gated, write_keys_file
from tests.unit.gateway.house import OMNI, TEXT, ToyGateway, start_toy_gateway
from tests.unit.gateway.realtime_house import RealtimeCaller, connect_caller, open_realtime_call
from tests.unit.gateway.wires import PATIENCE, open_doorway
from tests.unit.sidecar.node import wait_until

#: Time limit for stopping all work of a revoked key.
STOP_SECONDS = 2.0


async def expect_rejection(url: str, **more: Any) -> tuple[int, dict[str, Any]]:
    """Return status and error of a rejected handshake."""
    with pytest.raises(InvalidStatus) as caught:
        async with websockets.connect(url, **more):
            pass
    response = caught.value.response
    return response.status_code, dict(json.loads(response.body)["error"])


async def read_close(caller: RealtimeCaller) -> tuple[int, list[str]]:
    """Return the gateway's close code, and the codes of errors before it."""
    codes: list[str] = []
    with pytest.raises(ConnectionClosed) as caught:
        while True:
            event = await caller.next()
            codes += [event["error"]["code"]] if event["type"] == "error" else []
    assert caught.value.rcvd is not None
    return caught.value.rcvd.code, codes


@pytest.mark.parametrize("subprotocols", [None, ["realtime"]])
async def test_an_unknown_model_is_reported_by_an_event(home: ToyGateway, subprotocols: Any):
    async with open_doorway(home) as door:
        url = f"ws://localhost:{door.port}/v1/realtime?model=nobody"
        async with websockets.connect(url, subprotocols=subprotocols) as socket:
            event = json.loads(await socket.recv())
            with pytest.raises(ConnectionClosed) as caught:
                await socket.recv()

    assert event["type"] == "error"
    assert event["event_id"].startswith("event_")
    assert (event["error"]["code"], event["error"]["param"]) == ("not_found", "model")
    assert "nobody" in event["error"]["message"]
    assert caught.value.rcvd is not None
    assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (1008, "unknown model")


async def test_a_handshake_is_refused_as_a_request_is(home: ToyGateway):
    async with open_doorway(home) as door:
        base = f"ws://localhost:{door.port}/v1/realtime"
        assert (await expect_rejection(base))[1]["param"] == "model"
        assert (await expect_rejection(f"{base}?model={OMNI}&intent=singing"))[1]["param"] == "intent"
        assert (await expect_rejection(f"{base}?model={OMNI}&colour=red"))[1]["param"] == "colour"
        assert (await expect_rejection(f"ws://localhost:{door.port}/v1/elsewhere"))[0] == 404
        async with httpx.AsyncClient() as http:
            assert (await http.get(base.replace("ws", "http", 1))).status_code == 426


async def test_a_page_of_somewhere_else_opens_no_session_where_no_keys_are_asked_for(home: ToyGateway):
    home.app = SameOriginMiddleware(home.app, home.settings)
    async with open_doorway(home, direct=False) as door:
        base = f"ws://localhost:{door.port}/v1/realtime?model={OMNI}"
        assert (await expect_rejection(base, additional_headers={"Origin": "http://evil.example"}))[0] == 403
        assert (await expect_rejection(base, additional_headers={"Sec-Fetch-Site": "cross-site"}))[0] == 403
        async with connect_caller(f"ws://localhost:{door.port}"):
            pass


@pytest.mark.parametrize(
    "head",
    [
        "POST /v1/realtime?model=toy.omni HTTP/1.1\r\nContent-Length: 0\r\n",
        "GET /v1/realtime?model=toy.omni HTTP/1.0\r\n",
        "GET /v1/realtime?model=toy.omni HTTP/1.1\r\nSec-WebSocket-Version: 13\r\n",
        "GET /v1/realtime?model=toy.omni HTTP/1.1\r\nX: " + "x" * 20_000 + "\r\n",
    ],
    ids=["post", "old", "no key", "long header"],
)
async def test_a_broken_handshake_is_answered_and_the_connection_closed(home: ToyGateway, head: str):
    async with open_doorway(home) as door:
        wire = await door.wire()
        await wire.send(f"{head}Host: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n".encode())
        answer = await wire.rest()

    assert 400 <= int(answer.split()[1]) < 500


async def test_a_connection_is_not_taken_for_a_slow_head_once_it_is_upgraded(tmp_path: Path):
    async with start_toy_gateway(tmp_path, head_seconds=0.2) as home:
        await home.all_of(OMNI)
        async with open_realtime_call(home) as caller:
            await asyncio.sleep(0.5)
            assert await caller.say("still here")


async def test_a_session_ends_when_nothing_is_said_or_it_lasted_long_enough(tmp_path: Path):
    async with start_toy_gateway(tmp_path, realtime_idle=0.3) as home:
        await home.all_of(OMNI)
        async with open_realtime_call(home) as caller:
            assert await read_close(caller) == (1000, ["session_idle_timeout"])
    async with start_toy_gateway(tmp_path, realtime_seconds=0.3) as home:
        await home.all_of(OMNI)
        async with open_realtime_call(home) as caller:
            assert await read_close(caller) == (1001, ["session_expired"])


async def test_no_more_sessions_are_opened_than_there_may_be(tmp_path: Path):
    async with start_toy_gateway(tmp_path, realtime_sessions=1) as home:
        await home.all_of(OMNI)
        async with open_doorway(home) as door:
            base = f"ws://localhost:{door.port}"
            async with connect_caller(base):
                status, error = await expect_rejection(f"{base}/v1/realtime?model={OMNI}")
            await wait_until(lambda: home.table.sessions.count == 0)
            async with connect_caller(base):
                pass

    assert (status, error["code"]) == (429, "overloaded")


async def test_a_gateway_that_stops_finishes_responses_and_sends_clients_elsewhere(home: ToyGateway):
    async with open_realtime_call(home) as caller:
        await caller.say("hello there")
        await caller.send("response.create")
        await caller.until("response.created")
        home.table.sessions.begin_stop()
        code, _ = await read_close(caller)

    assert code == 1012
    assert caller.events[-1]["type"] == "response.done"
    assert caller.events[-1]["response"]["status"] == "completed"
    await home.table.sessions.wait_closed(PATIENCE)
    await home.emptied()


# Keys


@asynccontextmanager
async def start_gated_gateway(
    tmp_path: Path, valkey_url: str, **tenants: dict[str, Any]
) -> AsyncIterator[tuple[Gated, str]]:
    """Yield a gateway that requires keys, and its URL."""
    store = Store(StoreSettings(url=valkey_url, prefix="secrets"))
    write_keys_file(tmp_path / "keys.json", **tenants)
    async with start_toy_gateway(tmp_path, store, keys_file=str(tmp_path / "keys.json")) as home:
        await home.all_of(TEXT)
        gate = Gated(home, tmp_path / "keys.json")
        gate.tenancy._store = store
        await gate.tenancy.startup(home.bus, lambda: None)
        home.app = gate.tenancy.guard_application(home.app)
        async with open_doorway(home, direct=False) as door:
            yield gate, f"://localhost:{door.port}"
        await gate.tenancy.shutdown()
    await store.close()


def make_bearer_options(key: str) -> dict[str, Any]:
    return {"additional_headers": {"Authorization": f"Bearer {key}"}}


async def test_a_session_needs_a_key_and_its_responses_count_against_it(tmp_path: Path, valkey_url: str):
    async with start_gated_gateway(tmp_path, valkey_url, a={"rate": 0.001, "burst": 2}) as (_, place):
        url = f"ws{place}/v1/realtime?model={TEXT}"
        assert (await expect_rejection(url))[0] == 401
        assert (await expect_rejection(url, **make_bearer_options("wrong")))[0] == 401
        async with connect_caller(f"ws{place}", TEXT, **make_bearer_options("a")) as caller:
            await caller.say("hello")
            events = await caller.respond()
            over = (await caller.respond())[-1]["response"]
        limits = next(each for each in events if each["type"] == "rate_limits.updated")["rate_limits"]

    assert events[-1]["response"]["status"] == "completed"
    assert (limits[0]["name"], limits[0]["limit"]) == ("requests", 2)
    assert over["status"] == "failed"
    assert over["status_details"]["error"]["code"] == "overloaded"


async def test_a_revoked_key_ends_its_sessions(tmp_path: Path, valkey_url: str):
    async with (
        start_gated_gateway(tmp_path, valkey_url, a={}, b={}) as (gate, place),
        connect_caller(f"ws{place}", TEXT, **make_bearer_options("a")) as key_session,
        websockets.connect(f"ws{place}/v1/responses", **make_bearer_options("a")) as responses,
        connect_caller(f"ws{place}", TEXT, **make_bearer_options("b")) as other,
    ):
        write_keys_file(tmp_path / "keys.json", b={})  # the gateway rereads the file

        async with asyncio.timeout(STOP_SECONDS + 0.5):  # half a second for a machine that is busy
            last_event, error = (await key_session.until("error"))[-1], json.loads(await responses.recv())
            await key_session.socket.wait_closed()
            await responses.wait_closed()
        await other.say("hello")
        answer = (await other.respond())[-1]["response"]

    assert last_event["error"]["code"] == "key_revoked"
    assert error["error"]["code"] == "key_revoked"
    assert (key_session.socket.close_code, responses.close_code) == (1008, 1008)
    assert answer["status"] == "completed"
    assert gate.tenancy._book.records.keys() == {hash_key("b")}


async def test_a_client_secret_opens_the_session_that_it_was_made_for(tmp_path: Path, valkey_url: str):
    async with start_gated_gateway(tmp_path, valkey_url, a={}, b={}) as (gate, place), httpx.AsyncClient() as http:
        url = f"http{place}/v1/realtime/client_secrets"
        request = {"session": {"type": "realtime", "model": TEXT, "instructions": "Be short."}}
        assert (await http.post(url, json=request)).status_code == 401
        headers = {"authorization": "Bearer a"}
        wrong = await http.post(url, json={"session": {"type": "realtime", "colour": "red"}}, headers=headers)
        client_secret = (await http.post(url, json=request, headers=headers)).json()
        secret = client_secret["value"]
        protocols = ["realtime", f"openai-insecure-api-key.{secret}"]
        async with connect_caller(f"ws{place}", query="", subprotocols=protocols, model=TEXT) as caller:
            session, protocol = caller.events[0]["session"], caller.socket.subprotocol
        not_a_key = await http.get(f"http{place}/v1/models", headers={"authorization": f"Bearer {secret}"})
        write_keys_file(tmp_path / "keys.json", b={})
        gate.tenancy._book.reload_file(tmp_path / "keys.json")
        revoked_status, _ = await expect_rejection(f"ws{place}/v1/realtime?model={TEXT}", **make_bearer_options(secret))
        unknown, _ = await expect_rejection(f"ws{place}/v1/realtime?model={TEXT}", **make_bearer_options("ek_unknown"))

    assert wrong.json()["error"]["param"] == "session.colour"
    assert secret.startswith("ek_")
    assert client_secret["session"]["instructions"] == session["instructions"] == "Be short."
    assert protocol == "realtime"
    assert (not_a_key.status_code, revoked_status, unknown) == (401, 401, 401)
