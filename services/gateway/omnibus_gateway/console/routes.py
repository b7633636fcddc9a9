"""Routes of the console: public files of the page, and data for operators."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from omnibus.bus import Bus
from omnibus.settings import GatewaySettings
from omnibus.store import Store
from omnibus_gateway.auth.access_rules import AdminAuth
from omnibus_gateway.console import operations
from omnibus_gateway.console.alerts import AlertWatch
from omnibus_gateway.console.broadcaster import LiveStates
from omnibus_gateway.console.failures import MAX_LISTED, FailureFilters, find_failures
from omnibus_gateway.console.history import MAX_SPAN_SECONDS, read_history
from omnibus_gateway.console.keys import MAX_BODY_BYTES, ConsoleKeys
from omnibus_gateway.console.log_tail import MAX_LINES, read_log_tail
from omnibus_gateway.console.operations import ConsoleReplays, describe_plans
from omnibus_gateway.console.static_files import ConsolePages
from omnibus_gateway.core import Router
from omnibus_gateway.http.exchange import (
    ConnectedClient,
    Handler,
    RequestOutcome,
    add_routes,
    json_response,
    parse_number,
    parse_query,
    read_request,
)
from omnibus_gateway.http.failures import FailureLog
from omnibus_gateway.http.response import ResponseWriter, as_events
from omnibus_gateway.tenancy.tenant import KeyView

EVENTS, PLAN = "/v1/console/events", "/v1/console/plan"
REPLAY, FORK = "/v1/console/replay/{id}", "/v1/console/fork/{id}"
EXECUTORS, EXECUTOR = "/v1/console/executors", "/v1/console/executors/{id}"
KEYS, KEY = "/v1/console/keys", "/v1/console/keys/{id}"
LETTERS, LETTER = "/v1/console/deadletters", "/v1/console/deadletters/{id}"
SETTINGS, LOGS, HISTORY = "/v1/console/settings", "/v1/console/logs", "/v1/console/history"
FAILURES, ALERTS = "/v1/console/failures", "/v1/console/alerts"


class Console:
    """Adds the routes of the console to an application. Those of data are control routes."""

    def __init__(
        self, settings: GatewaySettings, store: Store, bus: Bus, router: Router, keys: Callable[[], KeyView]
    ) -> None:
        self._settings = settings
        self._admin = AdminAuth(settings)
        self._members = router.members
        self._keys = ConsoleKeys(store, keys)
        self._store = store
        self._bus = bus
        self._replays = ConsoleReplays(bus)
        self.live = LiveStates(store, bus)
        #: Requests that this gateway answered with an error.
        self.failures = FailureLog()
        #: Alert rules, once they run.
        self.alerts = AlertWatch(router)
        self._pages = ConsolePages()

    def add_routes(self, app: FastAPI) -> None:
        self._pages.add_routes(app)
        gets: dict[str, Callable[[Request], Awaitable[Any]]] = {
            PLAN: self._get_plan,
            EXECUTORS: self._get_executors,
            EXECUTOR: self._get_executor,
            LETTERS: self._get_letters,
            LETTER: self._get_letter,
            SETTINGS: self._get_settings,
            LOGS: self._get_logs,
            HISTORY: self._get_history,
            FAILURES: self._get_failures,
            ALERTS: self._get_alerts,
        }
        add_routes(app, {path: {"GET": self._for_operators(get)} for path, get in gets.items()})
        of_keys = {"GET": self._for_operators(self._get_keys), "POST": self._for_operators(self._create_key, 201)}
        add_routes(app, {KEYS: of_keys, KEY: {"DELETE": self._for_operators(self._revoke_key)}})
        streams = {
            (EVENTS, "GET"): self._stream_states,
            (REPLAY, "POST"): self._stream_replay,
            (FORK, "POST"): self._stream_fork,
        }
        for (path, method), stream in streams.items():
            app.add_route(path, _EventStreamRoute(self._admin, stream), methods=[method], include_in_schema=False)  # type: ignore[arg-type]

    async def close(self) -> None:
        """End all streams of states."""
        await self.live.close()

    def _for_operators(self, get: Callable[[Request], Awaitable[Any]], status: int = 200) -> Handler:
        """Return a handler that sends the result of ``get``, only to operators."""

        async def handle(request: Request) -> Response:
            self._admin.check_control_access(request.headers)
            return json_response(await get(request), status)

        return handle

    async def _get_plan(self, _: Request) -> Any:
        return await describe_plans(self._store)

    async def _get_executors(self, _: Request) -> Any:
        return {"data": operations.describe_executors(self._members)}

    async def _get_executor(self, request: Request) -> Any:
        return operations.describe_executor(self._members, request.path_params["id"])

    async def _get_keys(self, _: Request) -> Any:
        return await self._keys.list_keys()

    async def _create_key(self, request: Request) -> Any:
        return await self._keys.create_key((await read_request(request.scope, request.receive, MAX_BODY_BYTES)).body)

    async def _revoke_key(self, request: Request) -> Any:
        return await self._keys.revoke_key(request.path_params["id"])

    async def _get_letters(self, request: Request) -> Any:
        query = parse_query(request, "limit", "before")
        limit = parse_number(query, "limit", 50, 1, operations.MAX_LETTERS)
        return await operations.list_letters(self._bus, limit, parse_number(query, "before", 0, 0, 1 << 62))

    async def _get_letter(self, request: Request) -> Any:
        return await operations.show_letter(self._bus, request.path_params["id"])

    async def _get_settings(self, _: Request) -> Any:
        return {"data": operations.describe_settings()}

    async def _get_logs(self, request: Request) -> Any:
        query = parse_query(request, "process", "lines")
        lines = parse_number(query, "lines", 200, 1, MAX_LINES)
        return await read_log_tail(self._settings.log_file, query.get("process", ""), lines)

    async def _get_history(self, request: Request) -> Any:
        query = parse_query(request, "seconds", "until")
        seconds = parse_number(query, "seconds", 3600, 60, MAX_SPAN_SECONDS)
        return await read_history(self._store, seconds, parse_number(query, "until", 0, 0, 1 << 40) or time.time())

    async def _get_failures(self, request: Request) -> Any:
        query = parse_query(request, "q", "model", "code", "since", "until", "limit")
        filters = FailureFilters(
            words=tuple(query.get("q", "").lower().split()),
            model=query.get("model", ""),
            code=query.get("code", ""),
            since=parse_number(query, "since", 0, 0, 1 << 40),
            until=parse_number(query, "until", 0, 0, 1 << 40),
            limit=parse_number(query, "limit", 100, 1, MAX_LISTED),
        )
        return await find_failures(self._store, self.failures, filters)

    async def _get_alerts(self, _: Request) -> Any:
        return self.alerts.describe()

    def _stream_states(self, _: Request, __: bytes) -> AsyncGenerator[bytes, None]:
        return self.live.stream_states()

    def _stream_replay(self, request: Request, _: bytes) -> AsyncGenerator[bytes, None]:
        return self._replays.stream_replay(request.path_params["id"], request.query_params)

    def _stream_fork(self, request: Request, body: bytes) -> AsyncGenerator[bytes, None]:
        return self._replays.stream_fork(request.path_params["id"], body)


class _EventStreamRoute:
    """Route of server-sent events, for operators, until the client disconnects."""

    def __init__(self, admin: AdminAuth, stream: Callable[[Request, bytes], AsyncGenerator[bytes, None]]) -> None:
        self._admin = admin
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending, request = ResponseWriter(send), Request(scope)
        async with RequestOutcome(sending):
            self._admin.check_control_access(request.headers)
            body = (await read_request(scope, receive, operations.MAX_BODY_BYTES)).body
            async with ConnectedClient(scope, receive):
                stream = as_events(self._stream(request, body))
                await sending.send_stream(stream, extra=[(b"x-accel-buffering", b"no")])
