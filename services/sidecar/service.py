"""The sidecar as a service: settings from the environment, counters to Prometheus."""

import os
import stat
from pathlib import Path

from omnibus import settings as environment
from omnibus.bus.subjects import subject_token
from omnibus.errors import BadRequest
from services.sidecar import metrics
from services.sidecar.server import Sidecar
from services.sidecar.settings import MIB, SidecarConfig


def check_directory(directory: Path) -> None:
    """Raise ``BadRequest`` for a directory in which another user could put a socket of its own in the place of ours."""
    there = directory.stat()
    if there.st_uid not in (0, os.geteuid()):
        raise BadRequest(f"OMNIBUS_SIDECAR_SOCKET: {directory} belongs to user {there.st_uid}: name another directory")
    if there.st_mode & stat.S_IWOTH and not there.st_mode & stat.S_ISVTX:
        raise BadRequest(f"OMNIBUS_SIDECAR_SOCKET: everybody may write to {directory}: chmod 0700 it, or name another")


class SidecarService:
    """One node's sidecar."""

    def __init__(self) -> None:
        wanted = environment.read_settings(environment.SidecarSettings)
        directory = Path(wanted.socket).parent
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_directory(directory)
        self._sidecar = Sidecar(
            SidecarConfig(
                node=wanted.node_name,
                socket=wanted.socket,
                arena=f"omnibus-{subject_token(wanted.node_name)}",
                size=wanted.arena_mib * MIB,
                clear_on_free=wanted.clear,
            )
        )

    async def startup(self) -> None:
        await self._sidecar.start()
        metrics.register_metrics(self._sidecar.snapshot)

    async def drain(self, seconds: float) -> None: ...

    async def shutdown(self) -> None:
        await self._sidecar.stop()
