"""WebSockets of ``/v1/responses`` at one gateway: their number, lifetime and end."""

import asyncio
from contextlib import suppress
from typing import NamedTuple

from uvicorn.protocols.utils import ClientDisconnected

from omnibus.errors import OmnibusError, TooSlow
from omnibus.service import until_cancelled
from omnibus.settings import GatewaySettings
from omnibus_gateway.http import websocket
from omnibus_gateway.http.websocket import WebSocketConnection
from omnibus_gateway.responses.connection import ClientStalled, ResponseConnection
from omnibus_gateway.responses.service import Responses
from omnibus_gateway.tenancy.body_budget import current_upload
from omnibus_gateway.tenancy.deferred import revoked_error
from omnibus_gateway.tenancy.open_sockets import OpenSockets, response_limit, wait_revoked
from omnibus_gateway.tenancy.rate_limits import RateLimits

#: Error codes that end a connection.
_TOO_LONG, _IDLE = "websocket_connection_limit_reached", "websocket_idle_timeout"


class _ConnectionEnd(NamedTuple):
    """The end of a connection, with the error sent before it; code 0 if the client disconnected."""

    code: int = 0
    reason: str = ""
    error: OmnibusError | None = None
    error_code: str = ""


class ResponseSockets(OpenSockets):
    """Serves connections with ``responses``. They have the limits of realtime sessions and a separate count."""

    def __init__(self, settings: GatewaySettings, responses: Responses) -> None:
        super().__init__(settings, "connection", "WebSockets")
        self._responses = responses

    async def serve(self, connection: WebSocketConnection, limits: RateLimits | None) -> None:
        """Serve the client of an accepted connection until either side closes it."""
        client = ResponseConnection(connection, self._responses, response_limit(limits), current_upload())
        end = _ConnectionEnd(websocket.SERVER_ERROR, "internal error")
        try:
            end = await self._answer_events(connection, client, limits)
        finally:
            await client.close()
            if end.code:
                if end.error is not None:
                    with suppress(ClientStalled, ClientDisconnected):
                        await client.send_error(end.error, code=end.error_code)
                await connection.close(end.code, end.reason)

    async def _answer_events(
        self, connection: WebSocketConnection, client: ResponseConnection, limits: RateLimits | None
    ) -> _ConnectionEnd:
        """Handle events until the connection ends. Returns its end."""
        loop = asyncio.get_running_loop()
        tasks = {
            loop.create_task(self._read_events(connection, client)),
            loop.create_task(_wait_failed(client)),
            loop.create_task(self._wait_drained(client)),
            loop.create_task(_wait_key_revoked(limits)),
        }
        try:
            done_tasks, _ = await asyncio.wait(
                tasks, timeout=self._settings.realtime_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if not done_tasks:
                error = TooSlow("The connection has reached its maximum lifetime: open another one.")
                return _ConnectionEnd(websocket.GOING_AWAY, "connection expired", error, _TOO_LONG)
            return next(iter(done_tasks)).result()
        finally:
            for task in tasks:
                await until_cancelled(task)

    async def _read_events(self, connection: WebSocketConnection, client: ResponseConnection) -> _ConnectionEnd:
        idle = self._settings.realtime_idle
        while True:
            try:
                async with asyncio.timeout(idle):
                    text = await connection.receive_text()
            except TimeoutError:
                if client.is_busy:
                    continue
                error = TooSlow(f"The client sent nothing for {idle:g} s: open another connection.")
                return _ConnectionEnd(websocket.NORMAL, "idle", error, _IDLE)
            except OmnibusError as error:  # bytes where text is expected
                await client.send_error(error)
                continue
            if text is None:
                return _ConnectionEnd()
            try:
                await client.handle_text(text)
            except (ClientStalled, ClientDisconnected) as error:
                return _end_of(error)
            await asyncio.sleep(0)  # let other tasks run between two events

    async def _wait_drained(self, client: ResponseConnection) -> _ConnectionEnd:
        await self.wait_stop()
        await client.wait_idle()
        return _ConnectionEnd(websocket.RESTART, "the gateway is stopping")


async def _wait_key_revoked(limits: RateLimits | None) -> _ConnectionEnd:
    await wait_revoked(limits)
    return _ConnectionEnd(websocket.POLICY, "the API key was revoked", revoked_error())


async def _wait_failed(client: ResponseConnection) -> _ConnectionEnd:
    try:
        await client.wait_failed()
    except (ClientStalled, ClientDisconnected) as error:
        return _end_of(error)
    return _ConnectionEnd()


def _end_of(error: Exception) -> _ConnectionEnd:
    return (
        _ConnectionEnd(websocket.POLICY, "the client does not read") if isinstance(error, TooSlow) else _ConnectionEnd()
    )
