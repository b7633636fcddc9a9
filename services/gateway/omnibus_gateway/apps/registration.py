"""Registration, update and removal of apps at any gateway; the others follow through the store.

The worker of a new version starts first and describes the app. The app is registered when the description is accepted,
its own unit tasks have executors, and its record is in the store. Until then, nothing has changed.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import msgspec
from msgspec import UNSET

from omnibus import app_record as records
from omnibus.app.module_loader import UPLOAD
from omnibus.app.protocol import Description
from omnibus.app_record import AppRecord, AppSource, base_app_name
from omnibus.errors import AppFailed, BadRequest, Conflict, DeadlineExceeded, NotFound, OmnibusError, TooLarge
from omnibus.settings import GatewaySettings
from omnibus.store import AppConflict, Store
from omnibus_gateway.apps import source_policy, task_bindings
from omnibus_gateway.apps.canary import AppCanary
from omnibus_gateway.apps.pending_versions import DRAINING, STARTING, PendingVersions
from omnibus_gateway.apps.response_schemas import (
    CHAT_REQUEST,
    AppCanaryRequest,
    AppCanaryView,
    AppDeleted,
    AppDetail,
    AppView,
    SourceView,
    TaskOfApp,
    TaskView,
)
from omnibus_gateway.apps.served_apps import Registry
from omnibus_gateway.apps.worker_supervisor import WorkerSupervisor
from omnibus_gateway.core import Router

log = logging.getLogger(__name__)

#: Seconds within which this gateway must read its own write.
SYNC_TIMEOUT_SECONDS = 10.0
#: Maximum bytes of a record.
MAX_RECORD_BYTES = 256 << 10
#: Seconds between two checks for executors.
POLL_SECONDS = 0.05


class AppControl:
    """Operations of the control routes. There are no locks: the store orders concurrent changes."""

    def __init__(
        self, settings: GatewaySettings, store: Store, registry: Registry, router: Router, canary: AppCanary
    ) -> None:
        self._canary = canary
        self._settings = settings
        self._store = store
        self.registry = registry
        self._router = router
        self._aside = PendingVersions(settings, store)

    # Reads

    def list_apps(self) -> tuple[AppView, ...]:
        """List all apps. Raises ``StageUnavailable`` before the store was read."""
        self.registry.check_read()
        return tuple(self._app_view(record) for _, record in sorted(self.registry.records.items()))

    def describe_app(self, name: str) -> AppDetail:
        """Return the details of an app. Raises ``NotFound``."""
        record = self.registry.records.get(name)
        if record is None:
            self.registry.check_read()
            there = ", ".join(sorted(self.registry.records)) or "none"
            raise NotFound(f"unknown app {name[:80]!r} (registered apps: {there})", param="name")
        return self._app_detail(record)

    def list_tasks(self) -> tuple[TaskView, ...]:
        """List the unit tasks of the plan and the apps."""
        return task_bindings.list_task_views(self._router, self.registry.all_records)

    # Changes

    async def register(self, body: bytes) -> tuple[AppDetail, bool]:
        """Register the app in ``body``; returns it and True if it is new.

        An app with the same source and description is already registered. With a canary, the loaded app is a new
        version of the app of that name, and takes over if the canary finds no difference. Raises ``Rejected`` for an
        app that cannot be served, ``Conflict`` for one that would affect others, and ``DeadlineExceeded``.
        """
        request = source_policy.parse_request(body)
        submission, canary = source_policy.parse_source(request, self._settings), request.canary
        if submission is None:
            raise BadRequest("Missing required parameter: 'source'.", param="source")
        async with self._load_worker(submission.source, submission.text) as worker:
            source = await self._store_source(submission)
            apps = await self._store.apps()
            registered_app = apps.get(worker.description.name)
            record = _next_record(worker.description, source, registered_app)
            if registered_app is None:
                try:
                    await self._publish_record(record, None, apps, worker)
                except AppConflict:  # another gateway was faster, perhaps with the same app
                    registered_app = (await self._store.apps()).get(record.name)
                    if registered_app is None:
                        raise
            if registered_app is None:
                return self._app_detail(record), True
            if canary is not None:  # the same source may have other code
                proof = await self._publish_record(record, registered_app, apps, worker, canary)
                return self._app_detail(record, proof), False
        if not _is_same_app(record, registered_app):
            raise Conflict(
                f"another app {registered_app.name!r} is registered at version {registered_app.version}: "
                f"update it with PUT /v1/apps/{registered_app.name}, or choose another name for yours",
                param="name",
            )
        return self._app_detail(registered_app), False

    async def update(self, name: str, body: bytes) -> AppDetail:
        """Reload app ``name``, from the source in ``body`` if given. The old version serves in the meantime."""
        request = source_policy.parse_request(body)
        submission, canary = source_policy.parse_source(request, self._settings), request.canary
        apps = await self._store.apps()
        registered_app = apps.get(name)
        if registered_app is None:
            how = "register it with POST /v1/apps, or `omnibus app register`"
            raise NotFound(f"unknown app {name[:80]!r}: {how}", param="name")
        if submission is None:
            source_policy.check_allowed(registered_app.source, self._settings)
            text = await self._store.source(registered_app.source.sha256) if registered_app.source.sha256 else ""
            submission = source_policy.SubmittedSource(registered_app.source, text)
        async with self._load_worker(submission.source, submission.text) as worker:
            app_name = worker.description.name
            if app_name != name:
                raise BadRequest(
                    f"the source has the app {app_name[:80]!r}, not {name!r}: register it with POST /v1/apps",
                    param="name",
                )
            record = _next_record(worker.description, await self._store_source(submission), registered_app)
            proof = await self._publish_record(record, registered_app, apps, worker, canary)
        return self._app_detail(record, proof)

    async def unregister(self, name: str) -> AppDeleted:
        """Remove app ``name``: requests in flight finish, new ones are rejected. Raises ``NotFound``."""
        if base_app_name(name) != name:
            raise NotFound(f"unknown app {name[:80]!r}", param="name")
        registered_app = (await self._store.apps()).get(name)
        if registered_app is not None and task_bindings.own_tasks(registered_app):
            await self._aside.put_record(registered_app, DRAINING)
        await self._store.drop_app(name, registered_app.version if registered_app is not None else None)
        await self.registry.wait_until(lambda apps: name not in apps, SYNC_TIMEOUT_SECONDS)
        return AppDeleted(name=name, version=registered_app.version if registered_app is not None else None)

    @asynccontextmanager
    async def _load_worker(self, source: AppSource, text: str) -> AsyncIterator[WorkerSupervisor]:
        """Start a worker of ``source``; stop it after the block unless the registry has it."""
        try:
            worker = await self.registry.load_worker(source, text)
        except AppFailed as error:  # its code ended the process
            raise BadRequest(f"the app cannot be loaded: {error.message}") from error
        try:
            yield worker
        finally:
            if not self.registry.has_worker(worker):
                await worker.stop()

    async def _store_source(self, submission: source_policy.SubmittedSource) -> AppSource:
        """Return the source for the record; store the text of an upload."""
        if submission.source.kind != UPLOAD:
            return submission.source
        return msgspec.structs.replace(submission.source, sha256=await self._store.put_source(submission.text))

    async def _publish_record(
        self,
        record: AppRecord,
        before: AppRecord | None,
        apps: Mapping[str, AppRecord],
        worker: WorkerSupervisor,
        canary: AppCanaryRequest | None = None,
    ) -> AppCanaryView | None:
        """Make ``record`` the current version of its app, after its canary; returns the canary's result."""
        if record.model in self._router.loaded_adapters:
            raise Conflict(f"{record.model!r} is an adapter: give the app's model another name", param="model")
        task_bindings.check_app(record, self._router.plan, apps)
        new_tasks, old_tasks = (
            task_bindings.own_tasks(record),
            task_bindings.own_tasks(before) if before is not None else {},
        )
        new = any(old_tasks.get(name) != task for name, task in new_tasks.items())
        pending_record = await self._aside.put_record(record, STARTING) if new else None
        try:
            if pending_record is not None:
                task_bindings.check_app(record, self._router.plan, await self._store.apps())  # for concurrent changes
                await self._until_bound(record)
            proof = (
                await self._prove(record.name, canary, worker) if before is not None and canary is not None else None
            )
            if before is not None and old_tasks.keys() - new_tasks.keys():
                await self._aside.put_record(before, DRAINING)
            self.registry.expect_record(record, worker)
            try:
                await self._store.put_app(record, before.version if before is not None else 0)
                await self.registry.wait_until(lambda seen: _has_version(seen, record), SYNC_TIMEOUT_SECONDS)
            finally:
                self.registry.withdraw_record(record)
        finally:
            if pending_record is not None:
                await self._aside.drop_record(pending_record)
        log.info("app %s version %d is registered", record.name, record.version)
        return proof

    async def _prove(self, name: str, canary: AppCanaryRequest, worker: WorkerSupervisor) -> AppCanaryView:
        try:
            _, serving = self.registry.worker(name)
        except OmnibusError:  # broken here: there are only its recorded answers
            return await self._canary.prove(name, canary, worker, None)
        return await self._canary.prove(name, canary, worker, serving)

    async def _until_bound(self, record: AppRecord) -> None:
        """Wait for an executor of each own unit task of ``record``. Raises ``DeadlineExceeded``."""
        try:
            async with asyncio.timeout(self._settings.app_ready):
                while task_bindings.missing_executor_reason(record, self._router):  # noqa: ASYNC110 plan and members change on their own
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            why = task_bindings.missing_executor_reason(record, self._router)
            raise DeadlineExceeded(
                f"the app {record.name!r} is not registered: after {self._settings.app_ready:g} s {why}"
            ) from None

    # Views

    def _app_view(self, record: AppRecord) -> AppView:
        return AppView(
            name=record.name,
            version=record.version,
            state=record.state,
            route=record.route,
            model=record.model,
            streams=record.streams,
            tasks=tuple(task.name for task in record.tasks),
            worker=self.registry.worker_view(record.name),
        )

    def _app_detail(self, record: AppRecord, proof: AppCanaryView | None = None) -> AppDetail:
        source = record.source
        directory = source_policy.relative_directory(source, self._settings) if source.root else ""
        return AppDetail(
            name=record.name,
            version=record.version,
            state=record.state,
            route=record.route,
            model=record.model,
            streams=record.streams,
            chat=record.chat,
            routes=record.all_routes,
            invocable=record.invocable,
            about=record.about,
            doc=record.doc,
            source=SourceView(source.kind, source.module, directory, source.sha256),
            tasks=tuple(TaskOfApp(task.name, task.kind, task.model, task.component, task.own) for task in record.tasks),
            request=CHAT_REQUEST if record.chat else record.request,
            response=record.response,
            created=record.created,
            updated=record.updated,
            worker=self.registry.worker_view(record.name),
            canary=UNSET if proof is None else proof,
        )


def _next_record(description: Description, source: AppSource, registered_app: AppRecord | None) -> AppRecord:
    """Build the next record of an app, as read from the store."""
    now = time.time()
    record = AppRecord(
        name=description.name,
        version=registered_app.version + 1 if registered_app is not None else 1,
        source=source,
        route=description.route,
        model=description.model,
        tasks=description.tasks,
        request=description.request,
        response=description.response,
        streams=description.streams,
        doc=description.doc,
        chat=description.chat,
        routes=description.routes,
        about=description.about,
        invocable=description.invocable,
        created=registered_app.created if registered_app is not None else now,
        updated=now,
    )
    body = records.encode_app_record(record)
    if len(body) > MAX_RECORD_BYTES:
        raise TooLarge(
            f"the description of the app has {len(body)} bytes, at most {MAX_RECORD_BYTES} are allowed: simplify its "
            "types"
        )
    return records.decode_app_record(body)


def _is_same_app(record: AppRecord, registered_app: AppRecord) -> bool:
    """Return True if the app is already registered in this form."""
    when = {"version": registered_app.version, "created": registered_app.created, "updated": registered_app.updated}
    return msgspec.structs.replace(record, **when) == registered_app


def _has_version(apps: Mapping[str, AppRecord], record: AppRecord) -> bool:
    stored_record = apps.get(record.name)
    return stored_record is not None and stored_record.version >= record.version
