"""The console's routes: the page's files for everybody, the data behind it for whoever may see it."""

from collections.abc import AsyncGenerator, Callable

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
from services.gateway.console.broadcaster import LiveStates
from services.gateway.console.plans import describe_plans
from services.gateway.console.static_files import ConsolePages
from services.gateway.http.exchange import ConnectedClient, RequestOutcome
from services.gateway.http.handlers import add_routes, json_response
from services.gateway.http.response import ResponseWriter, as_events

EVENTS, PLAN, REPLAY = "/v1/console/events", "/v1/console/plan", "/v1/console/replay/{id}"
#: What of the query of a replay goes along with it.
REPLAY_PARAMS = ("from", "path", "route")
#: Seconds that a replay may keep silent.
REPLAY_IDLE_SECONDS = 120.0


class Console:
    """Adds the routes to an application. The data is a control route."""

    def __init__(self, settings: GatewaySettings, store: Store, bus: Bus) -> None:
        self._admin = AdminAuth(settings)
        self._store = store
        self._bus = bus
        self.live = LiveStates(store, bus)
        self._pages = ConsolePages()

    def add_routes(self, app: FastAPI) -> None:
        self._pages.add_routes(app)
        add_routes(app, {PLAN: {"GET": self._get_plan}})
        streams = {(EVENTS, "GET"): lambda _: self.live.stream_states(), (REPLAY, "POST"): self._stream_replay}
        for (path, method), bodies in streams.items():
            app.add_route(path, _EventStreamRoute(self._admin, bodies), methods=[method], include_in_schema=False)  # type: ignore[arg-type]

    async def close(self) -> None:
        """End what is being told to those who look."""
        await self.live.close()

    async def _get_plan(self, request: Request) -> Response:
        self._admin.check_control_access(request.headers)
        return json_response(await describe_plans(self._store))

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
