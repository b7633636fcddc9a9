"""The gateway service: connections, the plan, the HTTP server."""

import asyncio
import ctypes
import logging
import secrets
import socket
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any

from omnibus import tracing
from omnibus.bus import subjects
from omnibus.bus.nats import NatsBus
from omnibus.cluster.digests import HeartbeatRelay
from omnibus.cluster.nodes import NodeDirectory
from omnibus.cluster.presence import follow_events
from omnibus.errors import Fatal
from omnibus.process.tuning import raise_descriptor_limit, tune_garbage_collector
from omnibus.service import until_cancelled
from omnibus.settings import BusSettings, GatewaySettings, SidecarSettings, StoreSettings, read_settings
from omnibus.store import Store
from omnibus.tensors.client import TensorClient, connect_when_ready
from omnibus_gateway.adapters.control import AdapterControl
from omnibus_gateway.application import Frontend, RouteTable
from omnibus_gateway.apps.service import AppService
from omnibus_gateway.auth.access_rules import check_token
from omnibus_gateway.auth.tenancy import Tenancy
from omnibus_gateway.batches.service import Batches
from omnibus_gateway.console.recorder import HistoryRecorder
from omnibus_gateway.console.routes import Console
from omnibus_gateway.dispatch.dispatcher import Dispatcher
from omnibus_gateway.http.connection import ConnectionLimits
from omnibus_gateway.http.response import OpenRequests
from omnibus_gateway.http.server import GatewayServer, create_server
from omnibus_gateway.media.blob_store import BLOB, MediaStore
from omnibus_gateway.media.client_files import ClientFiles
from omnibus_gateway.media.fetcher import Fetcher, FetchRules
from omnibus_gateway.media.files import FILE, FileStore, MadeFiles
from omnibus_gateway.media.object_storage import open_made_files
from omnibus_gateway.media.peers import FileResponder, FileSource, KeptFile, MediaPeers
from omnibus_gateway.media.spoken_answers import SpokenAnswers
from omnibus_gateway.pricing.meter import UsageMeter
from omnibus_gateway.realtime.service import Realtime
from omnibus_gateway.request.continuing import Continuations
from omnibus_gateway.request.load_report import LoadReporter, register_metrics
from omnibus_gateway.request.record import HOLD_SECONDS, DeadLetters, Records, parse_record_rules
from omnibus_gateway.request.request import RequestFactory
from omnibus_gateway.rerun.replayer import Replayer
from omnibus_gateway.rerun.spare_room import waiting_counter
from omnibus_gateway.responses.service import Responses
from omnibus_gateway.responses.sockets import ResponseSockets
from omnibus_gateway.routing.executors import ExecutorTable
from omnibus_gateway.routing.plan_follower import PlanFollower
from omnibus_gateway.routing.replicas import Nearness
from omnibus_gateway.routing.router import Router
from omnibus_gateway.shadow.mirror import CandidateMirror
from omnibus_gateway.tasks.chat import Chat
from omnibus_gateway.tenancy.tenant import tenant_account
from omnibus_gateway.videos.service import Videos
from omnibus_gateway.videos.storage import VIDEO

log = logging.getLogger(__name__)

#: Seconds that a gateway waits for the plan in force, or for the news that there is none, before it opens its port: a
#: client whose gateway has died connects to one that can answer.
PLAN_WAIT_SECONDS = 2.0
#: Seconds in which a stopping gateway rejects requests on open connections, before it closes its port.
LINGER_SECONDS = 1.0
#: Seconds that the connections of a stopping gateway may take to close: last requests, and slow readers.
CLOSE_SECONDS = 5.0
#: Seconds that a stopping gateway may take to send the last traces.
TRACE_FLUSH_SECONDS = 2.0
#: Parameters of glibc's mallopt(3).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


class GatewayService:
    """Wires the gateway together; see ``docs/architecture.md`` for the path of a request."""

    def __init__(self) -> None:
        self._settings = read_settings(GatewaySettings)
        self._store = Store(read_settings(StoreSettings))
        self._dispatcher: Dispatcher | None = None
        self._keep = MediaStore(self._settings.media_dir, self._settings.media_bytes)
        self._peers: MediaPeers | None = None
        self._files = open_made_files(self._settings)
        self._apps: AppService | None = None
        self._videos: Videos | None = None
        self._responses: Responses | None = None
        self._batches: Batches | None = None
        self._realtime: Realtime | None = None
        self._response_sockets: ResponseSockets | None = None
        self._console: Console | None = None
        self._server: GatewayServer | None = None
        self._serving: asyncio.Task[None] | None = None
        self._requests = OpenRequests()  # those of the server, once there is one
        self._closing = AsyncExitStack()  # callbacks of shutdown, last first

    async def startup(self) -> None:
        _reuse_large_buffers()
        raise_descriptor_limit()
        settings = self._settings
        self._record_rules = parse_record_rules(settings.record, settings.record_tenants)
        check_token(settings)
        tracing.start_tracing("gateway")
        self._closing.push_async_callback(asyncio.to_thread, tracing.stop_tracing, TRACE_FLUSH_SECONDS)
        self._closing.push_async_callback(self._store.close)
        self._closing.callback(self._files.close)
        self._closing.callback(self._keep.close)
        gateway = secrets.token_hex(3)
        bus, tensors = await self._connect_bus(gateway)
        router = await self._create_router(gateway, bus, tensors.node)
        plans = PlanFollower(router, self._store, bus, read_settings(SidecarSettings).node_name)
        self._closing.callback(plans.announce_status, "gone")
        tenancy = Tenancy(settings, self._store, router, read_settings(BusSettings))
        self._peers = self._keep.peers = MediaPeers(gateway, bus, tensors, lambda: tenancy.peers.count - 1)
        if isinstance(self._files, FileStore):
            self._files.peers = self._peers
        runs = await self._create_requests(bus, tensors, plans, tenancy)
        fetcher = Fetcher(_fetch_rules(settings))
        continuations = Continuations(settings, self._store, bus)
        await continuations.startup()
        account = partial(tenant_account, settings)
        spoken_answers = SpokenAnswers(self._store, self._files, settings.file_seconds, account)
        chat = Chat(runs, fetcher, spoken_answers, continuations, ClientFiles(settings, self._store))
        self._closing.push_async_callback(chat.schemas.close)
        runs.quotes.store = self._store
        await bus.subscribe(subjects.event_subject(subjects.CENSUS), plans.answer_census)
        await self._open_frontend(bus, runs, chat, tenancy, plans)

    async def _create_router(self, gateway: str, bus: NatsBus, node: str) -> Router:
        """Create a router that follows executors and nodes through their events."""
        members, nodes = ExecutorTable(), NodeDirectory()
        await nodes.listen(bus)
        return Router(gateway, members, Nearness(node, members, nodes, self._settings.near))

    async def _connect_bus(self, gateway: str) -> tuple[NatsBus, TensorClient]:
        """Connect to the sidecar and the bus, and open the bus's streams."""
        settings, sidecar = read_settings(BusSettings), read_settings(SidecarSettings)
        tensors = await connect_when_ready(sidecar.socket, f"gateway-{gateway}", sidecar.node_name)
        self._closing.push_async_callback(tensors.close)
        bus = await NatsBus.connect(settings, f"gateway-{gateway}")
        self._closing.push_async_callback(bus.drain)
        await bus.open_records(settings.record_seconds, settings.record_bytes)
        await bus.open_records(settings.dead_seconds, settings.dead_bytes, subjects.DEADLETTERS)
        await bus.open_records(settings.response_seconds, settings.response_bytes, subjects.RESPONSES)
        return bus, tensors

    async def _create_requests(
        self, bus: NatsBus, tensors: TensorClient, plans: PlanFollower, tenancy: Tenancy
    ) -> RequestFactory:
        """Create the components between a request's route and its end."""
        router = plans.router
        settings, limit = self._settings, bus.max_body
        loads = LoadReporter(router, bus, limit)
        self._closing.callback(loads.close)
        dispatcher = self._dispatcher = Dispatcher(
            router.gateway, bus, tensors, router.members, limit, settings.quarantine
        )
        dispatcher.keeps = settings.record == "stages"
        dispatcher.retention.policy, dispatcher.retention.limit = settings.retain, settings.retain_bytes
        await dispatcher.startup()
        self._closing.push_async_callback(dispatcher.shutdown)
        dead = DeadLetters(bus, settings.deadletters == "full", limit)
        records = Records(bus, UsageMeter(router), self._record_rules, self._keep, dead, HOLD_SECONDS, tenancy.records)
        self._closing.callback(records.close)
        register_metrics(settings, router, router.members, dispatcher, dead)
        replayer = Replayer(router, dispatcher, tensors, records, self._keep)
        await bus.add_responder(subjects.REPLAY, replayer.respond, queue="gateways")
        await tenancy.startup(bus, lambda: plans.announce_status("ready"))
        self._closing.push_async_callback(tenancy.shutdown)
        relay = HeartbeatRelay(router.gateway, bus)
        await follow_events(bus, {subjects.GATEWAY: relay.handle_gateway}, partial(log.warning, "%s"))
        relay.startup()
        self._closing.push_async_callback(relay.shutdown)
        runs = RequestFactory(settings, router, dispatcher, tensors, records, self._keep, loads, tenancy.admission)
        mirror = CandidateMirror(router, records, replayer, self._store, waiting_counter(runs))
        mirror.startup()
        self._closing.push_async_callback(mirror.shutdown)
        await follow_events(bus, {subjects.PLAN: runs.room.handle_plan_event}, partial(log.warning, "%s"))
        self._closing.callback(runs.room.close)
        return runs

    async def _open_frontend(
        self, bus: NatsBus, runs: RequestFactory, chat: Chat, tenancy: Tenancy, plans: PlanFollower
    ) -> None:
        """Follow plans, apps and videos, and answer over HTTP."""
        settings, router = self._settings, runs.router
        apps = self._apps = AppService(settings, self._store, router, runs, chat)
        apps.startup()
        self._closing.push_async_callback(apps.shutdown)
        adapters = AdapterControl(settings, self._store, router, chat, apps.model_names)
        self._start_task(adapters.follow_store())
        videos = self._videos = Videos(settings, self._store, runs, self._peers, tenancy.deferred)
        videos.startup()
        self._closing.push_async_callback(videos.shutdown)
        responder = FileResponder(router.gateway, bus, runs.tensors, _kept_files(self._keep, self._files, videos))
        await responder.startup()
        self._closing.push_async_callback(responder.shutdown)
        self._start_task(plans.follow_plans())
        self._start_task(plans.follow_cell_shares())
        responses = self._responses = Responses(settings, self._store, bus, chat, router.gateway, tenancy.deferred)
        await responses.startup()
        self._closing.push_async_callback(responses.shutdown)
        table = RouteTable(runs, chat, self._files, videos, responses, tenancy.deferred)
        self._realtime, self._response_sockets = table.sessions, table.response_sockets
        batches = self._batches = table.batches
        batches.startup()
        self._closing.push_async_callback(batches.shutdown)
        console = self._console = Console(settings, self._store, bus, router, tenancy.key_view)
        self._start_task(console.alerts.run())
        if settings.history_seconds > 0:
            retention = settings.history_seconds
            history = HistoryRecorder(router.gateway, self._store, router.members, retention, console.failures)
            self._start_task(history.run())
        with suppress(TimeoutError):
            async with asyncio.timeout(PLAN_WAIT_SECONDS):
                await plans.read.wait()
        self._start_server(Frontend(settings, table, apps, adapters, tenancy.guard_application, console))
        self._closing.push_async_callback(console.close)
        scheme = "https" if settings.tls_cert else "http"
        log.info("gateway %s on %s://%s:%d", router.gateway, scheme, settings.host, settings.port)

    def _start_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._closing.push_async_callback(until_cancelled, task)
        return task

    def _start_server(self, frontend: Frontend) -> None:
        settings = self._settings
        # Built before the port opens: early connections wait in the backlog instead of being refused.
        limits = ConnectionLimits.from_settings(settings)
        self._requests = frontend.requests
        application = tracing.trace_http(frontend.build_application())
        direct = frontend.create_direct_route()
        self._server = create_server(application, settings.tls_cert, settings.tls_key, limits, direct)
        tune_garbage_collector()
        try:
            listener = socket.create_server((settings.host, settings.port), backlog=2048)
        except OSError as error:
            raise Fatal(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}") from error
        self._serving = self._start_task(self._server.serve(sockets=[listener]))

    async def drain(self, seconds: float) -> None:
        self._requests.begin_stop()
        if self._console is not None:
            await self._console.close()
        if self._videos is not None:  # other gateways continue the videos of this one
            await self._videos.shutdown()
        if self._responses is not None:
            await self._responses.leave_background()
        if self._batches is not None:
            await self._batches.shutdown()
        if self._realtime is not None:
            self._realtime.begin_stop()
        if self._response_sockets is not None:
            self._response_sockets.begin_stop()
        await self._linger_before_close()
        if self._dispatcher is not None and self._apps is not None:
            await asyncio.gather(
                self._requests.wait_finished(seconds), self._dispatcher.wait_idle(seconds), self._apps.drain(seconds)
            )
            if self._realtime is not None:
                await self._realtime.wait_closed(CLOSE_SECONDS)
            if self._response_sockets is not None:
                await self._response_sockets.wait_closed(CLOSE_SECONDS)
            await self._requests.end_all(self._dispatcher.fail_all)
        await self._close_server()

    async def _linger_before_close(self) -> None:
        """Reject requests on open connections for a while, before these close."""
        if self._server is not None and self._server.server_state.connections:
            await asyncio.sleep(LINGER_SECONDS)

    async def _close_server(self) -> None:
        """Close the port, and each connection after its last answer was sent."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await asyncio.wait({self._serving}, timeout=CLOSE_SECONDS)

    async def shutdown(self) -> None:
        if self._server is not None:
            self._server.should_exit = True
            self._server.force_exit = True
        await self._closing.aclose()


def _fetch_rules(settings: GatewaySettings) -> FetchRules:
    ports = None if settings.allow_private else FetchRules().ports
    return FetchRules(allow_http=settings.allow_http, allow_private=settings.allow_private, ports=ports)


def _kept_files(media: MediaStore, files: MadeFiles, videos: Videos) -> dict[str, FileSource]:
    """Sources of files that other gateways may read here."""

    async def locate_media(sha256: str) -> KeptFile | None:
        path = await media.locate(sha256)
        return KeptFile(path) if path is not None else None

    sources = {BLOB: FileSource(locate_media), VIDEO: FileSource(videos.locate)}
    if isinstance(files, FileStore):
        sources[FILE] = FileSource(files.locate, files.remove_local)
    return sources


def _reuse_large_buffers() -> None:
    """Keep freed megabytes: glibc's default returns them to the system, and reuse faults them in again."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 32 << 20)
        mallopt(M_TRIM_THRESHOLD, 64 << 20)
