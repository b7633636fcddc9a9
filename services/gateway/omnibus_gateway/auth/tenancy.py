"""Wiring of everything about tenants at one gateway."""

import asyncio
import logging
from collections.abc import Callable

from starlette.types import ASGIApp

from omnibus.bus import Bus, subjects
from omnibus.bus.heartbeats import GATEWAY_HEARTBEAT_SECONDS
from omnibus.cluster.presence import follow_events
from omnibus.service import until_cancelled
from omnibus.settings import BusSettings, GatewaySettings
from omnibus.store import Store
from omnibus_gateway.auth.admin import AdminAuth, is_loopback
from omnibus_gateway.auth.middleware import ApiKeyMiddleware
from omnibus_gateway.auth.origin import SameOriginMiddleware
from omnibus_gateway.routing.router import Router
from omnibus_gateway.tenancy import metrics
from omnibus_gateway.tenancy.admission import Admission
from omnibus_gateway.tenancy.cost_model import RequestCostModel
from omnibus_gateway.tenancy.deferred import DeferredWork
from omnibus_gateway.tenancy.gateway_count import GatewayPeers
from omnibus_gateway.tenancy.key_store import KeyStore, KeyView
from omnibus_gateway.tenancy.log_budget import LogBudget
from omnibus_gateway.tenancy.rate_limits import RateLimits

log = logging.getLogger(__name__)


class Tenancy:
    """Keys, limits and admission of tenants. Without configured keys there is no ``admission`` and no authentication.

    ``peers`` counts gateways in both cases.
    """

    def __init__(self, settings: GatewaySettings, store: Store, router: Router, bus: BusSettings | None = None) -> None:
        self.on = settings.keys or bool(settings.keys_file)
        self.admission: Admission | None = None
        self._settings = settings
        self._store = store
        self.peers = GatewayPeers(router.gateway)
        self._limits = RateLimits(lambda: self.peers.count)
        self._costs = RequestCostModel(router)
        self._book = KeyStore(settings, store, self._limits.update_keys)
        self.deferred = DeferredWork()
        self.records = LogBudget()
        if self.on:
            log, share = bus or BusSettings(), settings.tenant_share
            self.records = LogBudget(log.record_bytes, log.record_seconds, share, lambda: self.peers.count)
            events = LogBudget(log.response_bytes, log.response_seconds, share, lambda: self.peers.count)
            self.deferred = DeferredWork(self._book, self._limits, events)
        self._tasks: list[asyncio.Task[None]] = []
        if self.on:
            self.admission = Admission(settings, router, self._costs, self._limits, lambda: self.peers.count)
            metrics.watch_queues(self.admission.queues)

    async def startup(self, bus: Bus, beat: Callable[[], None]) -> None:
        """Follow keys and other gateways; ``beat`` announces this gateway. Raises ``BadRequest``."""
        if self.on:
            self._book.load_file()
        await follow_events(bus, {subjects.GATEWAY: self.peers.handle_status})
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(_repeat_every(GATEWAY_HEARTBEAT_SECONDS, beat))]
        if not self.on:
            if not is_loopback(self._settings.host):
                log.warning(
                    "any client that reaches %s can use this gateway: OMNIBUS_GATEWAY_KEYS=true requires API keys",
                    self._settings.host,
                )
            return
        self._tasks += [loop.create_task(each) for each in (self._book.follow_sources(), self._follow_profiles())]

    def key_view(self) -> KeyView:
        """Return the current API keys, for operators."""
        return self._book.view(self.on)

    def guard_application(self, application: ASGIApp) -> ASGIApp:
        """Protect ``application`` with keys, or from other sites' pages without keys."""
        if not self.on:
            return SameOriginMiddleware(application, self._settings)
        return ApiKeyMiddleware(application, AdminAuth(self._settings), self._book, self._limits, self._store)

    async def shutdown(self) -> None:
        for task in self._tasks:
            await until_cancelled(task)

    async def _follow_profiles(self) -> None:
        async for cost_profiles in self._store.profile_changes():
            self._costs.profiles = cost_profiles


async def _repeat_every(seconds: float, do: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(seconds)
        do()
