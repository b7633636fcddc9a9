"""Gateways that check keys in the store, and a pausable executor."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from omnibus.api_key import KeyRecord, hash_key
from omnibus.executor.runner import Job
from omnibus.settings import GatewaySettings, StoreSettings
from omnibus.store import Store
from omnibus_gateway.auth.tenancy import Tenancy
from omnibus_gateway.tenancy.tenant import DeferredWork
from tests.unit.gateway.house import TEXT, ToyGateway, start_toy_gateway
from tests.unit.sidecar.node import wait_until

ADMIN = "open-sesame-open"


class PatientThinker:
    """A thinker that writes one word, and continues when ``gate`` opens."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.begun = 0
        self.stopped = 0
        self.questions: list[str] = []

    async def think(self, job: Job) -> None:
        messages = await job.value("messages")
        await job.value("items")
        self.begun += 1
        self.questions.append(str(messages[-1]))
        await job.send("text", {"text": "one ", "ids": [0]})
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.stopped += 1
            raise
        await job.send("text", {"text": "two", "ids": [1]})
        job.close("text", {"finish_reason": "stop", "usage": {"prompt_tokens": 3, "completion_tokens": 2}})


class KeyedGateway:
    """A house with key checks; the key of each tenant is its name."""

    def __init__(self, home: ToyGateway, store: Store) -> None:
        self.home = home
        self.store = store
        self.tenancy = Tenancy(home.settings, store, home.router)
        home.runs.admission = self.tenancy.admission
        use_deferred_work(home, self.tenancy.deferred)
        transport = httpx.ASGITransport(app=self.tenancy.guard_application(home.app))
        self.http = httpx.AsyncClient(transport=transport, base_url="http://gateway", timeout=30)

    async def call(self, key: str, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return await self.http.request(method, path, headers=headers, **more)

    async def respond(self, key: str, **more: Any) -> httpx.Response:
        """Request a response in the background."""
        body = {"model": TEXT, "input": "hi", "background": True, **more}
        return await self.call(key, "POST", "/v1/responses", json=body)

    async def create_key(self, tenant: str, name: str = "", **limits: Any) -> KeyRecord:
        record = KeyRecord(hash_key(name or tenant), tenant, **limits)
        await self.store.put_key(record)
        await wait_until(lambda: record.sha256 in self.tenancy._book.records)
        return record

    async def revoke_key(self, name: str) -> None:
        await self.store.drop_key(hash_key(name))


def use_deferred_work(home: ToyGateway, deferred_work: DeferredWork) -> None:
    """Use the keys of ``deferred_work`` for all work that outlives its request."""
    worker = home.table.batches._worker
    home.responses._deferred = home.videos._filming._deferred = deferred_work
    worker._deferred = worker._sender._deferred = deferred_work


@asynccontextmanager
async def keyed_gateways(
    directory: Path, store_url: str, count: int = 1, thinker: PatientThinker | None = None, **changes: Any
) -> AsyncIterator[list[KeyedGateway]]:
    """Yield gateways over one store, with ``thinker`` as executor of ``TEXT``."""
    settings = {"keys": True, "admin_token": ADMIN, "deadline": 30.0, **changes}
    store_settings = StoreSettings(url=store_url, prefix=f"keyed-{directory.name}")
    async with AsyncExitStack() as stack:
        stores = [Store(store_settings) for _ in range(count)]
        for store in stores:
            stack.push_async_callback(store.close)
        first = await stack.enter_async_context(start_toy_gateway(directory, stores[0], **settings))
        homes = [first]
        for number, store in enumerate(stores[1:], 1):
            whole = GatewaySettings(media_dir=str(directory / "kept"), **settings)
            homes.append(ToyGateway(first.place, whole, store, f"gw{number}"))
            await homes[-1].open()
            stack.push_async_callback(homes[-1].close)
        for home in homes:
            home.serve(TEXT)
        works = {"thinker": thinker.think} if thinker is not None else {}
        await first.executor(TEXT, "L", "thinker", id="thinker-0", **works)
        gateways = [KeyedGateway(home, store) for home, store in zip(homes, stores, strict=True)]
        for each in gateways:
            await wait_until(lambda home=each.home: home.members.get("thinker-0") is not None)
            await each.tenancy.startup(first.bus, lambda: None)
            stack.push_async_callback(each.tenancy.shutdown)
            stack.push_async_callback(each.http.aclose)
            stack.push_async_callback(each.home.table.batches.shutdown)
        try:
            yield gateways
        finally:
            if thinker is not None:
                thinker.gate.set()
