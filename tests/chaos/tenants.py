"""Tenants that attack another one, at two gateways with API keys: ``--tenants``.

``ann`` attacks by each route at the same time. ``bob`` sends a few small requests and manages a file. Then the key of
``ann`` is revoked. ``tests.chaos.judge_tenants`` judges the run.
"""

import asyncio
import contextlib
import json
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import redis.asyncio as redis

from omnibus.api_key import KeyRecord, hash_key
from omnibus.store import Store
from omnibus_models import tiny
from tests.chaos import watch
from tests.chaos.client import open_client
from tests.chaos.judge_tenants import TENANT_BYTES, Attempt, TenantRecord
from tests.e2e.system import OMNI, System, declare_model

_CHAT = "/v1/chat/completions"
_HARD_SCHEMAS = 8
_SAMPLE_SECONDS = 0.5
_PAUSE_SECONDS = 0.2
_ENDED = ("completed", "failed", "cancelled", "incomplete")

Attack = Callable[["Attacker"], Awaitable[None]]


class Attacker:
    """Send requests with one key to both gateways in turn; count the answers."""

    def __init__(self, urls: list[str], key: str) -> None:
        headers = {"authorization": f"Bearer {key}"}
        self.clients = [open_client(url, 60.0) for url in urls]
        for client in self.clients:
            client.headers.update(headers)
        self.codes: dict[str, Counter[int]] = {}
        self.open: set[str] = set()  # responses in the background that were accepted
        self.made_for_bob = ""
        self._number = 0

    async def send_call(self, attack: str, method: str, path: str, **more: Any) -> httpx.Response | None:
        self._number += 1
        try:
            answer = await self.clients[self._number % len(self.clients)].request(method, path, **more)
        except httpx.HTTPError:
            return None
        self.codes.setdefault(attack, Counter())[answer.status_code] += 1
        return answer

    async def close(self) -> None:
        for client in self.clients:
            await client.aclose()


def _make_chat(content: str, **more: Any) -> dict[str, Any]:
    return {"model": OMNI, "messages": [{"role": "user", "content": content}], "max_tokens": 4, **more}


async def _take_background(attacker: Attacker) -> None:
    body = {"model": OMNI, "input": "talk", "background": True, "max_output_tokens": 200, "ignore_eos": True}
    answer = await attacker.send_call("background slots", "POST", "/v1/responses", json=body)
    if answer is not None and answer.status_code == 200:
        attacker.open.add(answer.json()["id"])


async def _flood_store(attacker: Attacker) -> None:
    items = [{"type": "message", "role": "user", "content": "a" * 500_000} for _ in range(10)]
    await attacker.send_call("store flood", "POST", "/v1/conversations", json={"items": items})


async def _evade_quota(attacker: Attacker) -> None:
    line = {"custom_id": "1", "method": "POST", "url": _CHAT, "body": _make_chat("burn", max_tokens=600)}
    form = {"purpose": (None, "batch"), "file": ("b.jsonl", json.dumps(line).encode())}
    file = await attacker.send_call("quota evasion", "POST", "/v1/files", files=form)
    if file is not None and file.status_code == 200:
        body = {"input_file_id": file.json()["id"], "endpoint": _CHAT, "completion_window": "24h"}
        await attacker.send_call("quota evasion", "POST", "/v1/batches", json=body)


async def _delete_by_url(attacker: Attacker) -> None:
    if attacker.made_for_bob:
        await attacker.send_call("delete by url", "DELETE", f"/v1/files/{attacker.made_for_bob}")


async def _hog_slots(attacker: Attacker) -> None:
    await attacker.send_call("slot hog", "POST", _CHAT, json=_make_chat("long", max_tokens=2000, ignore_eos=True))


async def _queue_schemas(attacker: Attacker) -> None:
    names = {f"^n{time.monotonic_ns()}x{j}(a|b)*a(a|b)*$": {"type": "integer"} for j in range(220)}
    schema = {"type": "object", "patternProperties": names}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    await attacker.send_call("schema queue", "POST", _CHAT, json=_make_chat("x", response_format=form))


#: Attacks, and how many of each go on at the same time.
ATTACKS: dict[str, tuple[Attack, int]] = {
    "background slots": (_take_background, 4),
    "store flood": (_flood_store, 1),
    "quota evasion": (_evade_quota, 2),
    "delete by url": (_delete_by_url, 1),
    "slot hog": (_hog_slots, 24),
    "schema queue": (_queue_schemas, _HARD_SCHEMAS),
}


def run_tenants(names: list[str], seconds: float) -> TenantRecord:
    """Start a system, run the attacks ``names`` for ``seconds``, and stop it."""
    with tempfile.TemporaryDirectory(prefix="omnibus-tenants-") as place:
        model = declare_model("qwen2_5_omni", tiny.build("qwen2_5_omni", Path(place) / "omni"))
        option = {**model, "options": {"M": model["options"]["M"]}, "paths": [{"options": ["M"]}]}
        settings = {
            "OMNIBUS_GATEWAY_KEYS": "true",
            "OMNIBUS_GATEWAY_TENANT_BYTES": str(TENANT_BYTES),
            "OMNIBUS_GATEWAY_DEADLINE": "30",
        }
        system = System(Path(place), {OMNI: option}, settings, ("--gateways", "2"))
        try:
            system.start()
            return asyncio.run(_attack_tenant(system, names, seconds))
        finally:
            system.stop()


async def _attack_tenant(system: System, names: list[str], seconds: float) -> TenantRecord:
    record = TenantRecord()
    async with system.store() as store:
        for tenant, limits in (("ann", {"concurrent": 40}), ("bob", {})):
            await store.put_key(KeyRecord(hash_key(tenant), tenant, **limits))  # type: ignore[arg-type]
        await store.put_key(KeyRecord(hash_key("ann-too"), "ann"))
        ann, bob, later = (Attacker(system.urls, key) for key in ("ann", "bob", "ann-too"))
        await _become_known(bob)
        ann.made_for_bob = await _request_speech(bob)
        async with _watch_memory(system, record):
            until = time.monotonic() + seconds
            async with asyncio.TaskGroup() as group:
                for name in names:
                    attack, count = ATTACKS[name]
                    for _ in range(count):
                        group.create_task(_repeat_attack(attack, ann, until))
                group.create_task(_look_after(bob, ann.made_for_bob, record, until))
            await _revoke_key(store, ann, later, record)
        record.codes = ann.codes
        for each in (ann, bob, later):
            await each.close()
    return record


async def _become_known(attacker: Attacker) -> None:
    async with asyncio.timeout(10):
        for _ in attacker.clients:
            while (answer := await attacker.send_call("", "GET", "/v1/models")) is None or answer.status_code != 200:
                await asyncio.sleep(0.05)


async def _request_speech(bob: Attacker) -> str:
    body = _make_chat("speak", modalities=["text", "audio"], audio={"voice": "Chelsie", "format": "wav"})
    answer = await bob.send_call("", "POST", _CHAT, json=body)
    assert answer is not None
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["audio"]["id"])


async def _repeat_attack(attack: Attack, attacker: Attacker, until: float) -> None:
    while time.monotonic() < until:
        await attack(attacker)
        await asyncio.sleep(0.02)


async def _look_after(bob: Attacker, file: str, record: TenantRecord, until: float) -> None:
    """Small requests of another tenant, one after another."""
    response = {"model": OMNI, "input": "hi", "background": True, "max_output_tokens": 4}
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    calls: list[tuple[str, str, str, Any]] = [
        ("chat", "POST", _CHAT, _make_chat("hello")),
        ("background response", "POST", "/v1/responses", response),
        ("conversation", "POST", "/v1/conversations", {"items": [{"role": "user", "content": "hi"}]}),
        ("schema", "POST", _CHAT, _make_chat("hello", max_tokens=32, response_format=form)),
        ("file", "GET", f"/v1/files/{file}", None),
    ]
    while time.monotonic() < until:
        for name, method, path, body in calls:
            began = time.monotonic()
            answer = await bob.send_call(name, method, path, json=body)
            status = answer.status_code if answer is not None else 0
            record.others.append(Attempt(name, status, time.monotonic() - began))
        await asyncio.sleep(_PAUSE_SECONDS)


async def _revoke_key(store: Store, ann: Attacker, later: Attacker, record: TenantRecord) -> None:
    """Revoke the key of the attacks; record how long its background responses continue."""
    began = time.monotonic()
    await store.drop_key(hash_key("ann"))
    left = set(ann.open)
    while left and time.monotonic() - began < 30:
        for id in list(left):
            answer = await later.send_call("", "GET", f"/v1/responses/{id}")
            if answer is not None and (answer.status_code == 404 or answer.json().get("status") in _ENDED):
                left.discard(id)
        record.stop_seconds = time.monotonic() - began


@contextlib.asynccontextmanager
async def _watch_memory(system: System, record: TenantRecord) -> AsyncIterator[None]:
    """Record memory of the store and of gateways while the block runs."""
    async with redis.Redis.from_url(system.state.store_url) as raw:
        pids = [system.gateway(index).pid for index in range(len(system.urls))]

        async def read_memory() -> tuple[int, int]:
            store_bytes = int((await raw.info("memory"))["used_memory"])
            return store_bytes, max(watch.own_bytes(pid) for pid in pids)

        record.store_before, record.gateway_before = await read_memory()

        async def keep_looking() -> None:
            while True:
                store_bytes, own = await read_memory()
                record.store_peak = max(record.store_peak, store_bytes)
                record.gateway_peak = max(record.gateway_peak, own)
                await asyncio.sleep(_SAMPLE_SECONDS)

        task = asyncio.create_task(keep_looking())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
