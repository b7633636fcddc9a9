"""Background work belongs to the key that requested it: its limits, its usage, and its revocation."""

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from omnibus.store import Store
from omnibus_gateway.batches.service import TURN_SECONDS
from tests.unit.gateway.auth.keyed import KeyedGateway, PatientThinker, keyed_gateways
from tests.unit.gateway.batches.test_batches import build_batch_lines, submit_file
from tests.unit.gateway.files.test_client_files import client_of
from tests.unit.gateway.house import TEXT, build_chat_body
from tests.unit.gateway.videos.studio import ASKED, connect_store, open_studio
from tests.unit.sidecar.node import wait_until

#: Time limit for stopping all work of a revoked key, at every gateway.
STOP_SECONDS = 2.0


async def wait_for_document(gate: KeyedGateway, key: str, path: str, *statuses: str) -> dict[str, Any]:
    """Return the document at ``path`` once it has one of ``statuses``."""
    async with asyncio.timeout(30):
        while True:
            document: dict[str, Any] = (await gate.call(key, "GET", path)).json()
            if document.get("status") in statuses:
                return document
            await asyncio.sleep(0.05)


async def submit_batch(gate: KeyedGateway, key: str, *words: str) -> str:
    client = client_of(gate.home, gate.http, key)
    return str((await submit_file(client, build_batch_lines(*words))).id)


async def test_a_key_with_one_request_at_a_time_makes_one_response_in_the_background(tmp_path: Path, valkey_url: str):
    thinker = PatientThinker()
    async with keyed_gateways(tmp_path, valkey_url, thinker=thinker) as [gate]:
        await gate.create_key("ann", concurrent=1)
        await gate.create_key("bob")

        first, second = [await gate.respond("ann") for _ in range(2)]
        chat = await gate.call("ann", "POST", "/v1/chat/completions", json=build_chat_body(TEXT, "hi"))
        other = await gate.respond("bob")
        path = f"/v1/responses/{first.json()['id']}"
        status_response, files = await gate.call("ann", "GET", path), await gate.call("ann", "GET", "/v1/files")
        cancellation = await gate.call("ann", "POST", f"{path}/cancel")
        await wait_for_document(gate, "ann", path, "cancelled")
        again = await gate.respond("ann")

    assert [each.status_code for each in (first, second, chat, other)] == [200, 429, 429, 200]
    assert "background included" in second.json()["error"]["message"]
    assert second.headers["retry-after"]
    assert (status_response.status_code, files.status_code, cancellation.status_code, again.status_code) == (
        200,
        200,
        200,
        200,
    )


async def test_a_batch_is_charged_to_its_key_and_waits_where_that_has_used_its_gpu_seconds(
    tmp_path: Path, valkey_url: str
):
    async with keyed_gateways(tmp_path, valkey_url) as [gate]:
        record = await gate.create_key("ann", gpu_seconds=0.5)
        allowance = gate.tenancy._limits.key_allowance(record)
        now = asyncio.get_running_loop().time
        allowance.use_gpu_seconds(6.0, now())  # 5 are available, so the key waits two seconds
        gate.home.table.batches.startup()

        began = now()
        id = await submit_batch(gate, "ann", "one")
        batch = await wait_for_document(gate, "ann", f"/v1/batches/{id}", "completed", "failed")

        assert batch["request_counts"] == {"total": 1, "completed": 1, "failed": 0}
        assert now() - began >= 1.5
        level, _ = allowance._seconds.state(now())
        assert level < (now() - began) * 0.5 - 1.0, "its use was charged as well"


async def test_lines_of_a_batch_keep_to_the_requests_at_a_time_of_their_key(tmp_path: Path, valkey_url: str):
    thinker = PatientThinker()
    async with keyed_gateways(tmp_path, valkey_url, thinker=thinker) as [gate]:
        record = await gate.create_key("ann", concurrent=2)
        gate.home.table.batches.startup()

        id = await submit_batch(gate, "ann", "one", "two", "three", "four")
        await wait_until(lambda: thinker.begun == 2)
        await asyncio.sleep(0.3)
        assert (thinker.begun, gate.tenancy._limits.key_allowance(record).deferred) == (2, 2)
        thinker.gate.set()
        batch = await wait_for_document(gate, "ann", f"/v1/batches/{id}", "completed", "failed")

    assert batch["request_counts"]["completed"] == 4


async def test_a_revoked_key_stops_requests_and_batches_at_every_gateway(tmp_path: Path, valkey_url: str):
    thinker = PatientThinker()
    async with keyed_gateways(tmp_path, valkey_url, count=2, thinker=thinker) as [one, two]:
        await one.create_key("ann")
        await one.create_key("ann", "ann-too")
        await wait_until(lambda: len(two.tenancy._book.records) == 2)
        two.home.table.batches.startup()
        whole = asyncio.create_task(two.call("ann", "POST", "/v1/chat/completions", json=build_chat_body(TEXT, "hi")))
        stream_task = asyncio.create_task(
            one.call("ann", "POST", "/v1/chat/completions", json=build_chat_body(TEXT, "hi", stream=True))
        )
        other_key_task = asyncio.create_task(
            one.call("ann-too", "POST", "/v1/chat/completions", json=build_chat_body(TEXT, "hi"))
        )
        id = await submit_batch(two, "ann", "one", "two")
        await wait_until(lambda: thinker.begun == 5)

        began = time.monotonic()
        await one.revoke_key("ann")
        rejection, cut = await whole, await stream_task
        batch = await wait_for_document(two, "ann-too", f"/v1/batches/{id}", "failed", "completed")
        seconds = time.monotonic() - began
        await wait_until(lambda: thinker.stopped == 4)
        thinker.gate.set()

        assert (rejection.status_code, rejection.json()["error"]["code"]) == (401, "key_revoked")
        assert cut.status_code == 200
        assert "one" in cut.text
        assert "key_revoked" in cut.text
        assert (batch["status"], batch["errors"]["data"][0]["code"]) == ("failed", "key_revoked")
        assert batch["request_counts"] == {"total": 2, "completed": 0, "failed": 2}
        assert seconds < STOP_SECONDS
        assert (await other_key_task).status_code == 200
        assert (await one.call("ann", "GET", "/v1/models")).status_code == 401


async def test_a_revoked_key_stops_responses_in_the_background_and_says_so(tmp_path: Path, valkey_url: str):
    thinker = PatientThinker()
    async with keyed_gateways(tmp_path, valkey_url, thinker=thinker) as [gate]:
        await gate.create_key("ann")
        await gate.create_key("ann", "ann-too")
        response = (await gate.respond("ann")).json()
        await wait_until(lambda: thinker.begun == 1)

        began = time.monotonic()
        await gate.revoke_key("ann")
        final_response = await wait_for_document(
            gate, "ann-too", f"/v1/responses/{response['id']}", "failed", "completed", "cancelled"
        )

        assert (final_response["status"], final_response["error"]["reason"]) == ("failed", "key_revoked")
        assert time.monotonic() - began < STOP_SECONDS
        assert await gate.store.count_open_responses() == 0
        await wait_until(lambda: thinker.stopped == 1)


async def test_a_response_whose_gateway_died_is_not_adopted_under_a_revoked_key(tmp_path: Path, valkey_url: str):
    thinker = PatientThinker()
    async with keyed_gateways(tmp_path, valkey_url, count=2, thinker=thinker) as [one, two]:
        await one.create_key("ann")
        await one.create_key("ann", "ann-too")
        response = (await one.respond("ann")).json()
        await wait_until(lambda: thinker.begun == 1)

        await one.home.responses.leave_background()
        await one.revoke_key("ann")
        await wait_until(lambda: len(two.tenancy._book.records) == 1)
        final_response = await wait_for_document(
            two, "ann-too", f"/v1/responses/{response['id']}", "failed", "completed"
        )

    assert final_response["error"]["reason"] == "key_revoked"
    assert thinker.begun == 1


async def test_a_job_that_names_no_key_runs_as_long_as_its_tenant_has_one(tmp_path: Path, valkey_url: str):
    async with keyed_gateways(tmp_path, valkey_url) as [gate]:
        await gate.create_key("ann")
        await gate.create_key("bob")
        ids = [await submit_batch(gate, name, "one") for name in ("ann", "bob")]
        await _forget_keys(gate.store, *ids)
        await gate.revoke_key("bob")
        await wait_until(lambda: len(gate.tenancy._book.records) == 1)
        await gate.create_key("cid")  # another tenant's key is not enough

        gate.home.table.batches.startup()
        ann_batch = await wait_for_document(gate, "ann", f"/v1/batches/{ids[0]}", "completed", "failed")
        await gate.create_key("bob", "bob-too")
        other = await wait_for_document(gate, "bob-too", f"/v1/batches/{ids[1]}", "completed", "failed")

    assert (ann_batch["status"], ann_batch["request_counts"]["completed"]) == ("completed", 1)
    assert other["status"] in ("failed", "completed")  # its key may or may not have returned before the check
    assert other["status"] == "completed" or other["errors"]["data"][0]["code"] == "key_revoked"


async def test_a_revoked_key_stops_a_video_and_says_so(tmp_path: Path, valkey_url: str):
    async with open_studio(tmp_path, valkey_url) as place, connect_store(valkey_url) as store:
        place.toys.gate.clear()
        place.first.settings = place.first.settings.__class__(keys=True)
        gate = KeyedGateway(place.first, store)
        await gate.tenancy.startup(place.first.bus, lambda: None)
        try:
            await gate.create_key("ann")
            await gate.create_key("ann", "ann-too")
            video = (await gate.call("ann", "POST", "/v1/videos", json=ASKED)).json()
            await wait_until(lambda: place.toys.begun.total() == 1)

            began = time.monotonic()
            await gate.revoke_key("ann")
            final_video = await wait_for_document(gate, "ann-too", f"/v1/videos/{video['id']}", "failed", "completed")

            assert (final_video["status"], final_video["error"]["code"]) == ("failed", "key_revoked")
            assert time.monotonic() - began < STOP_SECONDS
            await wait_until(lambda: place.toys.stopped.total() == 1)
            await gate.store.drop_key((await gate.store.keys()).popitem()[0])
        finally:
            place.toys.gate.set()
            await gate.tenancy.shutdown()
            await gate.http.aclose()


async def _forget_keys(store: Store, *ids: str) -> None:
    """Rewrite jobs as builds without keys of jobs did."""
    for id in ids:
        await store._redis.hdel(store._redis_key(f"job:batch:{id}"), "key")


def test_a_turn_is_shorter_than_a_lease():
    assert TURN_SECONDS < 20.0


@pytest.mark.parametrize("path", ["/v1/models", "/v1/files"])
async def test_a_key_that_was_never_there_is_unauthorized_and_not_revoked(tmp_path: Path, valkey_url: str, path: str):
    async with keyed_gateways(tmp_path, valkey_url) as [gate]:
        answer: httpx.Response = await gate.call("nobody", "GET", path)

    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthorized")
