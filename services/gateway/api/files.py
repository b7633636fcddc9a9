"""``/v1/files/{id}``: what clients were given a URL of. Whoever knows an id may fetch its file, or remove it."""

import logging
import time
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from services.gateway.http.handlers import by_method, json_response
from services.gateway.media.files import Files, Ticket
from services.gateway.openai.files import CONTENT, FILE, FileDeleted, FileObject

log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode


class FileRoutes:
    """Adds the routes over ``files`` to an application."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def add(self, app: FastAPI) -> None:
        routes: dict[str, dict[str, Any]] = {
            FILE: {"GET": self._about, "DELETE": self._remove},
            CONTENT: {"GET": self._content},
        }
        for path, handlers in routes.items():
            app.add_route(path, by_method(handlers), methods=list(handlers), include_in_schema=False)

    async def _about(self, request: Request) -> Response:
        return json_response(_object(await self._files.about(request.path_params["file_id"])))

    async def _remove(self, request: Request) -> Response:
        id = request.path_params["file_id"]
        await self._files.remove(id)
        return json_response(FileDeleted(id=id))

    async def _content(self, request: Request) -> Response:
        ticket, data = await self._files.read(request.path_params["file_id"])
        headers = {
            "cache-control": f"private, max-age={max(0, int(ticket.expires - time.time()))}",
            "content-disposition": f'inline; filename="{_name(ticket)}"',
            "x-content-type-options": "nosniff",
        }
        return Response(data, 200, headers, ticket.mime)


def _object(ticket: Ticket) -> FileObject:
    return FileObject(
        id=ticket.id,
        bytes=ticket.nbytes,
        created_at=int(ticket.created),
        expires_at=int(ticket.expires),
        filename=_name(ticket),
    )


def _name(ticket: Ticket) -> str:
    return f"{ticket.id}.{ticket.mime.partition('/')[2]}"
