"""The gateway service: connections, the plan, the HTTP server."""

import asyncio
import ctypes
import logging
import secrets
import socket

import msgspec

from omnibus.bus import subjects
from omnibus.bus.messages import GatewayStatus
from omnibus.bus.nats import NatsBus
from omnibus.errors import Fatal, OmnibusError, StoreUnavailable
from omnibus.metrics import GATEWAY
from omnibus.plan import Plan
from omnibus.service import until_cancelled
from omnibus.settings import BusSettings, GatewaySettings, SidecarSettings, StoreSettings, load
from omnibus.store import Store
from omnibus.tensors.client import TensorClient
from services.gateway.apps.service import Apps
from services.gateway.chat import Chat
from services.gateway.dispatch import Dispatcher
from services.gateway.fetch import Fetcher, FetchRules
from services.gateway.files import Files
from services.gateway.http import Frontend
from services.gateway.keep import MediaKeep
from services.gateway.load import Loads
from services.gateway.members import Members
from services.gateway.records import Records
from services.gateway.replay import Replayer
from services.gateway.route import Router
from services.gateway.routes.table import Table
from services.gateway.run import Runs
from services.gateway.server import Server, server
from services.gateway.spoken import Spoken
from services.gateway.tenants import Tenancy
from services.gateway.videos.service import Videos

log = logging.getLogger(__name__)

#: Seconds until the next attempt to read a plan when the store was at fault.
AGAIN = 0.5
#: Parameters of glibc's mallopt(3).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


class GatewayService:
    """Wires the gateway together; see ``docs/architecture.md`` for the way of a request."""

    def __init__(self) -> None:
        self._settings = load(GatewaySettings)
        self._store = Store(load(StoreSettings))
        self._bus: NatsBus | None = None
        self._tensors: TensorClient | None = None
        self._dispatcher: Dispatcher | None = None
        self._keep = MediaKeep(self._settings.media_dir, self._settings.media_bytes)
        self._files = Files(self._settings)
        self._apps: Apps | None = None
        self._videos: Videos | None = None
        self._server: Server | None = None
        self._router: Router | None = None
        self._loads: Loads | None = None
        self._tenancy: Tenancy | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def startup(self) -> None:
        _reuse_large_buffers()
        settings, bus_settings, sidecar = self._settings, load(BusSettings), load(SidecarSettings)
        gateway = secrets.token_hex(3)
        self._bus = await NatsBus.connect(bus_settings, f"gateway-{gateway}")
        self._tensors = await TensorClient.connect(sidecar.socket, f"gateway-{gateway}", sidecar.node_name)
        await self._bus.open_records(bus_settings.record_seconds, bus_settings.record_bytes)
        members = Members()
        router = self._router = Router(gateway, members)
        limit = bus_settings.max_payload
        self._dispatcher = Dispatcher(gateway, self._bus, self._tensors, members, limit)
        await self._dispatcher.startup()
        records = Records(self._bus, settings.record == "full", self._keep)
        ports = None if settings.allow_private else FetchRules().ports
        rules = FetchRules(allow_http=settings.allow_http, allow_private=settings.allow_private, ports=ports)
        fetcher = Fetcher(rules)
        loads = self._loads = Loads(router, self._bus, limit)
        tenancy = self._tenancy = Tenancy(settings, self._store, router)
        await tenancy.startup(self._bus, lambda: self._announce("ready"))
        runs = Runs(settings, router, self._dispatcher, self._tensors, records, self._keep, loads, tenancy.admission)
        chat = Chat(runs, fetcher, Spoken(self._store, self._files, settings.file_seconds))
        replayer = Replayer(router, self._dispatcher, self._tensors, records, self._keep)
        await self._bus.respond(subjects.REPLAY, replayer.respond, queue="gateways")
        await self._bus.subscribe(subjects.event(subjects.CENSUS), lambda _: self._announce("ready"))
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self._follow_plan(router)))
        self._apps = Apps(settings, self._store, router, runs, chat)
        self._apps.startup()
        self._videos = Videos(settings, self._store, runs)
        self._videos.startup()
        table = Table(runs, chat, self._files, self._videos)
        self._listen(Frontend(settings, chat, router, self._dispatcher, table, self._apps, tenancy.guard))
        log.info(
            "gateway %s on %s://%s:%d", gateway, "https" if settings.tls_cert else "http", settings.host, settings.port
        )

    async def _follow_plan(self, router: Router) -> None:
        """Read each new epoch. Without a store the plan that is known stays in force."""
        async for epoch in self._store.swaps():
            known = router.plan
            if not epoch or (known is not None and epoch == known.epoch):
                continue
            plan = await self._read(epoch)
            # A store that lost everything counts from 1 again: what is newer is told by the clock.
            if plan is not None and (known is None or plan.epoch > known.epoch or plan.created > known.created):
                router.plan = plan
                GATEWAY.epoch.set(plan.epoch)
                log.info("plan epoch %d: %s", plan.epoch, ", ".join(plan.models))
                self._announce("ready")

    async def _read(self, epoch: int) -> Plan | None:
        """The plan of ``epoch``; None when the store has lost it or it cannot be read."""
        while True:
            try:
                return await self._store.plan(epoch)
            except StoreUnavailable as error:  # an epoch is announced once, so stay with it
                log.warning("plan epoch %d: %s", epoch, error)
                await asyncio.sleep(AGAIN)
            except OmnibusError as error:
                log.error("plan epoch %d: %s", epoch, error)
                return None

    def _announce(self, state: str) -> None:
        """Say which plan is in force here: executors of the one before may go when all gateways have left it."""
        plan = self._router.plan if self._router is not None else None
        if self._router is None or plan is None or self._bus is None:
            return
        status = GatewayStatus(self._router.gateway, plan.epoch, plan.created, state)
        try:
            self._bus.publish(subjects.event(subjects.GATEWAY), msgspec.json.encode(status))
        except OmnibusError as error:
            log.warning("status not sent: %s", error)

    def _listen(self, frontend: Frontend) -> None:
        settings = self._settings
        try:
            listener = socket.create_server((settings.host, settings.port), backlog=2048)
        except OSError as error:
            raise Fatal(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}") from error
        self._server = server(frontend.application(), settings.tls_cert, settings.tls_key)
        self._tasks.append(asyncio.get_running_loop().create_task(self._server.serve(sockets=[listener])))

    async def drain(self, seconds: float) -> None:
        if self._server is not None:
            self._server.should_exit = True
        if self._videos is not None:  # others go on with what is being made here
            await self._videos.shutdown()
        if self._dispatcher is not None and self._apps is not None:
            await asyncio.gather(self._dispatcher.idle(seconds), self._apps.drain(seconds))

    async def shutdown(self) -> None:
        if self._server is not None:
            self._server.should_exit = True
            self._server.force_exit = True
        for task in self._tasks:
            await until_cancelled(task)
        if self._videos is not None:
            await self._videos.shutdown()
        if self._tenancy is not None:
            await self._tenancy.shutdown()
        if self._apps is not None:
            await self._apps.shutdown()
        if self._dispatcher is not None:
            await self._dispatcher.shutdown()
        if self._loads is not None:
            self._loads.close()
        self._announce("gone")
        if self._bus is not None:
            await self._bus.drain()
        if self._tensors is not None:
            await self._tensors.close()
        self._keep.close()
        self._files.close()
        await self._store.close()


def _reuse_large_buffers() -> None:
    """Keep freed megabytes: by default glibc returns each to the system, and the next one faults in anew."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 32 << 20)
        mallopt(M_TRIM_THRESHOLD, 64 << 20)
