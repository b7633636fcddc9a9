"""Versions of apps that are not current, but whose own unit tasks run: not yet, or not any more.

They are records like the others, named ``<app>@<version>-<random>`` and without a route, so that the planner keeps
their unit tasks: of a version that is about to be registered (``starting``), and of one whose last requests
are finishing (``draining``). Each has its time, after which every gateway removes it: whoever put it there
may be gone.
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
#: Seconds that a record outlives its purpose.
RECORD_GRACE_SECONDS = 5.0
#: Seconds until the next attempt when the store was at fault.
RETRY_PAUSE_SECONDS = 1.0


class PendingVersions:
    """Puts such records into the store, and removes all whose time is over."""

    def __init__(self, settings: GatewaySettings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self.records: dict[str, AppRecord] = {}
        self._sweeps: dict[str, asyncio.Task[None]] = {}

    async def put_record(self, record: AppRecord, state: str) -> AppRecord:
        """Keep ``record`` aside, under a name that nobody else has."""
        name = f"{record.name}{VERSION_SEPARATOR}{record.version}-{secrets.token_hex(4)}"
        kept = msgspec.structs.replace(record, name=name, route="", model="", state=state, updated=time.time())
        await self._store.put_app(kept, 0)
        return kept

    async def drop_record(self, kept: AppRecord) -> None:
        """Remove it before its time; without a store it is left to the sweep."""
        try:
            await self._store.drop_app(kept.name, kept.version)
        except OmnibusError as error:
            log.info("%s: %s", kept.name, error)

    def update_records(self, records: Mapping[str, AppRecord]) -> None:
        """Take ``records`` as those that are aside now, and schedule the removal of each."""
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
