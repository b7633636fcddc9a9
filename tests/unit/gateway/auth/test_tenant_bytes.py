"""Limits on a tenant's stored bytes and a gateway's memory."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from omnibus.errors import Overloaded
from omnibus.settings import GatewaySettings
from omnibus_gateway.realtime import config as secrets
from omnibus_gateway.tenancy.tenant import OpenSockets, Tenant, acting_as
from tests.unit.gateway.auth.keyed import KeyedGateway, keyed_gateways
from tests.unit.gateway.batches.test_batches import build_batch_lines
from tests.unit.gateway.house import TEXT, build_chat_body

#: Bytes of a tenant in these tests, and of what it sends at a time.
LIMIT, PIECE = 200_000, 30_000
BIG = "x" * PIECE

Attack = Callable[[KeyedGateway, int], Awaitable[httpx.Response]]


async def _create_conversation(gate: KeyedGateway, _: int) -> httpx.Response:
    items = [{"type": "message", "role": "user", "content": BIG}]
    return await gate.call("ann", "POST", "/v1/conversations", json={"items": items})


async def _create_response(gate: KeyedGateway, number: int) -> httpx.Response:
    """Request a response that follows, and so keeps, the previous one. The answer repeats the input."""
    return await gate.call("ann", "POST", "/v1/responses", json={"model": TEXT, "input": f"{number} {BIG}"})


async def _create_background_response(gate: KeyedGateway, number: int) -> httpx.Response:
    body = {"model": TEXT, "input": f"{number} {BIG}", "background": True}
    return await gate.call("ann", "POST", "/v1/responses", json=body)


async def _create_secret(gate: KeyedGateway, _: int) -> httpx.Response:
    body = {"session": {"type": "realtime", "instructions": BIG}}
    return await gate.call("ann", "POST", "/v1/realtime/client_secrets", json=body)


async def _create_batch(gate: KeyedGateway, number: int) -> httpx.Response:
    form = {"purpose": (None, "batch"), "file": ("b.jsonl", build_batch_lines("one"))}
    file = (await gate.call("ann", "POST", "/v1/files", files=form)).json()
    values = {f"k{index}": f"{number}".rjust(512, "x") for index in range(16)}
    body = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    return await gate.call("ann", "POST", "/v1/batches", json={**body, "metadata": values})


async def _create_stream(gate: KeyedGateway, number: int) -> httpx.Response:
    headers = {"authorization": "Bearer ann", "x-omnibus-continue": "true"}
    body = build_chat_body(TEXT, f"{number} {BIG}", stream=True, max_tokens=1)
    return await gate.http.post("/v1/chat/completions", json=body, headers=headers)


ATTACKS: dict[str, Attack] = {
    "conversations": _create_conversation,
    "responses": _create_response,
    "background": _create_background_response,
    "client secrets": _create_secret,
    "batches": _create_batch,
    "continued streams": _create_stream,
}


@pytest.mark.parametrize("name", ATTACKS)
async def test_no_route_stores_more_than_a_tenant_may(tmp_path: Path, valkey_url: str, name: str):
    async with keyed_gateways(
        tmp_path, valkey_url, tenant_bytes=LIMIT, tenant_share=1.0, continue_streams="requested"
    ) as [gate]:
        await gate.create_key("ann")
        before = await _read_memory(gate)

        codes = [(await ATTACKS[name](gate, number)).status_code for number in range(24)]
        growth = await _read_memory(gate) - before
        held_bytes = await _read_held_bytes(gate)

    assert held_bytes <= LIMIT, "what is counted stays within the limit"
    assert growth < 4 * LIMIT, "and so does the memory of the server, but for what it needs to keep it"
    assert set(codes) <= {200, 413, 429}
    if name in ("conversations", "client secrets"):  # the others make room, end, or continue without
        assert 413 in codes


async def _read_held_bytes(gate: KeyedGateway) -> int:
    value = await gate.store._redis.hget(gate.store._redis_key("held:ann:bytes"), "#bytes")
    return int(value or 0)


async def _read_memory(gate: KeyedGateway) -> int:
    return int((await gate.store._redis.info("memory"))["used_memory_dataset"])


async def test_a_history_is_rejected_before_it_is_read(tmp_path: Path, valkey_url: str):
    async with keyed_gateways(tmp_path, valkey_url, history_bytes=3 * PIECE) as [gate]:
        await gate.create_key("ann")
        conversation_id = (await _create_conversation(gate, 0)).json()["id"]
        path = f"/v1/conversations/{conversation_id}/items"
        items = {"items": [{"type": "message", "role": "user", "content": BIG}]}
        statuses = [(await gate.call("ann", "POST", path, json=items)).status_code for _ in range(3)]
        reads = _count_reads(gate)
        gate.home.responses.specs.history._most = PIECE  # as if a build before this one had written more
        body = {"model": TEXT, "input": "hi", "conversation": conversation_id}
        answers = [
            await gate.call("ann", "POST", "/v1/responses", json=body),
            await gate.call("ann", "POST", "/v1/responses/input_tokens", json=body),
        ]

    assert statuses == [200, 413, 413]
    assert answers[0].status_code == 413
    assert "OMNIBUS_GATEWAY_HISTORY_BYTES" in answers[0].json()["error"]["message"]
    assert answers[0].json()["error"]["param"] == "conversation"
    assert reads == [conversation_id]  # the second one's limit is unchanged


def _count_reads(gate: KeyedGateway) -> list[str]:
    read, reads = gate.store.conversation_items, list[str]()

    async def count_read(id: str, *more: object, **others: object) -> object:
        reads.append(id)
        return await read(id, *more, **others)  # type: ignore[arg-type]

    gate.store.conversation_items = count_read  # type: ignore[method-assign,assignment]
    return reads


async def test_a_chain_of_responses_is_bounded_as_well(tmp_path: Path, valkey_url: str):
    async with keyed_gateways(tmp_path, valkey_url, history_bytes=8 * PIECE) as [gate]:
        await gate.create_key("ann")
        previous, codes = None, list[int]()
        for number in range(6):
            body = {"model": TEXT, "input": f"{number} {BIG}", "max_output_tokens": 3, "previous_response_id": previous}
            answer = await gate.call("ann", "POST", "/v1/responses", json=body)
            codes.append(answer.status_code)
            previous = answer.json().get("id", previous)

    assert codes[:2] == [200, 200]
    assert codes[-1] == 413
    assert json.loads(answer.text)["error"]["param"] == "previous_response_id"


async def test_client_secrets_are_limited(tmp_path: Path, valkey_url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(secrets, "MAX_SECRETS", 2)
    async with keyed_gateways(tmp_path, valkey_url) as [gate]:
        for name in ("ann", "bob"):
            await gate.create_key(name)
        responses = [await gate.call("ann", "POST", "/v1/realtime/client_secrets", json={}) for _ in range(3)]
        other = await gate.call("bob", "POST", "/v1/realtime/client_secrets", json={})

    assert [each.status_code for each in responses] == [200, 200, 429]
    assert int(responses[2].headers["retry-after"]) >= 1
    assert other.status_code == 200


def test_open_sockets_leave_places_for_others():
    sockets = OpenSockets(GatewaySettings(realtime_sessions=8, tenant_share=0.5), "session", "sessions")
    key = object()

    def open_one(name: str) -> bool:
        with acting_as(Tenant(name, 1.0, key)):  # type: ignore[arg-type]
            admission = sockets.admit()
            try:
                admission.__enter__()
            except Overloaded:
                return False
            admissions.append(admission)
            return True

    admissions: list[object] = []
    assert [open_one("ann") for _ in range(5)] == [True] * 4 + [False]
    assert [open_one("bob") for _ in range(5)] == [True] * 4 + [False]
    assert [open_one("cid") for _ in range(3)] == [True, True, False]
