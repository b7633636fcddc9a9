"""Sessions with unknown models: the client gets an ``error`` event, because browsers hide why a handshake failed."""

import asyncio
from contextlib import suppress
from urllib.parse import parse_qsl

import msgspec
from starlette.types import Scope
from uvicorn.protocols.utils import ClientDisconnected

from omnibus.errors import NotFound, OmnibusError
from omnibus_gateway.http.exchange import CLOSE_SECONDS, POLICY, WebSocketConnection
from omnibus_gateway.http.failures import FAILURE, Failure
from omnibus_gateway.realtime.config import event_id, new_session_id
from omnibus_gateway.realtime.event_sender import describe_error

#: The subprotocol that browsers name.
_SUBPROTOCOL = "realtime"


def choose_subprotocol(scope: Scope) -> str | None:
    """Return the subprotocol of a connection, None if the client names none."""
    return _SUBPROTOCOL if _SUBPROTOCOL in scope["subprotocols"] else None


def is_unknown_model(error: OmnibusError) -> bool:
    """Return whether ``error`` is about an unknown model."""
    return isinstance(error, NotFound) and error.param == "model"


async def refuse_model(connection: WebSocketConnection, scope: Scope, error: OmnibusError) -> None:
    """Accept the handshake, send ``error`` as OpenAI does, and close."""
    await connection.accept(choose_subprotocol(scope))
    id = event_id(new_session_id(), 1)
    model = dict(parse_qsl(scope["query_string"].decode("latin-1"))).get("model", "")
    scope[FAILURE] = Failure(error.to_problem(), error.status, model, id=id)
    event = {"type": "error", "event_id": id}
    body = msgspec.json.encode({**event, "error": {**describe_error(error), "event_id": None}})
    with suppress(ClientDisconnected, TimeoutError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await connection.send_text(body.decode())
    await connection.close(POLICY, "unknown model")
