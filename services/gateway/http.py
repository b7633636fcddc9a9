"""HTTP: the FastAPI application. The chat route is a plain one, so that nothing is validated twice."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from omnibus.errors import DeadlineExceeded, Fatal, NotFound, OmnibusError, Rejected
from omnibus.metrics import GATEWAY, exposition
from omnibus.settings import GatewaySettings
from omnibus.task import ChatOutput
from services.gateway import answer
from services.gateway.answer import Collected
from services.gateway.chat import Chat
from services.gateway.dispatch import Dispatcher
from services.gateway.openai import openapi
from services.gateway.openai.problems import error_body, error_headers, status_of
from services.gateway.openai.requests import parse_chat, read_body
from services.gateway.openai.schema import ChatRequest
from services.gateway.records import Records
from services.gateway.route import Router
from services.gateway.running import Running

VERSION = "0.1.0"


class Frontend:
    """The HTTP routes over a chat app, its router and dispatcher."""

    def __init__(
        self, settings: GatewaySettings, chat: Chat, router: Router, dispatcher: Dispatcher, records: Records
    ) -> None:
        self._settings = settings
        self._chat = chat
        self._router = router
        self._dispatcher = dispatcher
        self._records = records

    def application(self) -> FastAPI:
        app = FastAPI(title="Omnibus", version=VERSION, docs_url="/docs", redoc_url=None)
        app.add_route(openapi.PATH, self.chat, methods=["POST"], include_in_schema=False)
        app.add_api_route("/v1/models", self.models, methods=["GET"], summary="Models that this gateway serves")
        app.add_api_route("/health", self.health, methods=["GET"], summary="The process lives")
        app.add_api_route("/readyz", self.readyz, methods=["GET"], summary="Every stage can make progress")
        app.add_api_route("/version", self.version, methods=["GET"], summary="Version and plan epoch")
        app.add_route("/metrics", self.metrics, methods=["GET"], include_in_schema=False)
        app.add_exception_handler(HTTPException, _http_error)  # type: ignore[arg-type]
        app.add_exception_handler(OmnibusError, _omnibus_error)  # type: ignore[arg-type]
        generated = app.openapi
        app.openapi = lambda: _with_chat(generated())  # type: ignore[method-assign]
        return app

    # Routes

    async def chat(self, request: Request) -> Response:
        model = ""
        try:
            length = request.headers.get("content-length", "")
            declared = int(length) if length.isdigit() else None
            body = await read_body(request.stream(), self._settings.max_body, declared)
            wanted = parse_chat(body)
            model = wanted.model
            running, output = await self._chat.start(wanted, request.headers.get("x-omnibus-path", ""))
        except OmnibusError as error:
            GATEWAY.outcome(model if not isinstance(error, NotFound) else "", error.code).inc()
            return _problem(error)
        exchange = _Exchange(running, wanted, output, self._dispatcher, self._records)
        return _Stream(exchange) if wanted.stream else _Whole(exchange)

    async def models(self) -> dict[str, Any]:
        plan = self._router.plan
        if plan is None:
            return {"object": "list", "data": []}
        about = {"object": "model", "created": int(plan.created), "owned_by": "omnibus"}
        return {"object": "list", "data": [{"id": name, **about} for name in plan.models]}

    async def health(self) -> dict[str, str]:
        return {"status": "ok"}

    async def version(self) -> dict[str, Any]:
        return {"version": VERSION, "epoch": self._router.plan.epoch if self._router.plan else 0}

    async def readyz(self) -> JSONResponse:
        """200 when every stage of every model can make progress, else 503 naming those that cannot."""
        plan = self._router.plan
        missing: dict[str, dict[str, str]] = {}
        for name, model in plan.models.items() if plan is not None else ():
            stages = self._router.members.stages(name)
            bad = {part: stages.get(part, "no executor") for part in model.components if stages.get(part) != "ok"}
            if bad:
                missing[name] = bad
        ready = plan is not None and not missing and self._dispatcher.connected
        body = {
            "ready": ready,
            "epoch": plan.epoch if plan else 0,
            "bus": self._dispatcher.connected,
            "missing": missing,
        }
        return JSONResponse(body, 200 if ready else 503)

    async def metrics(self, _: Request) -> Response:
        return Response(exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")


class _Exchange:
    """One running request and its one end, however that comes about."""

    def __init__(
        self, running: Running, request: ChatRequest, output: ChatOutput, dispatcher: Dispatcher, records: Records
    ) -> None:
        self.running = running
        self.request = request
        self.output = output
        self.got = Collected(request.model, running.invocation.created)
        self._dispatcher = dispatcher
        self._records = records
        self._over = False
        loop = asyncio.get_running_loop()
        left = running.invocation.deadline - time.time()
        self._timer = loop.call_later(max(0.0, left), self._expire)

    def _expire(self) -> None:
        self.running.fail(DeadlineExceeded("the request took longer than its deadline"))
        self.end("expired")

    def gone(self) -> None:
        """The client left: everything stops."""
        self.running.fail(Fatal("the client left"))
        self.end("cancelled")

    def end(self, status: str) -> None:
        if self._over:
            return
        self._over = True
        self._timer.cancel()
        failure = self.running.failure
        GATEWAY.outcome(self.request.model, "ok" if status == "done" else failure.code if failure else status).inc()
        GATEWAY.seconds(self.request.model).observe(time.time() - self.running.invocation.created)
        if status == "done":
            self._dispatcher.complete(self.running, lambda: self._record("done"))
        else:
            self._dispatcher.finish(self.running, status)
            self._record(status)

    def _record(self, status: str) -> None:
        self._records.end(self.running, status, self.got.answer(), self.got.first)


class _Whole(Response):
    """A whole answer; a client that leaves while it is made cancels it."""

    def __init__(self, exchange: _Exchange) -> None:
        self._exchange = exchange

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = self._exchange
        watch = asyncio.get_running_loop().create_task(_watch(receive, exchange))
        try:
            body = await answer.whole(exchange.running, exchange.request, exchange.output, exchange.got)
            exchange.end("done")
            response = Response(body, media_type="application/json", headers=_about(exchange.running))
        except OmnibusError as error:
            exchange.end("failed")
            response = _problem(error, exchange.running.id)
        except BaseException:
            exchange.gone()
            raise
        finally:
            watch.cancel()
        await response(scope, receive, send)


class _Stream(Response):
    """Server-sent events; a client that leaves cancels."""

    def __init__(self, exchange: _Exchange) -> None:
        self._exchange = exchange

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = self._exchange
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        headers += [(key.encode(), value.encode()) for key, value in _about(exchange.running).items()]
        watch = asyncio.get_running_loop().create_task(_watch(receive, exchange))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            async for part in self._parts():
                if part:
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            watch.cancel()
            exchange.gone()  # nothing when the answer is whole

    def _parts(self) -> AsyncIterator[bytes]:
        exchange = self._exchange
        return answer.events(exchange.running, exchange.request, exchange.output, exchange.got, exchange.end)


async def _watch(receive: Receive, exchange: _Exchange) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    exchange.gone()


def _about(running: Running) -> dict[str, str]:
    """Headers that tell a client where to look: invocation, path and plan epoch."""
    invocation = running.invocation
    return {"x-request-id": invocation.id, "x-omnibus-path": invocation.path, "x-omnibus-epoch": str(invocation.epoch)}


def _problem(error: OmnibusError, id: str = "") -> Response:
    headers = error_headers(error)
    if id:
        headers["x-request-id"] = id
    return Response(error_body(error, id), status_of(error), media_type="application/json", headers=headers)


async def _http_error(_: Request, error: HTTPException) -> Response:
    kind: type[OmnibusError] = NotFound if error.status_code == 404 else Rejected
    typed = kind(str(error.detail))
    return Response(error_body(typed), error.status_code, media_type="application/json", headers=error.headers)


async def _omnibus_error(_: Request, error: OmnibusError) -> Response:
    return _problem(error)


def _with_chat(document: dict[str, Any]) -> dict[str, Any]:
    document.setdefault("paths", {})[openapi.PATH] = openapi.openapi_path()
    document.setdefault("components", {}).setdefault("schemas", {}).update(openapi.openapi_components())
    return document
