"""Starting and draining versions of apps, whose own unit tasks run.

Their records are named ``<app>@<version>-<random>`` and have no route, so that the planner runs their unit tasks. A
record is ``starting`` before its version is registered, and ``draining`` while the last requests of its version finish.
Each record expires, and then every gateway removes it, because the gateway that wrote it may be gone.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Mapping

import msgspec

from omnibus.app_record import VERSION_SEPARATOR, AppRecord
from omnibus.errors import OmnibusError, Retryable
from omnibus.settings import GatewaySettings
from omnibus.store import Store

log = logging.getLogger(__name__)

STARTING, DRAINING = "starting", "draining"
#: Seconds after which an expired record is removed.
RECORD_GRACE_SECONDS = 5.0
#: Seconds until the next attempt after an error of the store.
RETRY_PAUSE_SECONDS = 1.0


class PendingVersions:
    """Writes such records to the store, and removes expired ones."""

    def __init__(self, settings: GatewaySettings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self.records: dict[str, AppRecord] = {}
        self._sweeps: dict[str, asyncio.Task[None]] = {}

    async def put_record(self, record: AppRecord, state: str) -> AppRecord:
        """Store ``record`` under a unique name."""
        name = f"{record.name}{VERSION_SEPARATOR}{record.version}-{secrets.token_hex(4)}"
        stored_record = msgspec.structs.replace(
            record, name=name, route="", routes=(), model="", state=state, updated=time.time()
        )
        await self._store.put_app(stored_record, 0)
        return stored_record

    async def drop_record(self, stored_record: AppRecord) -> None:
        """Remove a record before it expires; if the store fails, it expires later."""
        try:
            await self._store.drop_app(stored_record.name, stored_record.version)
        except OmnibusError as error:
            log.info("%s: %s", stored_record.name, error)

    def update_records(self, records: Mapping[str, AppRecord]) -> None:
        """Replace the known records by ``records``, and schedule the removal of each."""
        for name, record in self.records.items():
            if records.get(name) != record:
                self._sweeps.pop(name).cancel()
        for name, record in records.items():
            if name not in self._sweeps:
                self._sweeps[name] = asyncio.get_running_loop().create_task(self._drop_after_expiry(record))
        self.records = dict(records)

    def close(self) -> None:
        for task in self._sweeps.values():
            task.cancel()

    async def _drop_after_expiry(self, record: AppRecord) -> None:
        lasts = self._settings.app_drain + RECORD_GRACE_SECONDS
        if record.state == STARTING:
            lasts += self._settings.app_ready
        await asyncio.sleep(max(0.0, record.updated + lasts - time.time()))
        while True:
            try:
                await self._store.drop_app(record.name, record.version)
            except Retryable:
                await asyncio.sleep(RETRY_PAUSE_SECONDS)
                continue
            except OmnibusError as error:  # another gateway was faster
                log.info("%s: %s", record.name, error)
            return
