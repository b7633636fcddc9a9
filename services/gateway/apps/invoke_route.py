"""``POST /v1/apps/{name}/invoke`` as plain ASGI: JSON in, and out JSON or server-sent events.

Apps that take a ``ChatInput`` are sent chat requests as OpenAI has them, pictures and sounds included.

A stream's status is decided by its first part: an app that fails before answers with an error like any
other. One that fails later ends its stream with an error frame in place of ``[DONE]``.
"""

import asyncio
import logging
from contextlib import aclosing

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from omnibus.app import protocol
from omnibus.errors import Fatal, OmnibusError
from omnibus.metrics import GATEWAY
from omnibus.settings import GatewaySettings
from services.gateway.apps.call import Call
from services.gateway.apps.chat import AppChats, parse_app_chat
from services.gateway.apps.served_apps import Registry
from services.gateway.http.exchange import JSON, ClientLeft, response_headers, while_connected
from services.gateway.http.response import ResponseWriter
from services.gateway.openai.density import check_values
from services.gateway.openai.parse import read_body
from services.gateway.request.request import ClientRequest, RequestFactory

log = logging.getLogger(__name__)

_BEFORE, _AFTER = "/v1/apps/", "/invoke"
_DONE = b"data: [DONE]\n\n"


def called_app(scope: Scope) -> str:
    """The app that a request calls; empty when it is another request."""
    path: str = scope["path"]
    if scope["method"] != "POST" or not path.startswith(_BEFORE) or not path.endswith(_AFTER):
        return ""
    name = path[len(_BEFORE) : -len(_AFTER)]
    return "" if "/" in name else name


class InvokeRoute:
    """Calls apps for clients."""

    def __init__(self, settings: GatewaySettings, runs: RequestFactory, registry: Registry, chats: AppChats) -> None:
        self._settings = settings
        self._runs = runs
        self._registry = registry
        self._chats = chats

    async def __call__(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request to app ``name``. A client that leaves cancels what still runs."""
        code = "ok"
        sending = ResponseWriter(send)
        try:
            body = await self._read_body(name, scope, receive)
            await while_connected(scope, receive, self._send_answer(name, body, requested_path(scope), sending))
        except (ClientLeft, ClientDisconnect):
            code = "cancelled"
        except OmnibusError as error:
            code = error.code
            await sending.report_error(error)
        except Exception:  # a defect of ours
            log.exception("%s failed", sending.id)
            code = Fatal.code
            await sending.report_error(Fatal("internal error: the gateway's log has more under this request id"))
        # An app that is gone by now may have been asked for by any name.
        GATEWAY.app_counter(name if self._registry.worker_view(name) is not None else "", code).inc()

    async def _read_body(self, name: str, scope: Scope, receive: Receive) -> bytes:
        self._registry.worker(name)  # who calls nobody need not send anything
        length = dict(scope["headers"]).get(b"content-length", b"")
        stream = Request(scope, receive).stream()
        body = await read_body(stream, self._settings.max_body, int(length) if length.isdigit() else None)
        check_values(body)
        return body

    async def _send_answer(self, name: str, body: bytes, pinned: str, sending: ResponseWriter) -> None:
        run, call, streams = await self._start_call(name, body, pinned)
        sending.id = run.id
        if not streams:
            await sending.send_body(200, JSON, await call.read_answer(), response_headers(run))
            return
        async with aclosing(call.read_parts()) as parts:
            first = await anext(parts, None)
            await sending.begin_stream(response_headers(run))
            if first is not None:
                await sending.send_event(first)
                async for part in parts:
                    await sending.send_event(part)
        await sending.end_stream(_DONE)

    async def _start_call(self, name: str, body: bytes, pinned: str) -> tuple[ClientRequest, Call, bool]:
        record, worker = self._registry.worker(name)
        request = parse_app_chat(record, body) if record.chat else None
        run = self._runs.open_request(name, seed=request.seed if request is not None else None, pinned=pinned)
        try:
            if request is None:
                return run, worker.invoke(run, body), record.streams
            return run, await self._chats.send_chat(name, run, request, protocol.JSON), record.streams
        except asyncio.CancelledError:
            run.end("cancelled")
            raise
        except BaseException:
            run.end("failed")
            raise


def requested_path(scope: Scope) -> str:
    """The path that the client asks for."""
    return dict(scope["headers"]).get(b"x-omnibus-path", b"").decode("latin-1")
