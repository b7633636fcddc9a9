"""The gateway service: connections, the plan, the HTTP server."""

import asyncio
import ctypes
import logging
import secrets
import socket

from omnibus.bus import subjects
from omnibus.bus.nats import NatsBus
from omnibus.errors import Fatal, OmnibusError
from omnibus.metrics import GATEWAY
from omnibus.service import until_cancelled
from omnibus.settings import BusSettings, GatewaySettings, SidecarSettings, StoreSettings, load
from omnibus.store import Store
from omnibus.tensors.client import TensorClient
from services.gateway.apps.service import Apps
from services.gateway.chat import Chat
from services.gateway.dispatch import Dispatcher
from services.gateway.fetch import Fetcher, FetchRules
from services.gateway.http import Frontend
from services.gateway.keep import MediaKeep
from services.gateway.members import Members
from services.gateway.records import Records
from services.gateway.replay import Replayer
from services.gateway.route import Router
from services.gateway.run import Runs
from services.gateway.server import Server, server

log = logging.getLogger(__name__)

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
        self._apps: Apps | None = None
        self._server: Server | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def startup(self) -> None:
        _reuse_large_buffers()
        settings, bus_settings, sidecar = self._settings, load(BusSettings), load(SidecarSettings)
        gateway = secrets.token_hex(3)
        self._bus = await NatsBus.connect(bus_settings, f"gateway-{gateway}")
        self._tensors = await TensorClient.connect(sidecar.socket, f"gateway-{gateway}", sidecar.node_name)
        await self._bus.open_records(bus_settings.record_seconds, bus_settings.record_bytes)
        members = Members()
        router = Router(gateway, members)
        limit = bus_settings.max_payload
        self._dispatcher = Dispatcher(gateway, self._bus, self._tensors, members, limit)
        await self._dispatcher.startup()
        records = Records(self._bus, settings.record == "full", self._keep)
        ports = None if settings.allow_private else FetchRules().ports
        rules = FetchRules(allow_http=settings.allow_http, allow_private=settings.allow_private, ports=ports)
        fetcher = Fetcher(rules)
        runs = Runs(settings, router, self._dispatcher, self._tensors, records, self._keep)
        chat = Chat(runs, fetcher)
        replayer = Replayer(router, self._dispatcher, self._tensors, records, self._keep)
        await self._bus.respond(subjects.REPLAY, replayer.respond, queue="gateways")
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self._follow_plan(router)))
        self._apps = Apps(settings, self._store, router, runs, chat)
        self._apps.startup()
        self._listen(Frontend(settings, chat, router, self._dispatcher, self._apps))
        log.info("gateway %s on http://%s:%d", gateway, settings.host, settings.port)

    async def _follow_plan(self, router: Router) -> None:
        """Read each new epoch. Without a store the plan that is known stays in force."""
        async for epoch in self._store.swaps():
            known = router.plan
            if not epoch or (known is not None and epoch == known.epoch):
                continue
            try:
                plan = await self._store.plan(epoch)
            except OmnibusError as error:
                log.error("plan epoch %d: %s", epoch, error)
                continue
            # A store that lost everything counts from 1 again: what is newer is told by the clock.
            if plan is not None and (known is None or plan.epoch > known.epoch or plan.created > known.created):
                router.plan = plan
                GATEWAY.epoch.set(plan.epoch)
                log.info("plan epoch %d: %s", plan.epoch, ", ".join(plan.models))

    def _listen(self, frontend: Frontend) -> None:
        settings = self._settings
        try:
            listener = socket.create_server((settings.host, settings.port), backlog=2048)
        except OSError as error:
            raise Fatal(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}") from error
        self._server = server(frontend.application())
        self._tasks.append(asyncio.get_running_loop().create_task(self._server.serve(sockets=[listener])))

    async def drain(self, seconds: float) -> None:
        if self._server is not None:
            self._server.should_exit = True
        if self._dispatcher is not None and self._apps is not None:
            await asyncio.gather(self._dispatcher.idle(seconds), self._apps.drain(seconds))

    async def shutdown(self) -> None:
        if self._server is not None:
            self._server.should_exit = True
            self._server.force_exit = True
        for task in self._tasks:
            await until_cancelled(task)
        if self._apps is not None:
            await self._apps.shutdown()
        if self._dispatcher is not None:
            await self._dispatcher.shutdown()
        if self._bus is not None:
            await self._bus.drain()
        if self._tensors is not None:
            await self._tensors.close()
        self._keep.close()
        await self._store.close()


def _reuse_large_buffers() -> None:
    """Keep freed megabytes: by default glibc returns each to the system, and the next one faults in anew."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 32 << 20)
        mallopt(M_TRIM_THRESHOLD, 64 << 20)
