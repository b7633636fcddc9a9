"""Wiring of everything about tenants at one gateway.

Authentication of all requests by API key, before reading their bodies.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from omnibus.api_key import KeyRecord, hash_key
from omnibus.bus import Bus, subjects
from omnibus.bus.census import Census
from omnibus.bus.heartbeats import GATEWAY_HEARTBEAT_SECONDS
from omnibus.cluster.presence import follow_events
from omnibus.errors import OmnibusError, Overloaded, Unauthorized
from omnibus.service import until_cancelled
from omnibus.settings import BusSettings, GatewaySettings
from omnibus.store import SECRET_PREFIX, Store
from omnibus_gateway.auth.access_rules import AdminAuth, SameOriginMiddleware, bearer_token, is_loopback
from omnibus_gateway.http.exchange import rejecting_send, sent_authorization
from omnibus_gateway.http.response import TrackedResponse, refuse_request
from omnibus_gateway.routing.router import Router
from omnibus_gateway.tenancy.admission import Admission
from omnibus_gateway.tenancy.cost_model import RequestCostModel
from omnibus_gateway.tenancy.fair_queue import watch_queues
from omnibus_gateway.tenancy.rate_limits import KEY_LIMITS, GatewayPeers, RateLimits
from omnibus_gateway.tenancy.tenant import (
    NOBODY,
    DeferredWork,
    KeyStore,
    KeyView,
    LogBudget,
    Tenant,
    acting_as,
    revoked_error,
)

#: Paths that require a key, in addition to those below ``/v1/``.
_KEY_PROTECTED_PREFIXES = ("/openapi.json", "/metrics")
#: Path that only the admin token opens.
_OPERATORS = "/metrics"
#: Paths that only store something for later requests.
_KEEPING_PREFIXES = ("/v1/files", "/v1/uploads", "/v1/conversations")
#: Paths with their own access rule: files have secret ids, and the console requires the admin token.
_FILES_PREFIX = "/v1/files/"
_SELF_GUARDED_PREFIXES = (_FILES_PREFIX, "/v1/console/")


#: Sender without a key. No tenant can have this name, so it owns nothing.
_STRANGER = Tenant("\n")


class ApiKeyMiddleware:
    """Requires keys for ``application``."""

    def __init__(
        self, application: ASGIApp, admin: AdminAuth, book: KeyStore, limits: RateLimits, store: Store
    ) -> None:
        self._store = store
        self._application = application
        self._admin = admin
        self._book = book
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._answer_handshake(scope, receive, send)
            return
        if scope["type"] != "http" or not requires_key(scope["path"]):
            with acting_as(self._sender_of_file_request(scope)):
                await self._application(scope, receive, send)
            return
        try:
            authorization = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
            tenant = (
                self._authenticate_tenant(authorization)
                if not scope["path"].startswith(_OPERATORS)
                else self._require_operator(authorization)
            )
            with acting_as(tenant):
                if tenant.key is None:
                    await self._application(scope, receive, send)
                else:
                    await self._answer_key(tenant.key, scope, receive, send)
        except OmnibusError as error:  # errors of this middleware: the application handles its own
            await refuse_request(send, error)

    async def _answer_handshake(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Authenticate a client that opens a WebSocket. Its work counts separately against its key's limits."""
        try:
            tenant = await self._authenticate_socket(sent_authorization(scope))
            if tenant.key is not None:
                with self._limits.limit_request(tenant.key, starts_work=False):
                    scope[KEY_LIMITS] = self._limits
        except OmnibusError as error:
            await refuse_request(rejecting_send(scope, send), error)
            return
        with acting_as(tenant):
            await self._application(scope, receive, send)

    async def _authenticate_socket(self, authorization: str) -> Tenant:
        """Raises ``Unauthorized``, and ``StoreUnavailable`` if the store cannot verify a client secret."""
        token = bearer_token(authorization)
        if not token.startswith(SECRET_PREFIX):
            return self._authenticate_tenant(authorization)
        secret = await self._store.client_secret(hash_key(token))
        record = self._book.records.get(secret.key) if secret is not None else None
        if record is None and not (secret is not None and secret.is_operators):
            raise Unauthorized("this client secret is unknown or expired: create another one")
        return Tenant(record.tenant, record.weight, record) if record is not None else NOBODY

    async def _answer_key(self, key: KeyRecord, scope: Scope, receive: Receive, send: Send) -> None:
        """Run a request of ``key`` within its limits, until it is revoked. Headers report the limits."""
        response = TrackedResponse(self._with_limits(key, send), revoked_error)
        try:
            with (
                self._limits.limit_request(key, _starts_work(scope)),
                self._limits.key_allowance(key).stopped_by(response.cancel),
            ):
                await self._application(scope, receive, response.send)
        except Overloaded as error:
            await refuse_request(send, error, self._limits.rate_headers(key))
        except asyncio.CancelledError:
            if not response.is_cancelled:
                raise
            await response.end_with_error()

    def _with_limits(self, key: KeyRecord, send: Send) -> Send:
        """Wrap ``send`` to add headers about the limits of ``key``."""
        if not key.rate:
            return send

        def send_with_limits(message: Any) -> Any:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *self._limits.rate_headers(key)]
            return send(message)

        return send_with_limits

    def _sender_of_file_request(self, scope: Scope) -> Tenant:
        """Return the tenant that may see its files without knowing their URLs."""
        if scope["type"] != "http" or not scope["path"].startswith(_FILES_PREFIX):
            return NOBODY
        authorization = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
        record = self._book.find(bearer_token(authorization))
        if record is None:
            return NOBODY if self._admin.is_operator(authorization) else _STRANGER
        return Tenant(record.tenant, record.weight, record)

    def _require_operator(self, authorization: str) -> Tenant:
        """Raises ``Unauthorized``, because metrics contain the names of all tenants."""
        if not self._admin.is_operator(authorization):
            raise Unauthorized(
                "metrics are only for the operator: send the gateway's OMNIBUS_GATEWAY_ADMIN_TOKEN as "
                "`Authorization: Bearer <token>`, or read them at OMNIBUS_SERVICE_METRICS_PORT"
            )
        return NOBODY

    def _authenticate_tenant(self, authorization: str) -> Tenant:
        """Raises ``Unauthorized``."""
        if self._admin.is_operator(authorization):
            return NOBODY
        record = self._book.find(bearer_token(authorization))
        if record is None:
            raise Unauthorized("send an API key of this gateway as `Authorization: Bearer <key>`")
        return Tenant(record.tenant, record.weight, record)


def _starts_work(scope: Scope) -> bool:
    """Return whether a request starts work. Others read, cancel, or store something for later."""
    path = scope["path"]
    return scope["method"] == "POST" and not path.endswith("/cancel") and not path.startswith(_KEEPING_PREFIXES)


def requires_key(path: str) -> bool:
    """Return whether a path requires a key. Probes of health, readiness and version have none."""
    if path.startswith("/v1/"):
        return not path.startswith(_SELF_GUARDED_PREFIXES)
    return path.startswith(_KEY_PROTECTED_PREFIXES)


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
            watch_queues(self.admission.queues)

    async def startup(self, bus: Bus, beat: Callable[[], None]) -> None:
        """Follow keys and other gateways; ``beat`` announces this gateway. Raises ``BadRequest``."""
        if self.on:
            self._book.load_file()
        census = Census(bus, subjects.GATEWAY)
        await follow_events(bus, {subjects.GATEWAY: self.peers.handle_status}, census=census)
        census.ask()
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
