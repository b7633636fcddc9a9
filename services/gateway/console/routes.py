"""The console's routes: the page's files for everybody, the data behind it for whoever may see it."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from omnibus import graph
from omnibus.bus import Bus, subjects
from omnibus.errors import BadRequest
from omnibus.recording import records
from omnibus.settings import GatewaySettings
from omnibus.store import Store
from services.gateway.auth.admin import AdminAuth
from services.gateway.console import operations
from services.gateway.console.broadcaster import LiveStates
from services.gateway.console.history import MAX_SPAN_SECONDS, read_history
from services.gateway.console.keys import MAX_BODY_BYTES, ConsoleKeys
from services.gateway.console.log_tail import MAX_LINES, read_log_tail
from services.gateway.console.plans import describe_plans
from services.gateway.console.static_files import ConsolePages
from services.gateway.http.exchange import ConnectedClient, RequestOutcome, read_request
from services.gateway.http.handlers import Handler, add_routes, json_response
from services.gateway.http.query import parse_number, parse_query
from services.gateway.http.response import ResponseWriter, as_events
from services.gateway.routing.executors import ExecutorTable
from services.gateway.tenancy.key_store import KeyView

EVENTS, PLAN, REPLAY = "/v1/console/events", "/v1/console/plan", "/v1/console/replay/{id}"
EXECUTORS, EXECUTOR = "/v1/console/executors", "/v1/console/executors/{id}"
KEYS, KEY = "/v1/console/keys", "/v1/console/keys/{id}"
LETTERS, LETTER = "/v1/console/deadletters", "/v1/console/deadletters/{id}"
SETTINGS, LOGS, HISTORY = "/v1/console/settings", "/v1/console/logs", "/v1/console/history"
#: What of the query of a replay goes along with it.
REPLAY_PARAMS = ("from", "path", "route")
#: Seconds that a replay may keep silent.
REPLAY_IDLE_SECONDS = 120.0


class Console:
    """Adds the routes to an application. The data is a control route."""

    def __init__(
        self, settings: GatewaySettings, store: Store, bus: Bus, members: ExecutorTable, keys: Callable[[], KeyView]
    ) -> None:
        self._settings = settings
        self._admin = AdminAuth(settings)
        self._members = members
        self._keys = ConsoleKeys(store, keys)
        self._store = store
        self._bus = bus
        self.live = LiveStates(store, bus)
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
        }
        add_routes(app, {path: {"GET": self._for_operators(get)} for path, get in gets.items()})
        of_keys = {"GET": self._for_operators(self._get_keys), "POST": self._for_operators(self._create_key, 201)}
        add_routes(app, {KEYS: of_keys, KEY: {"DELETE": self._for_operators(self._revoke_key)}})
        streams = {(EVENTS, "GET"): lambda _: self.live.stream_states(), (REPLAY, "POST"): self._stream_replay}
        for (path, method), bodies in streams.items():
            app.add_route(path, _EventStreamRoute(self._admin, bodies), methods=[method], include_in_schema=False)  # type: ignore[arg-type]

    async def close(self) -> None:
        """End what is being told to those who look."""
        await self.live.close()

    def _for_operators(self, get: Callable[[Request], Awaitable[Any]], status: int = 200) -> Handler:
        """The handler of a route whose data ``get`` returns, closed to all others."""

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
        given = parse_query(request, "limit", "before")
        limit = parse_number(given, "limit", 50, 1, operations.MAX_LETTERS)
        return await operations.list_letters(self._bus, limit, parse_number(given, "before", 0, 0, 1 << 62))

    async def _get_letter(self, request: Request) -> Any:
        return await operations.show_letter(self._bus, request.path_params["id"])

    async def _get_settings(self, _: Request) -> Any:
        return {"data": operations.describe_settings()}

    async def _get_logs(self, request: Request) -> Any:
        given = parse_query(request, "process", "lines")
        lines = parse_number(given, "lines", 200, 1, MAX_LINES)
        return await read_log_tail(self._settings.log_file, given.get("process", ""), lines)

    async def _get_history(self, request: Request) -> Any:
        given = parse_query(request, "seconds", "until")
        seconds = parse_number(given, "seconds", 3600, 60, MAX_SPAN_SECONDS)
        return await read_history(self._store, seconds, parse_number(given, "until", 0, 0, 1 << 40) or time.time())

    async def _stream_replay(self, request: Request) -> AsyncGenerator[bytes, None]:
        """Yield the output of ``omnibus replay``: where it runs, then the answer and how it compares.

        ``from``, ``path`` and ``route`` of the query are the headers of ``services.gateway.replay.options``.
        """
        wishes = _replay_headers(request)
        record = await records.find_record(self._bus, request.path_params["id"])
        body = graph.encode_invocation(record.invocation)
        async for part in self._bus.request_stream(subjects.REPLAY, body, REPLAY_IDLE_SECONDS, wishes or None):
            yield part


def _replay_headers(request: Request) -> dict[str, str]:
    """Raises ``BadRequest`` for what no replay knows, or what cannot be a header."""
    given = {name: value for name, value in request.query_params.items() if value}
    for name, value in given.items():
        if name not in REPLAY_PARAMS or not (value.isascii() and value.isprintable()):
            raise BadRequest(f"a replay takes {', '.join(REPLAY_PARAMS)} in printable letters", param=name[:80])
    return {f"Omnibus-{name}": value for name, value in given.items()}


class _EventStreamRoute:
    """Server-sent events for whoever may see them, for as long as they wait."""

    def __init__(self, admin: AdminAuth, bodies: Callable[[Request], AsyncGenerator[bytes, None]]) -> None:
        self._admin = admin
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending, request = ResponseWriter(send), Request(scope)
        async with RequestOutcome(sending):
            self._admin.check_control_access(request.headers)
            async with ConnectedClient(scope, receive):
                await sending.send_stream(as_events(self._bodies(request)), extra=[(b"x-accel-buffering", b"no")])
