"""Keeps an engine alive: one that dies is replaced, while its executor lives on and takes no work."""

import asyncio
import logging
import time
from collections.abc import Callable

from omnibus.errors import StageUnavailable
from services.llm.vllm.protocol import VllmEngine

log = logging.getLogger(__name__)

#: Seconds before the first and the longest pause before a later attempt to start.
BACKOFF_SECONDS = (0.5, 30.0)
#: Seconds after which an engine counts as having worked.
STABLE_AFTER_SECONDS = 60.0


class EngineSupervisor:
    """Starts engines with ``make``, one at a time, until ``close``."""

    def __init__(self, component: str, make: Callable[[], VllmEngine]) -> None:
        self._component = component
        self._make = make
        self._engine: VllmEngine | None = None
        self._watching: asyncio.Task[None] | None = None
        self._pause = BACKOFF_SECONDS[0]
        self.restarts = 0

    @property
    def serving(self) -> bool:
        return self._engine is not None

    @property
    def engine(self) -> VllmEngine:
        """The engine. Raises ``StageUnavailable`` while there is none."""
        if self._engine is None:
            raise self.unavailable_error()
        return self._engine

    def unavailable_error(self) -> StageUnavailable:
        return StageUnavailable(
            f"the engine of {self._component} has ended and is being started again; send the request again",
            stage=self._component,
        )

    async def start(self) -> None:
        """Start the first engine; what it raises is the caller's."""
        self._engine = await self._start_engine()
        self._watching = asyncio.create_task(self._watch_engine(), name=f"keeper of {self._component}")

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._engine is not None:
            engine, self._engine = self._engine, None
            await engine.stop()

    async def _watch_engine(self) -> None:
        while True:
            engine, began = self.engine, time.monotonic()
            await engine.wait_for_exit()
            self._engine = None
            log.error("the engine of %s has died; starting another one", self._component)
            if time.monotonic() - began > STABLE_AFTER_SECONDS:
                self._pause = BACKOFF_SECONDS[0]
            await engine.stop()
            self._engine = await self._restart_engine()
            self.restarts += 1
            log.info("the engine of %s serves again", self._component)

    async def _restart_engine(self) -> VllmEngine:
        while True:
            await asyncio.sleep(self._pause)
            self._pause = min(2 * self._pause, BACKOFF_SECONDS[1])
            try:
                return await self._start_engine()
            except Exception:  # the engine's boundary: whatever is wrong, it may be right the next time
                log.exception("the engine of %s cannot be started; trying again", self._component)

    async def _start_engine(self) -> VllmEngine:
        engine = self._make()
        try:
            await engine.start()
        except BaseException:
            await engine.stop()
            raise
        return engine
