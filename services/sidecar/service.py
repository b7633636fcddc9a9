"""The sidecar as a service: settings from the environment, counters to Prometheus."""

from pathlib import Path

from omnibus import settings as environment
from omnibus.bus.subjects import token
from services.sidecar import metering
from services.sidecar.server import Sidecar
from services.sidecar.settings import MIB, SidecarSettings


class SidecarService:
    """One node's sidecar."""

    def __init__(self) -> None:
        wanted = environment.load(environment.SidecarSettings)
        Path(wanted.socket).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._sidecar = Sidecar(
            SidecarSettings(
                node=wanted.node_name,
                socket=wanted.socket,
                arena=f"omnibus-{token(wanted.node_name)}",
                size=wanted.arena_mib * MIB,
                clear_on_free=wanted.clear,
            )
        )

    async def startup(self) -> None:
        await self._sidecar.start()
        metering.watch(self._sidecar.snapshot)

    async def drain(self, seconds: float) -> None: ...

    async def shutdown(self) -> None:
        await self._sidecar.stop()
