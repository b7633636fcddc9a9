"""A house on a separate event loop, for synchronous tests of properties."""

import asyncio
import threading
from collections.abc import Awaitable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from omnibus.families import catalog
from omnibus.settings import StoreSettings
from omnibus.store import Store
from tests.unit.gateway.house import FILMER, OMNI, PAINTER, ToyGateway, start_toy_gateway

T = TypeVar("T")

EMBEDDER, RERANKER = "toy-embedder", "toy-reranker"
_MODULE_SECONDS = 3600.0
"""A house lives as long as the tests of its module, which take as long as the machine lets them: each has its own limit."""


class Running:
    """A house on a separate event loop for one example after another."""

    def __init__(self, directory: Path, store_url: str) -> None:
        self._store_url = store_url
        self._loop = asyncio.new_event_loop()
        self._ready: Future[ToyGateway] = Future()
        self._stop = asyncio.Event()
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(directory,))
        self._thread.start()
        self.home = self._ready.result(30)

    def _run(self, directory: Path) -> None:
        self._loop.run_until_complete(self._live(directory))
        self._loop.close()

    async def _live(self, directory: Path) -> None:
        store = Store(StoreSettings(url=self._store_url))
        try:
            async with start_toy_gateway(directory, store, _MODULE_SECONDS, videos_open=9) as home:
                await home.all_of(OMNI)
                await home.all_of(PAINTER)
                await home.executor(EMBEDDER, "B", "embedder")
                await home.executor(RERANKER, "R", "reranker")
                texts = {
                    EMBEDDER: catalog.embedding_declaration("qwen2", ""),
                    RERANKER: catalog.model_declaration("cross_encoder", ""),
                }
                home.serve(OMNI, PAINTER, FILMER, **texts)
                self._ready.set_result(home)
                await self._stop.wait()
        except BaseException as fault:
            self._fault = fault
            if not self._ready.done():
                self._ready.set_exception(fault)
            raise
        finally:
            await store.close()

    def do(self, work: Awaitable[T]) -> T:
        async def run_within_timeout() -> T:
            async with asyncio.timeout(20):
                return await work

        if self._fault is not None:
            raise RuntimeError("the house has ended") from self._fault
        return asyncio.run_coroutine_threadsafe(run_within_timeout(), self._loop).result(30)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)
