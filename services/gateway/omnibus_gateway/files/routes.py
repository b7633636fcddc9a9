"""``/v1/files`` and ``/v1/uploads``: files at once or in parts, outputs of batches, and generated files with a URL.

The files of each tenant are separate.

Each tenant has its own files. Any client that has the id of a file with a URL may fetch it. Only its tenant's key may
delete it.
"""

import time
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from omnibus.errors import BadRequest, NotFound
from omnibus.settings import GatewaySettings
from omnibus_gateway.files.uploads import FileUpload, FileUploads
from omnibus_gateway.http.content import Content, content_response
from omnibus_gateway.http.exchange import add_routes, json_response, read_request
from omnibus_gateway.media.client_files import ClientFile, ClientFiles
from omnibus_gateway.media.files import FileTicket, MadeFiles, file_not_found_error, owner_hash
from omnibus_gateway.openai import multipart
from omnibus_gateway.openai.files import (
    CANCEL,
    COMPLETE,
    CONTENT,
    FILE,
    FILES,
    PARTS,
    UPLOADS,
    FileDeleted,
    FileList,
    FileObject,
    UploadObject,
    UploadPartObject,
    parse_complete_request,
    parse_file_form,
    parse_file_query,
    parse_upload_request,
)
from omnibus_gateway.tenancy.tenant import current_tenant

#: Types of files that a browser may display; it saves the others.
_INLINE_TYPES = ("image/", "audio/", "video/")
_MAX_NAME_CHARS = 255


class FileRoutes:
    """Adds the routes of ``made_files`` and clients' ``files`` to an application."""

    def __init__(self, settings: GatewaySettings, made_files: MadeFiles, files: ClientFiles) -> None:
        self._settings = settings
        self._made = made_files
        self._files = files

    def add_routes(self, app: FastAPI) -> None:
        routes: dict[str, dict[str, Any]] = {
            FILES: {"GET": self._list_files, "POST": self._upload_file},
            FILE: {"GET": self._get_file, "DELETE": self._delete_file},
            CONTENT: {"GET": self._get_content},
        }
        add_routes(app, routes)

    async def _upload_file(self, request: Request) -> Response:
        post = await read_request(request.scope, request.receive, self._settings.max_body)
        form = multipart.parse_form(post.body, post.content_type)
        form.check_file_names("file")
        file_request, part = parse_file_form(form.fields()), form.file("file")
        name = (part.filename or "")[:_MAX_NAME_CHARS] or "file"
        seconds = float(file_request.expires_after.seconds) if file_request.expires_after is not None else 0.0
        return json_response(
            file_view(await self._files.add(part.data, name, file_request.purpose, part.mime, seconds))
        )

    async def _list_files(self, request: Request) -> Response:
        query = parse_file_query(dict(request.query_params))
        all_files = await self._files.list_all() if self._files.is_enabled else []
        all_files = all_files[::-1] if query.order == "desc" else all_files
        if query.after:
            ids = [each.id for each in all_files]
            if query.after not in ids:
                raise BadRequest("Unknown file id: send the id of a listed file.", param="after")
            all_files = all_files[ids.index(query.after) + 1 :]
        matches = [each for each in all_files if query.purpose in (None, each.purpose)]
        views = [file_view(each) for each in matches[: query.limit]]
        first, last = (views[0].id, views[-1].id) if views else (None, None)
        return json_response(FileList(data=views, has_more=len(matches) > query.limit, first_id=first, last_id=last))

    async def _get_file(self, request: Request) -> Response:
        id = request.path_params["file_id"]
        client_file = await self._find_own(id)
        return json_response(file_view(client_file) if client_file else _ticket_view(await self._made.get_ticket(id)))

    async def _delete_file(self, request: Request) -> Response:
        id = request.path_params["file_id"]
        if await self._find_own(id):
            await self._files.remove(id)
        else:
            await self._remove_made(id)
        return json_response(FileDeleted(id=id))

    async def _get_content(self, request: Request) -> Response:
        id = request.path_params["file_id"]
        if client_file := await self._find_own(id):
            data = (await self._files.read(id)).data
            return await _content_response(
                request, id, data, client_file.mime, client_file.expires, client_file.filename
            )
        ticket, data = await self._made.read(id)
        return await _content_response(request, id, data, ticket.mime, ticket.expires, _file_name(ticket))

    async def _remove_made(self, id: str) -> None:
        """Delete a generated file. Raises ``NotFound`` for a file of another tenant."""
        tenant = current_tenant()
        if tenant.name and owner_hash(tenant.name) != (await self._made.get_ticket(id)).owner:
            raise file_not_found_error()
        await self._made.remove(id)

    async def _find_own(self, id: str) -> ClientFile | None:
        """Return the caller's own file of this id, if any."""
        if not self._files.is_enabled:
            return None
        try:
            return await self._files.get(id)
        except NotFound:
            return None


def file_view(file: ClientFile) -> FileObject:
    """Return a file as clients see it."""
    return FileObject(
        id=file.id,
        bytes=file.nbytes,
        created_at=int(file.created),
        expires_at=int(file.expires),
        filename=file.filename,
        purpose=file.purpose,  # type: ignore[arg-type]
    )


def _ticket_view(ticket: FileTicket) -> FileObject:
    return FileObject(
        id=ticket.id,
        bytes=ticket.nbytes,
        created_at=int(ticket.created),
        expires_at=int(ticket.expires),
        filename=_file_name(ticket),
    )


async def _content_response(request: Request, id: str, data: bytes, mime: str, expires: float, name: str) -> Response:
    async def read(begin: int, end: int) -> bytes:
        return data[begin:end]

    is_inline = mime.startswith(_INLINE_TYPES)
    safe_name = "".join(
        letter if letter.isascii() and letter.isprintable() and letter not in '"\\' else "_" for letter in name
    )
    headers = {
        "cache-control": f"private, max-age={max(0, int(expires - time.time()))}",
        "content-disposition": f'{"inline" if is_inline else "attachment"}; filename="{safe_name}"',
        "x-content-type-options": "nosniff",
    }
    content = Content(len(data), f'"{id}"', read)
    return await content_response(request, content, mime if is_inline else "application/octet-stream", headers)


def _file_name(ticket: FileTicket) -> str:
    return f"{ticket.id}.{ticket.mime.partition('/')[2]}"


class UploadRoutes:
    """Adds the routes to an application; a complete upload becomes one of ``files``."""

    def __init__(self, settings: GatewaySettings, files: ClientFiles) -> None:
        self._settings = settings
        self._uploads = FileUploads(files)

    def add_routes(self, app: FastAPI) -> None:
        add_routes(
            app,
            {
                UPLOADS: {"POST": self._begin_upload},
                PARTS: {"POST": self._add_part},
                COMPLETE: {"POST": self._complete_upload},
                CANCEL: {"POST": self._cancel_upload},
            },
        )

    async def _begin_upload(self, request: Request) -> Response:
        post = await read_request(request.scope, request.receive, self._settings.max_body)
        upload_request = parse_upload_request(post.body)
        seconds = float(upload_request.expires_after.seconds) if upload_request.expires_after is not None else 0.0
        upload = await self._uploads.begin(
            upload_request.filename, upload_request.purpose, upload_request.mime_type, upload_request.bytes, seconds
        )
        return json_response(upload_view(upload))

    async def _add_part(self, request: Request) -> Response:
        post = await read_request(request.scope, request.receive, self._settings.max_body)
        form = multipart.parse_form(post.body, post.content_type)
        form.check_file_names("data")
        id = request.path_params["upload_id"]
        part = await self._uploads.add_part(id, form.file("data").data)
        return json_response(UploadPartObject(id=part, created_at=int(time.time()), upload_id=id))

    async def _complete_upload(self, request: Request) -> Response:
        post = await read_request(request.scope, request.receive, self._settings.max_body)
        complete_request = parse_complete_request(post.body)
        id = request.path_params["upload_id"]
        return json_response(
            upload_view(await self._uploads.complete(id, complete_request.part_ids, complete_request.md5 or ""))
        )

    async def _cancel_upload(self, request: Request) -> Response:
        return json_response(upload_view(await self._uploads.cancel(request.path_params["upload_id"])))


def upload_view(upload: FileUpload) -> UploadObject:
    """Return an upload as clients see it."""
    return UploadObject(
        id=upload.id,
        bytes=upload.nbytes,
        created_at=int(upload.created),
        expires_at=int(upload.expires),
        filename=upload.filename,
        purpose=upload.purpose,  # type: ignore[arg-type]
        status=upload.current_status,  # type: ignore[arg-type]
        file=file_view(upload.file) if upload.file is not None else None,
    )
