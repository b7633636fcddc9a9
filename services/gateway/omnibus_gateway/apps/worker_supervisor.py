"""Worker of one app version at this gateway: starts, restarts after a crash, drains and stops it.

An idle worker can become cold: it has no process, and the next call starts one.

Limit on the number of app workers that have a process.
"""

import asyncio
import logging
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

import msgspec
from pydantic import BaseModel

from omnibus.app import protocol
from omnibus.app.protocol import Description
from omnibus.app_record import AppSource
from omnibus.errors import DeadlineExceeded, OmnibusError, StageUnavailable
from omnibus.graph import HANDLE
from omnibus.metrics import GATEWAY
from omnibus.process.supervise import Backoff, RestartPolicy, restart_on_exit
from omnibus.recording.records import AppCall
from omnibus.service import until_cancelled
from omnibus.task import ChatInput
from omnibus_gateway.apps import graph_submission
from omnibus_gateway.apps.call import Call
from omnibus_gateway.apps.graph_submission import SegmentRunner
from omnibus_gateway.apps.worker_process import WorkerProcess


class PooledWorker(Protocol):
    """Worker of one app, as the pool needs it."""

    @property
    def is_idle(self) -> bool:
        """True if it has no requests."""

    def cool(self) -> None:
        """Stop its process; the next call starts a new one."""


class WarmWorkers:
    """Workers with a process, at most ``limit``: the least recently called one gives up its place.

    A worker with requests keeps its process. A registered or restarted worker starts at once, over the limit if
    necessary; a called worker waits for a place.
    """

    def __init__(self, limit: int) -> None:
        self._limit = max(1, limit)
        self._workers: dict[PooledWorker, None] = {}  # least recently called first
        self._waiting: list[asyncio.Future[None]] = []

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def has_room(self) -> bool:
        """True if another worker may start without a replacement."""
        return len(self._workers) < self._limit

    def add(self, worker: PooledWorker) -> None:
        """Add ``worker``, which has a process or is about to start one."""
        self.touch(worker)
        while len(self._workers) > self._limit and self._cool_one(worker):
            pass

    def touch(self, worker: PooledWorker) -> None:
        """Mark ``worker`` as the most recently called."""
        self._workers.pop(worker, None)
        self._workers[worker] = None

    def discard(self, worker: PooledWorker) -> None:
        """Remove ``worker``, which has no process any longer."""
        if worker in self._workers:
            del self._workers[worker]
            self.note_idle()

    def note_idle(self) -> None:
        """Offer the place of an idle worker to the first waiter."""
        if self._waiting:
            for waiter in self._waiting:
                if not waiter.done():
                    waiter.set_result(None)
                    return
        elif len(self._workers) > self._limit:
            self._cool_one(None)

    async def take_place(self, worker: PooledWorker) -> None:
        """Wait until ``worker`` may start a process, and reserve its place."""
        while not self.has_room and not self._cool_one(worker):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self.note_idle()  # another worker may take the place
                raise
            finally:
                self._waiting.remove(waiter)
        self.touch(worker)

    def _cool_one(self, but: PooledWorker | None) -> bool:
        """Stop the process of the least recently called idle worker; False if there is none."""
        for worker in self._workers:
            if worker is not but and worker.is_idle:
                del self._workers[worker]
                worker.cool()
                return True
        return False


log = logging.getLogger(__name__)

_encode = msgspec.json.Encoder().encode

RESTART_POLICY = RestartPolicy(first=0.1, longest=10.0, healthy=30.0)


@dataclass(frozen=True)
class WorkerLimits:
    """Limits of a worker. Times are in seconds, memory is in bytes of address space of an uploaded app."""

    ready_within: float = 30.0
    cancel_within: float = 5.0  # then a worker that has not ended a cancelled request is killed
    stop_within: float = 3.0
    #: Seconds between pings. A worker that neither answers nor computes for ``answer_within`` is killed.
    ping: float = 1.0
    answer_within: float = 5.0
    memory: int = 2 << 30  # less than the memory of a gateway's container
    restart: RestartPolicy = RESTART_POLICY
    show_errors: bool = False  # exceptions of the app, to clients


class WorkerSupervisor:
    """Serves one version of an app.

    ``text`` is its code if it was uploaded, ``pool`` limits the workers with a process. With a ``description`` of the
    app, it begins cold.
    """

    def __init__(
        self,
        source: AppSource,
        text: str = "",
        rules: WorkerLimits | None = None,
        pool: WarmWorkers | None = None,
        description: Description | None = None,
    ) -> None:
        self._source = source
        self._text = text
        self._rules = rules or WorkerLimits()
        self._pool = pool if pool is not None else WarmWorkers(1)
        self._process: WorkerProcess | None = None
        self._description = description
        self._numbers = count()
        self._draining = False
        self._keeper: asyncio.Task[None] | None = None
        self._warming: asyncio.Task[None] | None = None
        self._callers = 0  # waiting for its process
        self._ending: set[asyncio.Task[None]] = set()  # stops of abandoned processes
        self._idle = asyncio.Event()

    @property
    def is_ready(self) -> bool:
        """True if ``invoke`` and ``invoke_chat`` can be called, after ``warm_up``."""
        return (self._process is not None or self.is_cold) and not self._draining

    @property
    def is_cold(self) -> bool:
        """True if it has no process until the next call."""
        return self._keeper is None and self._description is not None

    @property
    def is_idle(self) -> bool:
        """True if its process has no requests and no waiting callers."""
        busy = self._process is not None and self._process.requests
        return self._keeper is not None and not busy and not self._callers

    @property
    def description(self) -> Description:
        """Description of the app. Raises ``StageUnavailable`` before the first start."""
        if self._description is None:
            raise StageUnavailable(f"the app {self._source.module} has not been started", stage=self._source.module)
        return self._description

    @property
    def pid(self) -> int:
        """Process id of the worker; 0 without a process."""
        return self._process.pid if self._process is not None else 0

    async def start(self) -> None:
        """Start the worker, and wait until it is ready.

        Raises the error of the app (``BadRequest``, ``NoSandbox``), ``AppFailed`` if its process ends, and
        ``DeadlineExceeded``.
        """
        self._pool.add(self)
        try:
            process = self._process = await self._spawn_process()
        except BaseException:
            self._pool.discard(self)
            raise
        restarts = restart_on_exit(
            process, self._wait_for_end, self._try_restart, Backoff(self._rules.restart), self._announce_restart
        )
        self._keeper = asyncio.get_running_loop().create_task(restarts)

    async def warm_up(self) -> None:
        """Start its process: call the worker before you await anything else.

        Waits for a place if all warm workers have requests. Raises as ``start``. If the worker is stopped in the
        meantime, the call raises.
        """
        if not self.is_cold or self._draining:
            return
        if self._warming is None:
            self._warming = asyncio.get_running_loop().create_task(self._start_for_callers())
            self._warming.add_done_callback(_retrieve_error)
        warming = self._warming
        self._callers += 1
        try:
            await asyncio.wait({warming})  # shared by all callers: it continues if one is cancelled
            if not warming.cancelled():
                warming.result()
        finally:
            self._callers -= 1

    async def _start_for_callers(self) -> None:
        try:
            await self._pool.take_place(self)
            GATEWAY.app_cold_starts.inc()
            await self.start()
        finally:
            self._warming = None

    def cool(self) -> None:
        """Stop its process; the next call starts a new one. Only if ``is_idle``."""
        keeper, self._keeper = self._keeper, None
        process, self._process = self._process, None
        if keeper is not None:
            keeper.cancel()  # at once: it could start another process
        log.info("app %s: its worker is stopped until it is called again", self._app_name)
        ending = asyncio.get_running_loop().create_task(self._end_process(keeper, process))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _end_process(self, keeper: asyncio.Task[None] | None, process: WorkerProcess | None) -> None:
        if keeper is not None:
            await until_cancelled(keeper)
        if process is not None:
            await process.stop(self._rules.stop_within)

    # Requests

    def invoke(self, run: SegmentRunner, body: bytes) -> Call:
        """Serve ``body``, the JSON of a client. Raises ``StageUnavailable`` and ``TooLarge``."""
        return self._start_call(run, body, protocol.JSON, frozenset())

    def invoke_chat(self, run: SegmentRunner, request: ChatInput, kind: str = protocol.CHAT) -> Call:
        """Serve a chat whose media are placed; with kind ``JSON``, the app returns any JSON.

        Raises ``StageUnavailable`` and ``TooLarge``.
        """
        long = isinstance(request.messages, dict) and HANDLE in request.messages
        return self.invoke_route(run, request, kind, [request.media, request.messages if long else None])

    def invoke_route(self, run: SegmentRunner, request: BaseModel, kind: str, placed: Any) -> Call:
        """Send ``request`` to the function of route ``kind``; ``placed`` has the literals that the gateway placed.

        Raises ``StageUnavailable`` and ``TooLarge``.
        """
        issued_literals = frozenset(graph_submission.handle_literals(placed))
        return self._start_call(run, _encode(request.__dict__), kind, issued_literals)

    def serve_again(
        self, run: SegmentRunner, body: bytes, recorded_call: AppCall, issued_literals: frozenset[bytes]
    ) -> Call:
        """Serve ``body`` of a ``recorded_call`` call; ``issued_literals`` are the literals of its media.

        Raises ``StageUnavailable`` and ``TooLarge``.
        """
        return self._start_call(run, body, recorded_call.kind, issued_literals, recorded_call.number)

    def _start_call(
        self, run: SegmentRunner, body: bytes, kind: str, issued_literals: frozenset[bytes], number: int = -1
    ) -> Call:
        """Start a call; ``number`` is that of a recorded call, otherwise the next one."""
        process = self._process
        # A process that is gone has already failed its requests, and would never fail a new one.
        if process is None or process.gone.is_set() or self._draining:
            state = "is being replaced" if self._draining else "starts again after a crash"
            raise StageUnavailable(f"the app {self._app_name} {state}: try again in a moment", stage=self._app_name)
        self._pool.touch(self)
        call = Call(process, run, kind, issued_literals, self._rules.cancel_within)
        call.send_to_worker(body, number if number >= 0 else next(self._numbers))
        return call

    @property
    def _app_name(self) -> str:
        return self._description.name if self._description is not None else self._source.module

    # The end

    async def drain(self, seconds: float) -> None:
        """Reject new requests, and wait up to ``seconds`` for those in flight."""
        self._draining = True
        process = self._process
        if process is None or not process.requests:
            return
        self._idle.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            log.warning(
                "app %s: %d requests did not finish within %g s", self._app_name, len(process.requests), seconds
            )

    async def stop(self) -> None:
        """End the worker; requests in flight get ``AppFailed``."""
        self._draining = True
        if self._warming is not None:
            self._warming.cancel()
            await asyncio.wait({self._warming})
        keeper, self._keeper = self._keeper, None
        process, self._process = self._process, None
        self._pool.discard(self)
        await asyncio.gather(self._end_process(keeper, process), *self._ending)

    # The worker

    async def _spawn_process(self) -> WorkerProcess:
        process = await WorkerProcess.spawn(self._source, self._text, self._rules.memory, self._rules.show_errors)
        try:
            async with asyncio.timeout(self._rules.ready_within):
                before, self._description = self._description, await process.wait_ready()
        except TimeoutError:
            await process.stop(0)
            raise DeadlineExceeded(
                f"the app {self._source.module} did not load within {self._rules.ready_within:g} s"
            ) from None
        except BaseException:
            await process.stop(0)
            raise
        if before is not None and before.tasks != self._description.tasks:
            log.warning("app %s has other unit tasks than when it was registered: update it", self._app_name)
        process.on_idle = self._note_idle
        process.begin_watch(self._rules.ping, self._rules.answer_within)
        return process

    def _note_idle(self) -> None:
        self._idle.set()
        self._pool.note_idle()

    async def _wait_for_end(self, process: WorkerProcess) -> bool:
        """Wait until ``process`` has ended; return True to start another one."""
        await process.gone.wait()
        self._process = None
        await process.stop(0)
        return not self._draining

    def _announce_restart(self, pause: float) -> None:
        log.error("the worker of app %s ended: it starts again in %.1f s", self._app_name, pause)

    async def _try_restart(self) -> WorkerProcess | None:
        try:
            self._process = await self._spawn_process()
        except OmnibusError as error:
            log.error("app %s does not restart: %s", self._app_name, error)
            return None
        return self._process


def _retrieve_error(task: asyncio.Task[None]) -> None:
    """Mark the exception as retrieved: all callers may have disconnected."""
    if not task.cancelled():
        task.exception()
