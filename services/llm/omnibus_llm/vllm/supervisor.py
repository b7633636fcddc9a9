"""Restarts of an engine that dies.

Its executor continues to run, and takes no work meanwhile.
"""

import asyncio
import logging
from collections.abc import Callable

from omnibus.errors import StageUnavailable
from omnibus.process.supervise import Backoff, RestartPolicy, restart_on_exit
from omnibus_llm.vllm.protocol import VllmEngine

log = logging.getLogger(__name__)

#: An engine takes minutes to load, so it counts as healthy later than other processes do.
RESTART_POLICY = RestartPolicy(first=0.5, longest=30.0, healthy=60.0)


class EngineSupervisor:
    """Starts engines with ``make``, one at a time, until ``close``."""

    def __init__(self, component: str, make: Callable[[], VllmEngine]) -> None:
        self._component = component
        self._make = make
        self._engine: VllmEngine | None = None
        self._watching: asyncio.Task[None] | None = None
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
            f"the engine of {self._component} has ended and is restarting; send the request again",
            stage=self._component,
        )

    async def start(self) -> None:
        """Start the first engine; its errors are raised here."""
        engine = self._engine = await self._start_engine()
        restarts = restart_on_exit(
            engine, self._wait_for_end, self._try_restart, Backoff(RESTART_POLICY), self._announce_restart
        )
        self._watching = asyncio.create_task(restarts, name=f"keeper of {self._component}")

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._engine is not None:
            engine, self._engine = self._engine, None
            await engine.stop()

    async def _wait_for_end(self, engine: VllmEngine) -> bool:
        await engine.wait_for_exit()
        self._engine = None
        log.error("the engine of %s has died", self._component)
        await engine.stop()
        return True

    def _announce_restart(self, pause: float) -> None:
        log.info("starting another engine of %s in %.1f s", self._component, pause)

    async def _try_restart(self) -> VllmEngine | None:
        try:
            self._engine = await self._start_engine()
        except Exception:  # the engine's boundary: any error may be gone next time
            log.exception("the engine of %s cannot be started; retrying", self._component)
            return None
        self.restarts += 1
        log.info("the engine of %s serves again", self._component)
        return self._engine

    async def _start_engine(self) -> VllmEngine:
        engine = self._make()
        try:
            await engine.start()
        except BaseException:
            await engine.stop()
            raise
        return engine
