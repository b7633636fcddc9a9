"""HTTP: a FastAPI application, and in front of it the chat route as plain ASGI, the one hot path."""

import logging
from collections.abc import AsyncIterator
from secrets import token_hex
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from omnibus import __version__
from omnibus.errors import BadRequest, Fatal, NotFound, OmnibusError, Rejected
from omnibus.metrics import GATEWAY, exposition
from omnibus.settings import GatewaySettings
from services.gateway.chat import Chat
from services.gateway.dispatch import Dispatcher
from services.gateway.exchange import Exchange, problem
from services.gateway.openai import openapi
from services.gateway.openai.problems import error_body
from services.gateway.openai.requests import parse_chat, read_body
from services.gateway.records import Records
from services.gateway.route import Router

log = logging.getLogger(__name__)


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

    def application(self) -> ASGIApp:
        """Everything that this gateway answers."""
        rest = self._fastapi()

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and scope["path"] == openapi.PATH and scope["method"] == "POST":
                await self.chat(scope, receive, send)
            else:
                await rest(scope, receive, send)

        return application

    def _fastapi(self) -> FastAPI:
        app = FastAPI(title="Omnibus", version=__version__, docs_url="/docs", redoc_url=None)
        app.add_api_route("/v1/models", self.models, methods=["GET"], summary="Models that this gateway serves")
        app.add_api_route("/health", self.health, methods=["GET"], summary="The process lives")
        app.add_api_route("/readyz", self.readyz, methods=["GET"], summary="Every stage can make progress")
        app.add_api_route("/version", self.version, methods=["GET"], summary="Version and plan epoch")
        app.add_route("/metrics", self.metrics, methods=["GET"], include_in_schema=False)
        app.add_route(openapi.PATH, _not_post, methods=["GET", "PUT", "PATCH", "DELETE"], include_in_schema=False)
        app.add_exception_handler(HTTPException, _http_error)  # type: ignore[arg-type]
        generated = app.openapi
        app.openapi = lambda: _with_chat(generated())  # type: ignore[method-assign]
        return app

    # Routes

    async def chat(self, scope: Scope, receive: Receive, send: Send) -> None:
        """``POST /v1/chat/completions``."""
        model = ""
        try:
            headers = dict(scope["headers"])
            length = headers.get(b"content-length", b"")
            declared = int(length) if length.isdigit() else None
            body = await read_body(_chunks(receive), self._settings.max_body, declared)
            wanted = parse_chat(body)
            model = wanted.model
            pinned = headers.get(b"x-omnibus-path", b"").decode("latin-1")
            running, output = await self._chat.start(wanted, pinned)
        except OmnibusError as error:
            GATEWAY.outcome("" if isinstance(error, NotFound) else model, error.code).inc()
            await problem(send, error, f"req-{token_hex(8)}")
            return
        except Exception:  # a defect of ours: the client gets an error in the usual shape, the log the rest
            id = f"req-{token_hex(8)}"
            log.exception("%s failed", id)
            GATEWAY.outcome(model, Fatal.code).inc()
            await problem(send, Fatal("internal error: the gateway's log has more under this request id"), id)
            return
        await Exchange(running, wanted, output, self._dispatcher, self._records).answer(scope, receive, send)

    async def models(self) -> dict[str, Any]:
        plan = self._router.plan
        if plan is None:
            return {"object": "list", "data": []}
        about = {"object": "model", "created": int(plan.created), "owned_by": "omnibus"}
        return {"object": "list", "data": [{"id": name, **about} for name in plan.models]}

    async def health(self) -> dict[str, str]:
        return {"status": "ok"}

    async def version(self) -> dict[str, Any]:
        return {"version": __version__, "epoch": self._router.plan.epoch if self._router.plan else 0}

    async def readyz(self) -> JSONResponse:
        """200 when every stage of every model can make progress, else 503 naming those that cannot."""
        plan = self._router.plan
        missing: dict[str, dict[str, str]] = {}
        for name, model in plan.models.items() if plan is not None else ():
            stages = self._router.members.stages(name)
            bad = {part: stages.get(part, "no executor") for part in model.components if stages.get(part) != "ok"}
            if bad:
                missing[name] = bad
        bus = self._dispatcher.connected
        ready = plan is not None and not missing and bus
        body = {"ready": ready, "epoch": plan.epoch if plan else 0, "bus": bus, "missing": missing}
        return JSONResponse(body, 200 if ready else 503)

    async def metrics(self, _: Request) -> Response:
        return Response(exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def _chunks(receive: Receive) -> AsyncIterator[bytes]:
    """The body as it arrives. Raises ``BadRequest`` when the client leaves in the middle."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise BadRequest("the client left before its request was complete")
        if body := message.get("body", b""):
            yield body
        if not message.get("more_body"):
            return


async def _not_post(_: Request) -> Response:
    raise HTTPException(405, "send a POST", headers={"Allow": "POST"})


async def _http_error(_: Request, error: HTTPException) -> Response:
    kind: type[OmnibusError] = NotFound if error.status_code == 404 else Rejected
    typed = kind(str(error.detail))
    return Response(error_body(typed), error.status_code, media_type="application/json", headers=error.headers)


def _with_chat(document: dict[str, Any]) -> dict[str, Any]:
    document.setdefault("paths", {})[openapi.PATH] = openapi.openapi_path()
    document.setdefault("components", {}).setdefault("schemas", {}).update(openapi.openapi_components())
    return document
