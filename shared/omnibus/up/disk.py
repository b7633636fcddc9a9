"""Disk of the NATS server. After the disk was full, the server writes nothing until it is restarted."""

import asyncio
import os
from pathlib import Path

import msgspec

from omnibus.process.logs import Log
from omnibus.up import health
from omnibus.up.ports import LOOPBACK
from omnibus.up.supervisor import Supervisor

_PROBE_SECONDS = 3.0
_ANSWER_SECONDS = 2.0
_RESTART_SECONDS = 30.0  # at least, between two restarts
#: Share of the free disk space that the server allows its streams when it starts.
_FREE_DISK_SHARE = 0.75
_MIN_BYTES = 1 << 20


class _Limits(msgspec.Struct):
    max_storage: int = 0


class Storage(msgspec.Struct):
    """Storage as ``/jsz`` reports it, in bytes: used, reserved by the streams' limits, and allowed by the server's."""

    storage: int = 0
    reserved_storage: int = 0
    config: _Limits = msgspec.field(default_factory=_Limits)

    @property
    def too_small(self) -> bool:
        """Return True if the server started with a full disk. Streams then cannot have the bytes that they reserved."""
        return self.config.max_storage < self.reserved_storage

    def fits_in(self, free: int) -> bool:
        """Return True if a server that starts now can satisfy its streams. It has ``free`` bytes on its disk."""
        return _FREE_DISK_SHARE * free >= max(self.reserved_storage - self.storage, _MIN_BYTES)


class StreamDisk:
    """Restarts the server ``name`` when the disk of ``directory`` has space again."""

    def __init__(self, supervisor: Supervisor, log: Log, name: str, directory: Path, monitor_port: int) -> None:
        self._supervisor = supervisor
        self._log = log
        self._name = name
        self._directory = directory
        self._port = monitor_port
        self._reported = False

    async def run(self) -> None:
        """Watch the server until this is cancelled."""
        while True:
            await asyncio.sleep(_PROBE_SECONDS)
            storage = await self._read_storage()
            if storage is None or not (storage.too_small or await self._cannot_write()):
                self._reported = False
                continue
            self._report_full()
            if storage.fits_in(_free_bytes(self._directory)):
                self._log.write_line(self._name, "its disk has space again: restarting it")
                self._supervisor.terminate(self._name)
                await asyncio.sleep(_RESTART_SECONDS)

    def _report_full(self) -> None:
        if not self._reported:
            consequence = "records and dead letters are lost until space is free, everything else is served"
            self._log.write_line(self._name, f"its disk at {self._directory} is full: {consequence}")
        self._reported = True

    async def _read_storage(self) -> Storage | None:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return msgspec.json.decode(await health.fetch_body(LOOPBACK, self._port, "/jsz"), type=Storage)
        except (TimeoutError, msgspec.DecodeError):  # it starts, ends or hangs, which other parts handle
            return None

    async def _cannot_write(self) -> bool:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await health.fetch_status(LOOPBACK, self._port, "/healthz") == "503"
        except TimeoutError:
            return False


def _free_bytes(directory: Path) -> int:
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize
