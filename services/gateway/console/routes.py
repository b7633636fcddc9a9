"""The console's routes: the page's files for everybody, the data behind it for whoever may see it."""

from contextlib import aclosing

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from omnibus.bus import Bus
from omnibus.errors import OmnibusError
from omnibus.settings import GatewaySettings
from omnibus.store import Store
from services.gateway.admin import Admin
from services.gateway.answering import answering, json_response
from services.gateway.console.live import Live
from services.gateway.console.pages import Pages
from services.gateway.console.plans import plans
from services.gateway.exchange import ClientLeft, while_connected
from services.gateway.sending import Sending

EVENTS, PLAN = "/v1/console/events", "/v1/console/plan"


class Console:
    """Adds the routes to an application. The data is a control route."""

    def __init__(self, settings: GatewaySettings, store: Store, bus: Bus) -> None:
        self.admin = Admin(settings)
        self._store = store
        self.live = Live(store, bus)
        self._pages = Pages()

    def add(self, app: FastAPI) -> None:
        self._pages.add(app)
        app.add_route(PLAN, answering({"GET": self._plan}), methods=["GET"], include_in_schema=False)
        app.add_route(EVENTS, _Events(self), methods=["GET"], include_in_schema=False)  # type: ignore[arg-type]

    async def close(self) -> None:
        """End what is being told to those who look."""
        await self.live.close()

    async def _plan(self, request: Request) -> Response:
        self.admin.control(request.headers)
        return json_response(await plans(self._store))


class _Events:
    """Server-sent events: each is the state of everything, as ``omnibus top --json`` prints it."""

    def __init__(self, console: Console) -> None:
        self._console = console

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = Sending(send)
        try:
            self._console.admin.control(Request(scope).headers)
            await while_connected(scope, receive, self._tell(sending))
        except ClientLeft:
            return
        except OmnibusError as error:
            await sending.fail(error)

    async def _tell(self, sending: Sending) -> None:
        async with aclosing(self._console.live.states()) as states:
            begun = False
            async for state in states:
                if not begun:
                    begun = True
                    await sending.begin([(b"x-accel-buffering", b"no")])
                await (sending.event(state) if state else sending.part(b": still here\n\n"))
