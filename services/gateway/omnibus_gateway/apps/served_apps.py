"""Apps that this gateway serves: it follows the store and has a worker for each.

At most ``OMNIBUS_GATEWAY_APP_WORKERS`` workers have a process. The other workers, the least recently called ones and
new ones, start a process when they are called.

A new version starts while the old one serves, and replaces it when it is ready; the old one finishes its requests and
stops. Apps start, drain and stop concurrently. If the store is unavailable, the gateway keeps its apps.

One app at this gateway: its record in the store, and the worker that serves it.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from omnibus.app.protocol import Description
from omnibus.app_record import VERSION_SEPARATOR, AppRecord, AppSource
from omnibus.errors import DeadlineExceeded, Fatal, NotFound, OmnibusError, ProblemDetails, Retryable, StageUnavailable
from omnibus.process.supervise import Backoff, RestartPolicy
from omnibus.settings import GatewaySettings
from omnibus.store import Store
from omnibus_gateway.apps import source_policy
from omnibus_gateway.apps.pending_versions import PendingVersions
from omnibus_gateway.apps.response_schemas import WorkerProblem, WorkerView
from omnibus_gateway.apps.worker_supervisor import WarmWorkers, WorkerSupervisor


class ServedApp:
    """App with its latest ``record`` in the store; ``worker`` may still serve the older ``serving`` record."""

    __slots__ = ("problem", "record", "serving", "starting", "worker")

    def __init__(self, record: AppRecord) -> None:
        self.record = record
        self.serving = record
        self.worker: WorkerSupervisor | None = None
        self.starting: asyncio.Task[None] | None = None
        self.problem: ProblemDetails | None = None

    @property
    def state(self) -> str:
        """``ready``, ``cold`` without a process, ``restarting`` after a crash, ``starting`` or ``broken``."""
        if self.worker is not None and self.worker.is_cold:
            return "cold"
        if self.worker is not None:
            return "ready" if self.worker.is_ready else "restarting"
        return "broken" if self.problem is not None else "starting"

    @property
    def is_settled(self) -> bool:
        """True after the first attempt to start it."""
        return self.worker is not None or self.problem is not None

    def worker_view(self) -> WorkerView:
        """Describe this gateway's worker for clients."""
        problem = None
        if self.problem is not None:
            problem = WorkerProblem(self.record.version, self.problem.code, self.problem.message)
        return WorkerView(self.state, self.serving.version if self.worker else None, problem)


def describe_record(record: AppRecord) -> Description:
    """Return the description of an app at its registration."""
    return Description(
        name=record.name,
        doc=record.doc,
        tasks=record.tasks,
        route=record.route,
        model=record.model,
        request=record.request,
        response=record.response,
        streams=record.streams,
        chat=record.chat,
        routes=record.routes,
        about=record.about,
        invocable=record.invocable,
    )


log = logging.getLogger(__name__)

#: Seconds until the next attempt after an error of the store or the machine.
RETRY_PAUSE_SECONDS = 1.0
#: Attempts to load a broken app.
BROKEN_APP_RETRIES = RestartPolicy(first=30.0, longest=600.0)


class Hire(Protocol):
    """Creates the worker of a source; ``text`` is that of an upload. With a description, it begins cold."""

    def __call__(
        self, source: AppSource, text: str, *, pool: WarmWorkers, description: Description | None = None
    ) -> WorkerSupervisor: ...


class AppsNotRead(StageUnavailable):
    """Apps that this gateway has not read yet. ``retry_after`` is in seconds."""

    retry_after = 1.0


class Registry:
    """Registry of apps that follows the store. ``hire`` creates workers that are not started yet."""

    def __init__(self, settings: GatewaySettings, store: Store, hire: Hire) -> None:
        self._settings = settings
        self._store = store
        self._hire = hire
        self._warm = WarmWorkers(settings.app_workers)
        self._apps: dict[str, ServedApp] = {}
        #: Apps by route and model.
        self.routes: dict[tuple[str, str], str] = {}
        self._aside = PendingVersions(settings, store)
        #: Workers that were started to describe an app before its record was written.
        self._expected: list[tuple[AppRecord, WorkerSupervisor]] = []
        #: Workers that serve, or finish their last requests.
        self._workers: set[WorkerSupervisor] = set()
        self._turn = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._read = False

    # Reads

    @property
    def records(self) -> dict[str, AppRecord]:
        """All registered apps, as of the last read of the store."""
        return {name: served_app.record for name, served_app in self._apps.items()}

    @property
    def all_records(self) -> dict[str, AppRecord]:
        """Registered apps, and pending versions with unit tasks."""
        return {**self.records, **self._aside.records}

    @property
    def starting_apps(self) -> list[str]:
        """Apps that are starting here for the first time; ``?`` before the store was read."""
        return (
            ["?"] if not self._read else [name for name, served_app in self._apps.items() if not served_app.is_settled]
        )

    def worker_view(self, name: str) -> WorkerView | None:
        served_app = self._apps.get(name)
        return served_app.worker_view() if served_app is not None else None

    def worker(self, name: str) -> tuple[AppRecord, WorkerSupervisor]:
        """Return the record and the worker that serve app ``name``.

        Raises ``NotFound`` with the known names, and ``StageUnavailable`` with the reason why it cannot serve now.
        """
        served_app = self._apps.get(name)
        if served_app is None:
            self.check_read()
            there = ", ".join(sorted(self._apps)) or "none"
            raise NotFound(f"unknown app {name[:80]!r} (registered apps: {there})", param="name")
        if served_app.worker is None or not served_app.worker.is_ready:
            why = f": {served_app.problem.message}" if served_app.problem is not None else ", try again in a moment"
            raise StageUnavailable(f"the app {name} is {served_app.state} at this gateway{why}", stage=name)
        return served_app.serving, served_app.worker

    async def warm_worker(self, name: str, deadline: float) -> tuple[AppRecord, WorkerSupervisor]:
        """Return the result of ``worker`` once that worker has a process.

        Call the worker before you await anything else. ``deadline`` is in Unix seconds. Raises as ``worker``,
        ``StageUnavailable`` for an app that does not start, and ``DeadlineExceeded``.
        """
        record, worker = self.worker(name)
        if not worker.is_cold:
            return record, worker
        try:
            async with asyncio.timeout(max(0.0, deadline - time.time())):
                return await self._warm_up(name)
        except TimeoutError:
            raise DeadlineExceeded.of_app(name) from None

    async def _warm_up(self, name: str) -> tuple[AppRecord, WorkerSupervisor]:
        while True:
            record, worker = self.worker(name)  # looked up again: it may have been replaced
            if not worker.is_cold:
                return record, worker
            try:
                await worker.warm_up()
            except OmnibusError as error:
                self._mark_broken(self._apps.get(name), worker, error)

    @property
    def warm_count(self) -> int:
        """Number of workers that have a process."""
        return len(self._warm)

    def check_read(self) -> None:
        """Raise ``StageUnavailable`` before the first read of the store."""
        if not self._read:
            raise AppsNotRead("this gateway has not read the registered apps yet: try again in a moment")

    def model_records(self) -> list[AppRecord]:
        """Return the records of apps that serve a model."""
        return [self._apps[name].serving for name in dict.fromkeys(self.routes.values())]

    # Changes

    async def follow_store(self) -> None:
        """Apply the changes of the store until cancelled."""
        async for apps in self._store.app_changes():
            try:
                self._apply_records(apps)
            except Exception:  # an error of one app must not affect the others
                log.exception("the apps cannot be followed")

    def expect_record(self, record: AppRecord, worker: WorkerSupervisor) -> None:
        """Use ``worker`` for ``record`` when it appears in the store."""
        self._expected.append((record, worker))

    def withdraw_record(self, record: AppRecord) -> None:
        """Stop expecting ``record``."""
        self._expected = [entry for entry in self._expected if entry[0] is not record]

    def has_worker(self, worker: WorkerSupervisor) -> bool:
        """Return True if ``worker`` serves an app here, or is draining."""
        return worker in self._workers

    async def wait_until(self, there: Callable[[dict[str, AppRecord]], bool], seconds: float) -> bool:
        """Wait until ``there`` is true of the records; return False after ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                while not there(self.records):
                    await self._turn.wait()
        except TimeoutError:
            return False
        return True

    async def drain(self, seconds: float) -> None:
        """Wait until all requests have finished."""
        await asyncio.gather(*(worker.drain(seconds) for worker in self._workers), return_exceptions=True)

    async def shutdown(self) -> None:
        """Stop all workers."""
        self._aside.close()
        for task in self._tasks:
            task.cancel()
        stopping = [worker.stop() for worker in self._workers]
        await asyncio.gather(*self._tasks, *stopping, return_exceptions=True)

    def _apply_records(self, apps: Mapping[str, AppRecord]) -> None:
        current = {name: record for name, record in apps.items() if VERSION_SEPARATOR not in name}
        for name in self._apps.keys() - current.keys():
            self._remove_app(name)
        for name, record in current.items():
            served_app = self._apps.get(name)
            if served_app is None or served_app.record != record:
                self._change_app(served_app or ServedApp(record), record)
        self._aside.update_records({name: record for name, record in apps.items() if VERSION_SEPARATOR in name})
        self._read = True
        self._update_routes()

    def _remove_app(self, name: str) -> None:
        log.info("app %s is unregistered", name)
        served_app = self._apps.pop(name)
        if served_app.starting is not None:
            served_app.starting.cancel()
        if served_app.worker is not None:
            self._start_task(self._retire_worker(served_app.worker))

    def _change_app(self, served_app: ServedApp, record: AppRecord) -> None:
        self._apps[record.name] = served_app
        served_app.record = record
        served_app.problem = None
        if served_app.starting is not None:
            served_app.starting.cancel()
        worker = next((worker for expected_record, worker in self._expected if expected_record == record), None)
        if worker is not None:
            self.withdraw_record(record)
            self._switch_worker(served_app, worker)
        else:
            served_app.starting = self._start_task(self._start_with_retries(served_app, record))

    def _switch_worker(self, served_app: ServedApp, worker: WorkerSupervisor) -> None:
        old, served_app.worker = served_app.worker, worker
        self._workers.add(worker)
        served_app.serving, served_app.problem = served_app.record, None
        log.info("app %s version %d is ready", served_app.record.name, served_app.record.version)
        if old is not None:
            self._start_task(self._retire_worker(old))
        self._update_routes()

    def _update_routes(self) -> None:
        """Rebuild the routes from the serving records; an app that never started has those of its latest record."""
        app_records = [
            served_app.serving if served_app.worker is not None else served_app.record
            for served_app in self._apps.values()
        ]
        self.routes = {(route, record.model): record.name for record in app_records for route in record.all_routes}
        self._turn.set()
        self._turn = asyncio.Event()

    def _mark_broken(self, served_app: ServedApp | None, worker: WorkerSupervisor, error: OmnibusError) -> None:
        """Mark the app as broken: ``worker`` did not start for a call. Retries the start."""
        if served_app is None or served_app.worker is not worker:
            return
        served_app.worker = None
        self._workers.discard(worker)
        served_app.starting = self._start_task(self._start_with_retries(served_app, served_app.record, error))
        self._set_problem(served_app, served_app.record, error)

    async def _start_with_retries(
        self, served_app: ServedApp, record: AppRecord, failure: OmnibusError | None = None
    ) -> None:
        """Start the worker of ``record``, and retry after errors. ``failure`` is an error of a previous start."""
        backoff = Backoff(BROKEN_APP_RETRIES)
        while True:
            if failure is not None:
                await asyncio.sleep(RETRY_PAUSE_SECONDS if isinstance(failure, Retryable) else backoff.next_delay())
            try:
                worker = await self._start_worker(served_app, record)
                break
            except Exception as error:  # code of an app may raise anything
                if not isinstance(error, OmnibusError):
                    log.exception("app %s version %d", record.name, record.version)
                failure = (
                    error if isinstance(error, OmnibusError) else Fatal("its worker cannot be started: see the log")
                )
                self._set_problem(served_app, record, failure)
        self._switch_worker(served_app, worker)

    def _set_problem(self, served_app: ServedApp, record: AppRecord, error: OmnibusError) -> None:
        served_app.problem = error.to_problem()
        log.error("app %s version %d does not start here: %s", record.name, record.version, error)
        self._update_routes()

    async def _start_worker(self, served_app: ServedApp, record: AppRecord) -> WorkerSupervisor:
        """Create a worker of ``record``: cold if the pool is full, unless it replaces a warm one."""
        source_policy.check_allowed(record.source, self._settings)
        text = await self._store.source(record.source.sha256) if record.source.sha256 else ""
        was_warm = served_app.worker is not None and not served_app.worker.is_cold
        if not self._warm.has_room and not was_warm and served_app.problem is None:
            return self._hire(record.source, text, pool=self._warm, description=describe_record(record))
        worker = await self.load_worker(record.source, text)
        if worker.description.tasks != record.tasks:
            log.warning("app %s here has other unit tasks than when it was registered: update it", record.name)
        return worker

    async def load_worker(self, source: AppSource, text: str) -> WorkerSupervisor:
        """Start a worker. Raises the error of the app, and ``DeadlineExceeded``."""
        worker = self._hire(source, text, pool=self._warm)
        await worker.start()
        return worker

    async def _retire_worker(self, worker: WorkerSupervisor) -> None:
        """Stop a replaced worker after its last requests."""
        try:
            await worker.drain(self._settings.app_drain)
        finally:
            await worker.stop()
            self._workers.discard(worker)

    def _start_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a worker failed to stop: %s", task.exception())
