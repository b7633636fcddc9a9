"""The sidecar as a service: settings from the environment, counters to Prometheus."""

import asyncio
import os
import stat
from contextlib import suppress
from pathlib import Path

from omnibus import settings as environment
from omnibus.bus.nats import NatsBus
from omnibus.bus.subjects import subject_token
from omnibus.errors import BadRequest
from omnibus_sidecar import metrics
from omnibus_sidecar.nodes import PeerDiscovery
from omnibus_sidecar.peers import credentials
from omnibus_sidecar.server import Sidecar
from omnibus_sidecar.settings import MIB, PeerConfig, SidecarConfig

_DRAIN_LOOK_SECONDS = 0.1


def check_directory(directory: Path) -> None:
    """Raise ``BadRequest`` if another user could replace sockets in ``directory``."""
    there = directory.stat()
    if there.st_uid not in (0, os.geteuid()):
        raise BadRequest(
            f"{directory} of OMNIBUS_SIDECAR_SOCKET belongs to user {there.st_uid}; choose another directory"
        )
    if there.st_mode & stat.S_IWOTH and not there.st_mode & stat.S_ISVTX:
        raise BadRequest(f"{directory} of OMNIBUS_SIDECAR_SOCKET is world-writable; chmod 0700 it, or choose another")


class SidecarService:
    """The sidecar of one node."""

    def __init__(self) -> None:
        settings = environment.read_settings(environment.SidecarSettings)
        directory = Path(settings.socket).parent
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_directory(directory)
        self._sidecar = Sidecar(
            SidecarConfig(
                node=settings.node_name,
                socket=settings.socket,
                arena=f"omnibus-{subject_token(settings.node_name)}",
                size=settings.arena_mib * MIB,
                clear_on_free=settings.clear,
                peers=_peer_config(settings),
            )
        )
        self._host = settings.advertise or settings.host
        self._bus: NatsBus | None = None
        self._nodes: PeerDiscovery | None = None

    async def startup(self) -> None:
        await self._sidecar.start()
        metrics.register_metrics(self._sidecar.snapshot)
        if self._sidecar.peers is not None:
            self._bus = await NatsBus.connect(environment.read_settings(environment.BusSettings), "sidecar")
            self._nodes = PeerDiscovery(self._bus, self._sidecar, self._host)
            await self._nodes.start()

    async def drain(self, seconds: float) -> None:
        """Wait for the end of all leases that other nodes may read."""
        if self._nodes is None:
            return
        self._nodes.begin_drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._sidecar.snapshot()["blocks"]:  # noqa: ASYNC110 once, at the end
                    await asyncio.sleep(_DRAIN_LOOK_SECONDS)

    async def shutdown(self) -> None:
        try:
            if self._nodes is not None:
                await self._nodes.close()
            if self._bus is not None:
                await self._bus.drain()
        finally:  # remove the arena even if the bus fails
            await self._sidecar.stop()


def _peer_config(settings: environment.SidecarSettings) -> PeerConfig | None:
    """Return the settings of pulls; None on a single node.

    Raises ``BadRequest`` for files that cannot be used, and for a listener without secret or TLS.
    """
    if not settings.host:
        return None
    _check_transport(settings)
    secret = credentials.read_secret(settings.secret_file) if settings.secret_file else b""
    client, server = credentials.load_tls(settings.tls_ca, settings.tls_cert, settings.tls_key)
    if not secret and server is None:
        raise BadRequest(
            "OMNIBUS_SIDECAR_HOST opens this node to others: set OMNIBUS_SIDECAR_SECRET_FILE, the same for all nodes, "
            "or OMNIBUS_SIDECAR_TLS_CA, OMNIBUS_SIDECAR_TLS_CERT and OMNIBUS_SIDECAR_TLS_KEY"
        )
    if not 0 < settings.incoming <= 1 or settings.links < 1 or min(settings.connect, settings.stall) <= 0:
        raise BadRequest(
            "OMNIBUS_SIDECAR_INCOMING must be above 0 and at most 1, OMNIBUS_SIDECAR_LINKS at least 1, "
            "OMNIBUS_SIDECAR_CONNECT and OMNIBUS_SIDECAR_STALL above 0"
        )
    return PeerConfig(
        host=settings.host,
        port=settings.port,
        secret=secret,
        tls_client=client,
        tls_server=server,
        transport=settings.transport,
        links=settings.links,
        incoming=settings.incoming,
        connect_seconds=settings.connect,
        stall_seconds=settings.stall,
    )


def _check_transport(settings: environment.SidecarSettings) -> None:
    if settings.transport not in ("tcp", "ucx"):
        raise BadRequest(f"OMNIBUS_SIDECAR_TRANSPORT must be tcp or ucx, not {settings.transport!r}")
    if settings.transport == "ucx" and settings.tls_ca:
        raise BadRequest(
            "UCX sends bytes unencrypted, but OMNIBUS_SIDECAR_TLS_CA requires encryption: use "
            "OMNIBUS_SIDECAR_SECRET_FILE alone with OMNIBUS_SIDECAR_TRANSPORT=ucx, or TLS with tcp"
        )
