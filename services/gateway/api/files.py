"""``/v1/files/{id}``: what clients were given a URL of. Whoever knows an id may fetch its file, or remove it."""

import logging
import time
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from services.gateway.http.handlers import add_routes, json_response
from services.gateway.media.files import FileStore
from services.gateway.media.named_files import FileTicket
from services.gateway.openai.files import CONTENT, FILE, FileDeleted, FileObject

log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode


class FileRoutes:
    """Adds the routes over ``files`` to an application."""

    def __init__(self, files: FileStore) -> None:
        self._files = files

    def add_routes(self, app: FastAPI) -> None:
        routes: dict[str, dict[str, Any]] = {
            FILE: {"GET": self._get_file, "DELETE": self._delete_file},
            CONTENT: {"GET": self._get_content},
        }
        add_routes(app, routes)

    async def _get_file(self, request: Request) -> Response:
        return json_response(_to_file_object(await self._files.get_ticket(request.path_params["file_id"])))

    async def _delete_file(self, request: Request) -> Response:
        id = request.path_params["file_id"]
        await self._files.remove(id)
        return json_response(FileDeleted(id=id))

    async def _get_content(self, request: Request) -> Response:
        ticket, data = await self._files.read(request.path_params["file_id"])
        headers = {
            "cache-control": f"private, max-age={max(0, int(ticket.expires - time.time()))}",
            "content-disposition": f'inline; filename="{_file_name(ticket)}"',
            "x-content-type-options": "nosniff",
        }
        return Response(data, 200, headers, ticket.mime)


def _to_file_object(ticket: FileTicket) -> FileObject:
    return FileObject(
        id=ticket.id,
        bytes=ticket.nbytes,
        created_at=int(ticket.created),
        expires_at=int(ticket.expires),
        filename=_file_name(ticket),
    )


def _file_name(ticket: FileTicket) -> str:
    return f"{ticket.id}.{ticket.mime.partition('/')[2]}"
